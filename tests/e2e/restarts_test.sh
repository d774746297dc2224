#!/usr/bin/env bash
# scripts/run_with_restart.sh around the real program, whose ranks, launcher or whole life die at random: the run ends by
# itself, every step stands once, and all bits are those of a run that nobody disturbed.
#
# usage: restarts_test.sh TRAIN [STEPS [SEED [MEAN]]]     a failure each MEAN (20) steps on average, of STEPS (80)
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
steps=${2-80}
RANDOM=${3-1}
mean=${4-20}
common=(base.json --set "run.steps=$steps" --set batch.micro=1 --set batch.global=64 --set data.order=shuffled
  --set checkpoint.interval_steps=5 --set checkpoint.keep_last=2 --set evaluation.interval_steps=7
  --set run.hang_timeout_seconds=10)

ranks 2 "${common[@]}" --set run.directory=whole
ends_with "undisturbed" 0
useful_of() { sed -n 's/^{"kind":"step",.*"step_seconds":\([-+0-9.e]*\),.*/\1/p' "$1/metrics.jsonl" | awk '{ s += $1 } END { print s }'; }
step_seconds=$(awk -v s="$(useful_of whole)" -v n="$steps" 'BEGIN { print s / n }')

# What a life dies of. The newest life's processes are below the script's only child.
kill_something() {
  local life victims victim
  life=$(cut -d ' ' -f 1 "/proc/$job/task/$job/children" 2>/dev/null)
  [ -n "$life" ] || return
  mapfile -t victims < <(train_processes "$job")
  victim=${victims[RANDOM % (${#victims[@]} > 0 ? ${#victims[@]} : 1)]-}
  case $((RANDOM % 8)) in
  0) kill -KILL "$life" ;; # run.sh alone: mpirun and the ranks are orphans
  1) [ -z "$victim" ] || kill -KILL "$(sed 's/.*) //' "/proc/$victim/stat" | cut -d ' ' -f 2)" ;; # mpirun
  2) [ -z "$victim" ] || kill -SEGV "$victim" ;;
  3) [ -z "$victim" ] || kill -ABRT "$victim" ;;
  4) kill -USR1 "$life" ;; # saves, ends with 75
  *) [ -z "$victim" ] || kill -KILL "$victim" ;;
  esac 2>/dev/null
}
# The time to the next failure: exponential, from the first step of a life or (one of four) from where it happens to be.
lives_of() { grep -c '^run_with_restart: life' log; }
steps_of_log() { grep -c '^step .*tokens/s' log; }
declare -i failures_made=0 before
begin=$(date +%s%N)
start log "$root/scripts/run_with_restart.sh" --delay 0.1 --cycles 20 -n 2 "${common[@]}"
while kill -0 "$job" 2>/dev/null; do
  if ((RANDOM % 4 > 0)); then
    before=$(steps_of_log)
    until [ "$(steps_of_log)" -gt "$before" ] || gone "$job"; do sleep 0.05; done
  fi
  sleep "$(awk -v u="$RANDOM" -v m="$mean" -v s="$step_seconds" 'BEGIN { print -log((u + 1) / 32769) * m * s }')"
  before=$(lives_of)
  kill_something
  failures_made+=1
  # The next one meets the next life.
  for ((tries = 0; tries < 100; ++tries)); do
    [ "$(lives_of)" = "$before" ] && ! gone "$job" || break
    sleep 0.05
  done
done
wait "$job"
code=$?
wall_ms=$((($(date +%s%N) - begin) / 1000000))
check "the run ends by itself: 0" same "$code" 0
[ "$code" = 0 ] || tail -n 20 log
check "it died before" [ "$(lives_of)" -gt 1 ]
check "nothing of a torn save is left" [ -z "$(ls run/checkpoints | grep -v '^step-[0-9]*$')" ]
check_metrics run "$steps"
same_run "$(lives_of) lives" run "$steps" whole
computed=$(steps_of_log)
awk -v steps="$steps" -v lives="$(lives_of)" -v computed="$computed" -v useful="$(useful_of run)" -v wall="$wall_ms" 'BEGIN {
  printf "%d steps in %d lives: %d steps computed, of steps %.0f %% count; %.1f s of steps in %.1f s (goodput %.0f %%); ",
    steps, lives, computed, 100 * steps / computed, useful, wall / 1000, 100000 * useful / wall
  printf "%.2f s lost by a death\n", (wall / 1000 - useful) / lives }'
finish
