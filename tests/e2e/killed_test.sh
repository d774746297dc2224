#!/usr/bin/env bash
# kill -9 at any moment loses nothing that was saved.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
long=(base.json --set run.steps=200000 --set checkpoint.interval_steps=10 --set checkpoint.keep_last=2 --set log.interval_steps=7)

# Alone, five times, each at another moment: some fall into a save, since saves take most of the time.
for moment in 1 2 3 4 5; do
  start log "$binary" "${long[@]}"
  until_true logged log '^step \|^resuming'
  sleep "0.$((moment * 37 % 50 + 10))"
  kill -KILL "$job"
  wait "$job" 2>/dev/null
  check "kill $moment: killed" [ $? = 137 ]
  rm -rf between
  cp -r run between
done
last=$(ls run/checkpoints | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1)
end=$((last + 13))
train "${long[@]}" --set run.exit_at_step=$end
ends_with "after the kills" 0
check "nothing of a torn save is left" [ -z "$(ls run/checkpoints | grep -v '^step-[0-9]*$')" ]
check_metrics run $end
train "${long[@]}" --set run.directory=whole --set run.exit_at_step=$end
same_run "five kills" run $end whole

# The run's folder as a kill leaves it: a torn line and lines after the last checkpoint.
rm -rf run
train base.json --set checkpoint.interval_steps=6 --set run.exit_at_step=9
rm -rf run/checkpoints/step-00000009
printf '{"kind":"step","step":10,"lo' >>run/metrics.jsonl
train base.json --set checkpoint.interval_steps=6
ends_with "after a torn line" 0
train base.json --set run.directory=again
same_run "after a torn line" run 20 again
check_metrics run 20

# One of two ranks, which hold the same of the model or a stage each and then wait for each other within passes.
kill_one_of_two() {
  local name=$1 ranked=("${long[@]}" --set batch.micro=1 "${@:2}")
  rm -rf run
  for victim in head tail; do
    start log "$root/scripts/run.sh" -n 2 "${ranked[@]}"
    until_true logged log '^step .*'
    until_true logged log '^saved step '
    others=$(train_processes "$job")
    check "$name: there are two ranks" [ "$(echo "$others" | wc -l)" = 2 ]
    kill -KILL "$(echo "$others" | $victim -n 1)"
    begin=$(date +%s%N)
    for process in $others; do until_true gone "$process"; done
    milliseconds=$((($(date +%s%N) - begin) / 1000000))
    in_time "$name: the other rank ended" "$milliseconds"
    wait "$job"
    check "$name: the job does not end well" [ $? != 0 ]
  done
  end=$(($(ls run/checkpoints | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1) + 13))
  ranks 2 "${ranked[@]}" --set run.exit_at_step=$end
  ends_with "$name: two ranks after the kills" 0
  check_metrics run $end
  ranks 2 "${ranked[@]}" --set run.directory="whole-$name" --set run.exit_at_step=$end
  same_run "$name: two ranks, killed" run $end "whole-$name"
}
kill_one_of_two data
kill_one_of_two pipeline --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h1
finish
