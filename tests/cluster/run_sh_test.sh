#!/usr/bin/env bash
# scripts/run.sh against a stand-in for the trainer, under the real mpirun and a fake one that shows its arguments.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
export OMPI_MCA_btl_vader_single_copy_mechanism=none FAKE_DIRECTORY
run=$root/scripts/run.sh
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fresh() {
  FAKE_DIRECTORY=$(mktemp -d -p "$scratch")
}
ln -s "$here/fake_train.sh" "$scratch/train"
export TRIREME_TRAIN=$scratch/train

# The code of the ranks is the code of the script; arguments arrive as they were.
for code in 0 3 74; do
  fresh
  "$run" -n 2 exit $code "with space" '--set' 'a.b={"c": 1}' >"$scratch/log" 2>&1
  check "exit $code comes through" [ $? = $code ]
  check "arguments arrive unchanged" [ "$(tail -n 3 "$FAKE_DIRECTORY/arguments.0")" = $'with space\n--set\na.b={"c": 1}' ]
done
fresh
(cd "$scratch" && TRIREME_TRAIN=train "$run" -n 1 exit 4 >log 2>&1)
check "a relative TRIREME_TRAIN works" [ $? = 4 ]

# Each signal becomes one SIGUSR1 on every rank, and the script waits for the end.
for signal in INT TERM USR1; do
  fresh
  env --default-signal=INT "$run" -n 2 wait 1 75 >"$scratch/log" 2>&1 &
  script=$!
  wait_for "$FAKE_DIRECTORY/ready.0"
  wait_for "$FAKE_DIRECTORY/ready.1"
  kill -$signal $script
  wait $script
  check "SIG$signal ends with 75" [ $? = 75 ]
  check "SIG$signal reached both ranks" [ "$(ls "$FAKE_DIRECTORY" | grep -c '^signal.1')" = 2 ]
done

# A second signal follows the first.
fresh
"$run" -n 2 wait 2 138 >"$scratch/log" 2>&1 &
script=$!
wait_for "$FAKE_DIRECTORY/ready.0"
wait_for "$FAKE_DIRECTORY/ready.1"
kill -TERM $script
wait_for "$FAKE_DIRECTORY/signal.1.0"
wait_for "$FAKE_DIRECTORY/signal.1.1"
kill -TERM $script
wait $script
check "a second signal is forwarded, too" [ $? = 138 ]

# A signal while ranks are starting waits until they listen.
fresh
"$run" -n 2 wait 1 75 late >"$scratch/log" 2>&1 &
script=$!
wait_for "$FAKE_DIRECTORY/starting.0"
wait_for "$FAKE_DIRECTORY/starting.1"
kill -USR1 $script
: >"$FAKE_DIRECTORY/sent"
wait $script
check "an early signal kills no rank" [ $? = 75 ]

# Open MPI's boxes about an exit code: kept where no rank said why it ended, left out where one did, whichever came first.
fresh
"$run" -n 2 exit 75 >"$scratch/log" 2>&1
check "the real mpirun: what it says of a silent rank stays" grep -qi 'exit' "$scratch/log"
rule=$(printf '%074d' 0 | tr 0 -)
boxes_of_4=$rule$'\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n'$rule
boxes_of_4+=$'\n'$rule$'\nmpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n  Process name: [[1,1],0]\n  Exit code:    75\n'$rule
box_of_5=$rule$'\nprterun detected that one or more processes exited with non-zero status,\nthus causing the job to be terminated. The first process to do so was:\n\n   Process name: [prterun-a-1@1,0]\n   Exit code:    75\n'$rule
other=$rule$'\nmpirun noticed that process rank 1 with PID 0 on node a exited on signal 9 (Killed).\n'$rule
last='train: exit 75 (saved)'
cat >"$scratch/telling" <<'FAKE'
#!/bin/sh
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit; fi
cat "$SAYS" >&2
printf 'no end of line' >&2
exit 75
FAKE
chmod +x "$scratch/telling"
heard() { # WHAT EXPECTED TEXT...
  printf '%s\n' "${@:3}" >"$scratch/says"
  SAYS=$scratch/says TRIREME_MPIRUN=$scratch/telling "$run" -n 2 c.json 2>"$scratch/log"
  check "$1: the code" [ $? = 75 ]
  check "$1" [ "$(cat "$scratch/log")" = "$2" ]
}
heard "boxes after the last line are left out" $'step\n'"$last"$'\n'"no end of line" step "$last" "$boxes_of_4"
heard "boxes before it, too" "$last"$'\n'"no end of line" "$boxes_of_4" "$last"
heard "those of Open MPI 5" "$last"$'\n'"no end of line" "$last" "$box_of_5"
heard "a signal forwarded is not told" "$last"$'\n'"no end of line" 'mpirun: Forwarding signal 10 to job' "$last"
heard "other boxes stay" "$last"$'\n'"$other"$'\n'"no end of line" "$last" "$box_of_5" "$other"
heard "a rule by itself stays" "$rule"$'\n'"$rule"$'\n'"$last"$'\n'"no end of line" "$rule" "$rule" "$last"
heard "without a last line they are told, at the end" $'step\nno end of line\n'"$boxes_of_4" step "$boxes_of_4"

# Options of mpirun, seen by a fake one.
cat >"$scratch/mpirun" <<'FAKE'
#!/bin/sh
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit; fi
echo "arguments: $*"
echo "session: $(cut -d' ' -f6 /proc/self/stat)"
FAKE
chmod +x "$scratch/mpirun"
export TRIREME_MPIRUN=$scratch/mpirun
one=$("$run" -n 1 c.json)
many=$("$run" -n 4096 c.json)
check "one rank is not pinned to one core" contains "$one" "-n 1 --bind-to none"
check "one rank does not oversubscribe" lacks "$one" OVERSUBSCRIBE
check "more ranks than cores oversubscribe" contains "$many" OVERSUBSCRIBE
if [ "$(id -u)" = 0 ]; then
  check "root may run as root" contains "$one" --allow-run-as-root
else
  check "others do not ask for it" lacks "$one" --allow-run-as-root
fi
check "mpirun has a session of its own" lacks "$one" "session: $(cut -d' ' -f6 /proc/self/stat)"

# What is refused.
for arguments in "" "c.json" "-n" "-n 2" "-n 0 c.json" "-n two c.json" "-n -1 c.json"; do
  # shellcheck disable=SC2086
  "$run" $arguments >"$scratch/log" 2>&1
  check "'$arguments' is a usage error" [ $? = 2 ]
done
TRIREME_TRAIN=$scratch/nothing "$run" -n 1 c.json 2>"$scratch/log"
check "a missing binary is exit 3" [ $? = 3 ]
check "and named" contains "$(cat "$scratch/log")" "$scratch/nothing"
TRIREME_MPIRUN=$scratch/nothing "$run" -n 1 c.json 2>"$scratch/log"
check "a missing mpirun is exit 3" [ $? = 3 ]
finish
