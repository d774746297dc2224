#!/usr/bin/env bash
# kill -9 at random moments, again and again: in the end every step stands once and all bits are those of a run that
# nobody disturbed.
#
# usage: random_kills_test.sh TRAIN [KILLS [SEED]]     KILLS for each of: one rank, two ranks
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
kills=${2-3}
RANDOM=${3-1}

common=(base.json --set run.steps=2000000 --set batch.global=8 --set data.order=shuffled --set checkpoint.interval_steps=5
  --set checkpoint.keep_last=2 --set log.tensorboard=true --set evaluation.interval_steps=7)

# A process and all below it.
tree() {
  local child
  echo "$1"
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do tree "$child"; done
}
# Stopped first, so that nobody starts another while the list is made.
kill_all() {
  local -i pass
  for pass in 1 2 3; do
    everyone=$(tree "$job")
    # shellcheck disable=SC2086
    kill -STOP $everyone 2>/dev/null
  done
  # shellcheck disable=SC2086
  kill -KILL $everyone 2>/dev/null
}
newest() { ls "$1/checkpoints" 2>/dev/null | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1; }

# One life of the run: starts it, kills it after a random time, counts where the kill fell and what was computed. The
# time is drawn from the start (up to 0.4 s) or from the first sign of training (up to 1 s).
one_life() { # RANKS
  local before everyone victims how
  local -i started
  before=$(newest run)
  start log "${start_of[@]}" "${common[@]}"
  if ((RANDOM % 4 == 0)); then
    sleep "$(printf '0.%03d' $((RANDOM % 400)))"
  else
    until_true logged log '^step \|^resuming\|^train: exit'
    sleep "$(printf '0.%03d' $((RANDOM % 1000)))"
  fi
  how=all
  everyone=$(tree "$job")
  mapfile -t victims < <(train_processes "$job")
  if [ "${#victims[@]}" -gt 1 ] && ((RANDOM % 2 == 0)); then
    how=one # mpirun ends the others
    kill -KILL "${victims[RANDOM % ${#victims[@]}]}"
  else
    kill_all
  fi
  for process in $everyone; do [ "$process" = "$job" ] || until_true gone "$process"; done
  wait "$job" 2>/dev/null
  check "kill $kill of $1 ranks ($how): the run did not end by itself" [ "$(grep -c '^train: exit' log)" = 0 ]
  started=$(grep -c '^step .*tokens/s' log)
  computed+=$started
  if compgen -G "run/checkpoints/*.tmp-*" >/dev/null; then
    in_saves+=1
  elif [ "$started" = 0 ]; then
    in_starts+=1
  else
    in_steps+=1
  fi
  [ -z "$before" ] || check "kill $kill of $1 ranks: nothing saved is lost" [ "$(newest run)" -ge "$before" ]
}

for ranks in 1 2; do
  rm -rf run whole
  start_of=("$binary")
  [ "$ranks" = 1 ] || start_of=("$root/scripts/run.sh" -n "$ranks")
  declare -i computed=0 in_saves=0 in_starts=0 in_steps=0
  for ((kill = 1; kill <= kills; ++kill)); do one_life "$ranks"; done

  saved=$(newest run)
  end=$((${saved:-0} + 13))
  "${start_of[@]}" "${common[@]}" --set run.exit_at_step=$end >out 2>log
  code=$?
  ends_with "$ranks ranks, after $kills kills" 0
  computed+=$(grep -c '^step .*tokens/s' log)
  check "nothing of a torn save is left" [ -z "$(ls run/checkpoints | grep -v '^step-[0-9]*$')" ]
  check_metrics run $end
  "${start_of[@]}" "${common[@]}" --set run.directory=whole --set run.exit_at_step=$end >out 2>log
  code=$?
  ends_with "$ranks ranks, undisturbed" 0
  same_run "$ranks ranks, $kills kills" run $end whole
  echo "$ranks ranks: $kills kills ($in_starts before the first step, $in_steps in steps, $in_saves in saves);" \
    "$end of $computed computed steps count: goodput $((100 * end / computed)) %," \
    "$(((computed - end) * 100 / kills)) steps lost by 100 kills (saved every 5)"
done
finish
