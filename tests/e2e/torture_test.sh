#!/usr/bin/env bash
# A run is killed at every call with which a save changes files, on every rank; the system refuses these calls; the disk is
# full for real. After each: what was saved before or after stands and is good, nothing else is seen, and the run goes on
# to the bits of one that nobody disturbed.
#
# usage: torture_test.sh TRAIN FAULTS_PRELOAD [STAGES [RANKS [EVERY [ASYNC]]]]
#   STAGES   of "kill refuse full", joined by commas (all)      RANKS  one number of ranks or several, "1,2,4" (2)
#   EVERY    only each so many calls (1: every call)            ASYNC  checkpoint.async: false or true (false)
# Prints a line `row|WHAT|trials|lost|phantom|wrong|hung` for each stage, number of ranks and rank.
preload=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
stages=,${3-kill,refuse,full},
IFS=, read -r -a worlds <<<"${4-2}"
every=${5-1}
async=${6-false}
# Open MPI gives the others of a dead rank two seconds; here they have long written what they will.
export OMPI_MCA_odls_base_sigkill_timeout=0
[ -w /dev/shm ] && fast=$(mktemp -d /dev/shm/torture.XXXXXX) && trap 'rm -rf "$fast"; end_background' EXIT && cp -r ./* "$fast" &&
  cd "$fast"
here=$PWD

# The run that is hit saves at 4; where saving is in the background it goes on to 6 and saves again.
hit_to=4
[ "$async" != true ] || hit_to=6
common=(base.json --set run.steps=6 --set batch.global=4 --set batch.micro=1 --set checkpoint.interval_steps=2
  --set checkpoint.async="$async" --set checkpoint.keep_last=1 --set model.num_hidden_layers=1)
# on N ARGUMENTS...: as `train` or `ranks N`, ended after a time in which nothing of this size takes.
on() {
  local n=$1
  shift
  local launch=("$root/scripts/run.sh" -n "$n")
  [ "$n" -gt 1 ] || launch=("$binary")
  local zero=0
  [ "$n" = 1 ] || zero=1
  timeout -k 2 120 env "${fault[@]}" "${launch[@]}" "${common[@]}" --set parallel.zero_stage=$zero "$@" >out 2>log
  code=$?
}
fault=()
# with_fault RANK WHAT: the next `on` runs under it.
with_fault() {
  fault=(LD_PRELOAD="$preload" TRIREME_FAULT_DIRECTORY="$here/run/checkpoints" TRIREME_FAULT_RANK="$1" TRIREME_FAULT="$2")
}
newest_of() { ls "$1/checkpoints" 2>/dev/null | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1; }

declare -i trials lost phantom wrong hung
note() { # WHAT, of the trial that is named
  echo "    $1: $trial_name"
  tail -n 4 log | sed 's/^/      /'
}
# look: the folder as a dead or refused run left it.
look() {
  local step
  trials+=1
  if [ "$code" = 124 ] || [ "$code" = 137 -a ! -s log ]; then
    hung+=1
    note hung
  fi
  step=$(newest_of run)
  if [ -z "$step" ]; then
    lost+=1
    note "no checkpoint is left"
    return
  fi
  if ! "$binary" checkpoint verify run/checkpoints >out 2>&1; then
    phantom+=1
    cp out log
    note "one that is seen is not good"
  elif [ "$(tensors_of "$(folder_of run "$step")")" != "$(tensors_of "$(folder_of "whole$world" "$step")")" ]; then
    phantom+=1
    note "step $step holds another state"
  fi
}
# To the end, undisturbed: as if nothing had been.
go_on() {
  fault=()
  on "$world"
  if [ "$code" != 0 ] || [ "$(steps_of run)" != "$(steps_of "whole$world")" ] ||
    [ "$(tensors_of "$(folder_of run 6)")" != "$(tensors_of "$(folder_of "whole$world" 6)")" ]; then
    wrong+=1
    note "the run afterwards differs (exit $code)"
  fi
}
row() { # WHAT
  echo "row|$1|$trials|$lost|$phantom|$wrong|$hung"
  check "$1: $trials trials, none lost, none phantom, none wrong, none hung" \
    [ $((lost + phantom + wrong + hung)) = 0 -a "$trials" -gt 0 ]
  trials=0 lost=0 phantom=0 wrong=0 hung=0
}
saving_text() { [ "$async" = true ] && echo "in the background" || echo "in the foreground"; }
again() { rm -rf run && cp -r "before$world" run; }
calls_of() { # RANK: calls of a run from step 2 on
  rm -f calls
  again
  with_fault "$1" "count:$here/calls"
  on "$world" --set run.exit_at_step=$hit_to
  [ "$code" = 0 ] || { echo "FAILED: a run under the counting library ends with $code"; tail log; exit 1; }
  sort -n calls | tail -n 1
}

kill_at_every_call() { # RANK
  local -i calls at
  calls=$(calls_of "$1")
  for ((at = 0; at < calls; at += every)); do
    trial_name="$world ranks, rank $1 killed at call $at of $calls"
    again
    with_fault "$1" "kill:$at"
    on "$world" --set run.exit_at_step=$hit_to
    look
    go_on
  done
  row "killed at any of $calls calls, $world ranks, rank $1, $(saving_text)"
}
refuse_every_call() { # RANK
  local -i calls at
  local kind
  calls=$(calls_of "$1")
  for ((at = 0; at < calls; at += every)); do
    for kind in "once:$at:28" "from:$at:28" "once:$at:5" "once:$at:122" "from:$at:122" "short:$at"; do
      trial_name="$world ranks, rank $1, $kind of $calls"
      again
      with_fault "$1" "$kind"
      on "$world" --set run.exit_at_step=$hit_to
      [ "$code" = 0 ] || [ "$code" = 74 ] || { wrong+=1 && note "exit $code"; }
      look
      go_on
    done
  done
  row "ENOSPC, EIO, EDQUOT or a short write at any of $calls calls, $world ranks, rank $1, $(saving_text)"
}
full_disk() {
  local -i bytes room
  bytes=$(du -sb "$(folder_of "whole$world" 2)" | cut -f 1)
  mkdir -p small
  for ((room = bytes + 8192; room < 3 * bytes; room += bytes * every / 12)); do
    trial_name="$world ranks, a disk of $room bytes, checkpoints of $bytes"
    mount -t tmpfs -o size="$room" none small || return
    rm -rf run small/*
    fault=()
    on "$world" --set run.exit_at_step=2 --set checkpoint.directory=small/c
    if [ "$code" = 0 ]; then # the first fits
      on "$world" --set checkpoint.directory=small/c
      [ "$code" = 0 ] || [ "$code" = 74 ] || { wrong+=1 && note "exit $code"; }
      cp -r small/c run/checkpoints
      look
      go_on
    fi
    umount -l small
  done
  row "a disk that is full, $world ranks, $(saving_text)"
}

trials=0 lost=0 phantom=0 wrong=0 hung=0
for world in "${worlds[@]}"; do
  on "$world" --set run.directory="whole$world" --set checkpoint.keep_last=0
  ends_with "$world ranks, undisturbed" 0
  rm -rf run
  on "$world" --set run.exit_at_step=2
  ends_with "$world ranks, to step 2" 0
  mv run "before$world"
  for ((rank = 0; rank < world; ++rank)); do
    [[ $stages != *,kill,* ]] || kill_at_every_call $rank
    [[ $stages != *,refuse,* ]] || refuse_every_call $rank
  done
  if [[ $stages == *,full,* ]] && [ "$(id -u)" = 0 ]; then full_disk; fi
done
finish
