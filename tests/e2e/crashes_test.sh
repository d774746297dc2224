#!/usr/bin/env bash
# A rank of any class crashes in any way: the whole job ends within 5 s with the code that says how, and goes on afterwards
# from what it had saved.
#   crashes_test.sh TRAIN CRASH_PRELOAD
preload=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
common=(base.json --set run.steps=200000 --set batch.micro=1 --set batch.global=12 --set checkpoint.interval_steps=10)

# What the ranks are started as: one of them with more in its environment or less memory.
cat >as_rank <<E2
#!/usr/bin/env bash
if [ "\$OMPI_COMM_WORLD_RANK" = "\${VICTIM-}" ]; then
  [ -z "\${MEMORY_KB-}" ] || ulimit -v "\$MEMORY_KB"
  [ -z "\${CRASH-}" ] || export LD_PRELOAD="\${LD_PRELOAD:+\$LD_PRELOAD:}$preload"
else
  unset CRASH
fi
exec "$binary" "\$@"
E2
chmod +x as_rank
export TRIREME_TRAIN=$scratch/as_rank VICTIM CRASH MEMORY_KB

pid_of_rank() { # RANK
  local process
  for process in $(train_processes "$job"); do
    if tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then echo "$process"; fi
  done
}
# crash WHAT RANK SIGNAL CODES: any of them, joined by |
crash() {
  local what=$1 processes
  local -i begin
  VICTIM=$2
  start log "$root/scripts/run.sh" -n 3 "${common[@]}"
  until_true logged log '^saved step '
  processes=$(train_processes "$job")
  check "$what: three ranks" same "$(echo "$processes" | wc -l)" 3
  kill -"$3" "$(pid_of_rank "$2")"
  begin=$(date +%s%N)
  for process in $processes; do until_true gone "$process"; done
  begin=$((($(date +%s%N) - begin) / 1000000))
  wait "$job"
  code=$?
  check "$what on rank $2: exit $4" contains "|$4|" "|$code|"
  contains "|$4|" "|$code|" || tail -n 20 log
  in_time "$what on rank $2: all ranks end" $begin
}
ulimit -c 0
CRASH='' MEMORY_KB=''
crash "SIGKILL" 0 KILL 137
crash "SIGKILL" 1 KILL 137
crash "SIGSEGV" 2 SEGV 139
crash "SIGSEGV" 0 SEGV 139
crash "abort" 1 ABRT 134
CRASH=exit
# exit() takes away what other threads of the rank still use, so that it may end by a fault.
crash "exit(3)" 2 USR2 "3|139"
crash "exit(3)" 0 USR2 "3|139"
CRASH=throw
crash "an uncaught exception" 1 USR2 134
check "an uncaught exception is told" logged log 'nobody catches this'
CRASH=''

# Memory that is not there: told, and the code of a machine that lacks it. Two gigabytes of activations.
for VICTIM in 0 2; do
  MEMORY_KB=1500000
  ranks 3 "${common[@]}" --set run.directory=large --set batch.micro=64 --set batch.global=192 \
    --set data.sequence_length=64 --set model.intermediate_size=65536
  check "no memory on rank $VICTIM: exit 3" same "$code" 3
  check "no memory on rank $VICTIM: told once" [ "$(grep -c '^train: exit 3' log)" = 1 ]
  says "no memory on rank $VICTIM: it is named" "error: .*memory"
  says "no memory on rank $VICTIM: by item, with the sum" 'parameters .*B, .*activations .*iB, buffers .*B: .*iB together'
  check "no memory on rank $VICTIM: what the launcher then ends answers no signal" lacks "$(cat log)" 'again to end at once'
  says "no memory on rank $VICTIM: what to change first" 'what helps most first: [a-z_.]* .*(a rank then needs '
done
MEMORY_KB=''

# What was saved is whole, and the run goes on.
end=$(($(find run/checkpoints -name 'step-*' ! -name '*.*' | sed 's/.*step-0*//' | sort -n | tail -n 1) + 3))
ranks 3 "${common[@]}" --set run.exit_at_step=$end
ends_with "after all of it" 0
check_metrics run $end
finish
