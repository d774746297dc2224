#!/usr/bin/env bash
# Signals at any time of a run's life, alone, in storms, on any rank: the documented code, all ranks gone within 5 s, and
# nothing that was saved is lost.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
long=(base.json --set run.steps=200000 --set log.interval_steps=20)
newest() { ls run/checkpoints 2>/dev/null | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1; }
# Signal $2 has a handler of the program in process $1, which may still be the shell that becomes it.
catches() {
  local mask
  [ "$(readlink "/proc/$1/exe")" = "$binary" ] || return 1
  mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
  [ -n "$mask" ] && (((16#${mask: -8} >> ($2 - 1) & 1) != 0))
}
# send WHAT CODES SIGNAL:PROCESS...: the job ends with one of the codes within 5 s, and keeps what it had.
send() {
  local what=$1 codes=$2 pair before
  local -i begin
  shift 2
  before=$(newest)
  begin=$(date +%s%N)
  for pair in "$@"; do kill "-${pair%:*}" "${pair#*:}" 2>/dev/null; done
  wait "$job"
  code=$?
  begin=$((($(date +%s%N) - begin) / 1000000))
  check "$what: exit $codes, found $code" contains " $codes " " $code "
  contains " $codes " " $code " || tail -n 20 log
  in_time "$what: it ends" $begin
  [ -z "$before" ] || check "$what: nothing saved is lost" [ "$(newest)" -ge "$before" ]
  if [ -e run/checkpoints ]; then
    "$binary" checkpoint verify run/checkpoints >verified 2>&1
    check "$what: all that is saved is whole" [ $? = 0 ]
  fi
}

# Alone: before the program has handlers it dies of the signal, from then on it saves what there is.
start log "$binary" "${long[@]}"
send "at its start" "75 143" TERM:$job
for delay in 0 0.01 0.02 0.05 0.1 0.2; do
  rm -rf run
  start log "$binary" "${long[@]}"
  until_true catches "$job" 15
  sleep $delay
  send "$delay s after its start" 75 TERM:$job
done

# Two ranks: as soon as one listens, MPI or not.
for delay in 0 0.1 0.3; do
  rm -rf run
  start log "$root/scripts/run.sh" -n 2 "${long[@]}" --set batch.micro=1
  until_true eval '[ "$(train_processes "$job" | wc -l)" = 2 ]'
  rank=$(train_processes "$job" | tail -n 1)
  until_true catches "$rank" 10
  sleep $delay
  send "two ranks, $delay s after the start" 75 USR1:$rank
done
rm -rf run
start log "$root/scripts/run.sh" -n 2 "${long[@]}" --set batch.micro=1
send "run.sh at its start" "75 138" USR1:$job

# While it loads: nothing is new, nothing is lost.
rm -rf run
train "${long[@]}" --set run.exit_at_step=6
steps_of run >before
for delay in 0 0.02 0.04; do
  start log "$binary" "${long[@]}" --set run.exit_at_step=200000
  until_true catches "$job" 15
  sleep $delay
  send "loading, $delay s after the start" 75 TERM:$job
  check "loading: the steps before it stand" same "$(steps_of run | head -n 6)" "$(cat before)"
done

# Where nearly all time goes into saves, or into evaluations.
saving=("${long[@]}" --set batch.micro=1 --set checkpoint.interval_steps=1 --set checkpoint.keep_last=2)
evaluating=("${long[@]}" --set batch.micro=1 --set evaluation.interval_steps=1 --set evaluation.batches=300)
rm -rf run
for delay in 0.05 0.13 0.21; do
  start log "$root/scripts/run.sh" -n 2 "${saving[@]}"
  until_true logged log '^saved'
  sleep $delay
  mapfile -t pids < <(train_processes "$job")
  send "in saves" 75 TERM:"${pids[0]}"
done
for delay in 0.07 0.2; do
  start log "$root/scripts/run.sh" -n 2 "${evaluating[@]}"
  until_true logged log 'validation loss'
  sleep $delay
  mapfile -t pids < <(train_processes "$job")
  send "in evaluations" 75 INT:"${pids[1]}"
done

# Storms: one signal or two may have been seen.
for storm in "TERM TERM TERM" "TERM INT USR1" "USR1 USR1"; do
  start log "$root/scripts/run.sh" -n 2 "${saving[@]}"
  until_true logged log '^saved'
  mapfile -t pids < <(train_processes "$job")
  signals=()
  for signal in $storm; do signals+=("$signal:${pids[0]}"); done
  send "$storm to one rank" "75 143 130 138" "${signals[@]}"
done
for pair in "TERM INT" "USR1 TERM"; do
  start log "$root/scripts/run.sh" -n 2 "${saving[@]}"
  until_true logged log '^saved'
  mapfile -t pids < <(train_processes "$job")
  send "$pair to two ranks" 75 "${pair% *}:${pids[0]}" "${pair#* }:${pids[1]}"
done

# After all of it the run has the bits of one that nobody disturbed.
end=$(($(newest) + 3))
ranks 2 "${long[@]}" --set batch.micro=1 --set run.exit_at_step=$end
ends_with "after all signals" 0
check_metrics run $end
ranks 2 "${long[@]}" --set batch.micro=1 --set run.directory=whole --set run.exit_at_step=$end
same_run "after all signals" run $end whole
finish
