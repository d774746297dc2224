#!/usr/bin/env bash
# Every rank stopped in every phase of its life: the job ends with 124 soon after the deadline, one report names the rank
# and the phase, no process is left, and what was saved is good.
#
# usage: hang_product_test.sh TRAIN STOP_IN_PHASE SLOW_FSYNC_LIBRARY [RANKS [PHASES]]
#   RANKS   in the job (3)      PHASES  of the table below, apart by spaces (all)
# Prints a line `row|WHAT|trials|lost|phantom|wrong|hung`. Needs the right to trace processes of its user.
stopper=$(realpath "$2") slow_fsync=$(realpath "$3")
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
world=${4-3}
declare -i trials=0 lost=0 phantom=0 wrong=0 hung=0 late=0 deadline=2

pid_of_rank() { # RANK
  local process
  for process in $(train_processes "$job"); do
    if tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then echo "$process"; fi
  done
}
appeared() { [ -n "$(pid_of_rank "$1")" ]; }
writing() { compgen -G 'run/checkpoints/*.tmp-*/rank-*.h5' >/dev/null; }
no_good() { # WHAT
  echo "FAILED: $1"
  sed 's/^/    /' log | tail -n 8
  wrong+=1
}
# hang RANK PHASE WHERE NAMED OPTIONS...: the phase of the program is WHERE for stop_in_phase, "write": a file of a save
# is being written; the report calls it NAMED, a pattern.
hang() {
  local rank=$1 phase=$2 where=$3 named=$4 victim process processes
  local -i begin
  shift 4
  rm -rf run
  local slow=()
  [ "$where" != write ] || slow=("LD_PRELOAD=$slow_fsync" TRIREME_SLOW_FSYNC_MS=300)
  start log env "${slow[@]}" "$root/scripts/run.sh" -n "$world" base.json --set run.steps=200000 --set batch.micro=1 \
    --set batch.global=12 --set run.hang_timeout_seconds=$deadline "$@"
  until_true appeared "$rank"
  if [ "$where" = write ]; then
    until_true logged log '^saved'
    until_true writing
    kill -STOP "$(pid_of_rank "$rank")"
  else
    [ "$where" = init ] || [ "$where" = end ] || [ "$where" = start ] || until_true logged log '^step '
    victim=$(pid_of_rank "$rank")
    "$stopper" "$victim" "$rank" "$where" || { no_good "rank $rank never stood in $phase"; kill -KILL "$job"; }
    # Behind the last meeting a rank holds up its launcher alone: there is nobody left to tell. Once more then.
    if [ "$where" = end ] && sleep 1 && [ "$(train_processes "$job" | wc -l)" = 1 ]; then
      kill -CONT "$victim"
      wait "$job"
      [ $((late += 1)) -lt 20 ] && hang "$rank" "$phase" "$where" "$named" "$@"
      return
    fi
  fi
  processes=$(train_processes "$job")
  begin=$(date +%s%N)
  trials+=1
  timeout 60 tail -s 0.1 --pid="$job" -f /dev/null || { hung+=1; kill -KILL "$job" $processes 2>/dev/null; }
  wait "$job"
  code=$?
  begin=$((($(date +%s%N) - begin) / 1000000))
  echo "rank $rank in $phase: exit $code after $begin ms"
  [ "$code" = 124 ] || no_good "rank $rank in $phase: exit $code"
  [ "$(grep -c '^train: exit' log)" = 1 ] || no_good "rank $rank in $phase: one closing line"
  grep -q "^train: exit 124 (.*rank $rank (.*stopped" log || no_good "rank $rank in $phase: it is named"
  grep -qE "^(train: exit 124|  rank $rank ).*phase ($named)" log || no_good "rank $rank in $phase: the phase is $named"
  for process in $processes; do until_true gone "$process"; done
  if [ -n "$(ls run/checkpoints 2>/dev/null | grep '^step-[0-9]*$')" ] && ! "$binary" checkpoint verify run >out 2>&1; then
    phantom+=1
    cat out
  fi
}
often=(--set checkpoint.interval_steps=1 --set checkpoint.keep_last=1)
for phase in ${5-init load data forward backward reduce update evaluation save-copy save-write exit}; do
  for ((rank = 0; rank < world; ++rank)); do
    case $phase in
    init) hang $rank $phase init start ;;
    load) hang $rank $phase start start ;;
    data) hang $rank $phase data data ;;
    forward) hang $rank $phase forward forward ;;
    backward) hang $rank $phase backward_input backward_input ;;
    reduce) hang $rank $phase communication communication ;;
    update) hang $rank $phase optimizer optimizer ;;
    evaluation) hang $rank $phase evaluation evaluation --set evaluation.interval_steps=1 --set evaluation.batches=100 ;;
    save-copy) hang $rank $phase checkpoint checkpoint "${often[@]}" ;;
    save-write) hang $rank $phase write '[a-z_ ]*' "${often[@]}" ;;
    exit) hang $rank $phase end end --set run.exit_at_step=3 ;;
    *) echo "no phase $phase" >&2 && exit 2 ;;
    esac
  done
done
echo "row|a rank of $world stopped in any phase: ${5-all eleven}|$trials|$lost|$phantom|$wrong|$hung"
check "no rank stopped in any phase is wrong, hung, phantom or lost" [ $((wrong + hung + phantom + lost)) = 0 ]
finish
