#!/usr/bin/env bash
# A rank of the real program is stopped, anywhere in its life: the job ends with 124 soon after the deadline, one report
# names the rank and where it stands, no process is left.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
common=(base.json --set run.steps=200000 --set batch.micro=1 --set batch.global=12 --set run.hang_timeout_seconds=3)

pid_of_rank() { # RANK
  local process
  for process in $(train_processes "$job"); do
    if tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then echo "$process"; fi
  done
}
appeared() { [ -n "$(pid_of_rank "$1")" ]; }

# stopped WHAT RANKS RANK WHEN SECONDS PHASES OPTIONS...: RANK is stopped SECONDS after WHEN (a pattern of the log, or
# "start"); its phase is one of PHASES, a pattern.
stopped() {
  local what=$1 n=$2 rank=$3 when=$4 seconds=$5 phases=$6 processes victim
  local -i begin
  shift 6
  rm -rf run
  start log "$root/scripts/run.sh" -n "$n" "${common[@]}" "$@"
  until_true appeared "$rank"
  [ "$when" = start ] || until_true logged log "$when"
  sleep "$seconds"
  processes=$(train_processes "$job")
  victim=$(pid_of_rank "$rank")
  kill -STOP "$victim"
  begin=$(date +%s%N)
  wait "$job"
  code=$?
  begin=$((($(date +%s%N) - begin) / 1000000))
  check "$what: exit 124" same "$code" 124
  in_time "$what: it ends, after a deadline of 3 s" $begin
  check "$what: one closing line" [ "$(grep -c '^train: exit' log)" = 1 ]
  [ "$(grep -c '^train: exit' log)" = 1 ] || sed 's/^/    /' log | tail -n 30
  says "$what: rank and phase are named" "^train: exit 124 (.*rank $rank (.*stopped.*"
  check "$what: the phase is one of $phases" grep -qE "^(train: exit 124|  rank $rank ).*phase ($phases)" log
  for process in $processes; do until_true gone "$process"; done
}

in_steps='forward|backward_input|communication|optimizer|data|between steps'
stopped "at its start" 2 0 start 0 "start|checkpoint|$in_steps"
stopped "starting" 3 2 start 0.05 "start|checkpoint|$in_steps"
stopped "starting, in the middle" 3 1 start 0.15 "start|checkpoint|$in_steps"
stopped "in steps" 3 1 '^step ' 0.5 "$in_steps"
# Of deterministic phases: cluster/watchdog_test.sh. Steps lie between evaluations and saves here.
stopped "in evaluations" 2 1 '^step .* validation' 0.2 "evaluation|$in_steps" \
  --set evaluation.interval_steps=1 --set evaluation.batches=1000
stopped "in saves" 2 0 '^saved' 0.2 "checkpoint|$in_steps" \
  --set checkpoint.interval_steps=1 --set checkpoint.keep_last=1
# Forward and backward of a micro-batch take four fifths of the time: again, until a stop falls into one.
for try in first second third fourth fifth; do
  stopped "in a pipeline, $try try" 2 1 '^step ' 0.3 "backward_weight|$in_steps" \
    --set parallel.pipeline=2 --set batch.global=96 --set batch.micro=4 --set data.sequence_length=64 \
    --set model.hidden_size=256 --set model.intermediate_size=704
  ! logged log '^\(train: exit 124\|  rank 1 \).*phase \(forward\|backward\)' || break
done
says "in a pipeline: the action is named" 'action [FBW] of stage 1, micro-batch [0-9]'
finish
