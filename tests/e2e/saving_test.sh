#!/usr/bin/env bash
# Where a save cannot be written training goes on; what was saved before stays good.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
saving=(base.json --set checkpoint.interval_steps=5)
failed_saves() { tail -n 1 run/metrics.jsonl | sed -n 's/.*"failed_saves":\([0-9]*\).*/\1/p'; }
# warned WHAT STEP: one warning about this step on the console, one error in the metrics.
warned() {
  check "$1: one warning" [ "$(grep -c "step $2 was not saved" log)" = 1 ]
  check "$1: in the metrics" [ "$(grep '"kind":"checkpoint"' run/metrics.jsonl | grep -c '"step":'"$2"',.*"error":"')" = 1 ]
}

# A file where the last checkpoint's folder is expected.
for n in 1 2; do
  rm -rf run
  mkdir -p run/checkpoints
  echo mine >run/checkpoints/step-00000010
  command=train
  [ $n = 1 ] || command="ranks $n"
  $command "${saving[@]}" --set batch.micro=1
  ends_with "$n: a file in the way of a save" 0
  warned "$n: a file in the way" 10
  check "$n: the failure is counted" same "$(failed_saves)" 1
  check "$n: every step was made" [ "$(steps_of run | wc -l)" = 20 ]
  check "$n: the file in the way is untouched" same "$(cat run/checkpoints/step-00000010)" mine
  train checkpoint verify run/checkpoints/step-00000020
  ends_with "$n: later saves are good" 0
done
rm -rf run
mkdir -p run/checkpoints
echo mine >run/checkpoints/step-00000020
train "${saving[@]}"
ends_with "the last save fails" 74
warned "the last save" 20
check "the last save: on record" same "$(failed_saves)" 1
rm run/checkpoints/step-00000020
train "${saving[@]}"
ends_with "with room again" 0
says "with room again it goes on" 'from step 15 '
train base.json --set run.directory=whole
same_run "after a failed save" run 20 whole
check_metrics run 20

# A file where the folder of checkpoints is expected.
rm -rf run
mkdir run
echo mine >run/checkpoints
train "${saving[@]}"
check "no folder of checkpoints: refused or reported" [ "$code" = 74 ]
says "no folder of checkpoints: it is named" 'run/checkpoints'

# A small and a read-only file system, where this user may mount.
if [ "$(id -u)" = 0 ] && mkdir small && mount -t tmpfs -o size=1500k none small 2>/dev/null; then
  trap 'umount -l small; end_background' EXIT
  rm -rf run
  for n in 1 2; do
    command=train
    [ $n = 1 ] || command="ranks $n"
    rm -rf run small/*
    # Two checkpoints fit, a third does not.
    $command "${saving[@]}" --set batch.micro=1 --set checkpoint.directory=small/c --set checkpoint.keep_last=0
    ends_with "$n: full while saving" 74
    check "$n: full: training went on" [ "$(steps_of run | wc -l)" = 20 ]
    check "$n: full: failures are counted" [ "$(failed_saves)" -ge 1 ]
    warned "$n: full" 20
    train checkpoint verify small/c
    ends_with "$n: full: what was saved before is good" 0
  done
  mkdir read_only
  mount -t tmpfs -o size=16m none read_only
  trap 'umount -l small read_only; end_background' EXIT
  rm -rf run
  start log "$binary" "${saving[@]}" --set run.steps=200000 --set checkpoint.directory=read_only/c
  until_true logged log '^saved step 5 '
  remount() { mount -o remount,ro read_only 2>/dev/null; }
  until_true remount  # not while a file is being written
  until_true logged log 'was not saved'
  kill -TERM "$job"
  wait "$job"
  code=$?
  ends_with "read-only: the last save fails" 74
  check "read-only: failures are counted" [ "$(failed_saves)" -ge 1 ]
  mount -o remount,rw read_only
  last=$(ls read_only/c | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1)
  train "${saving[@]}" --set run.steps=200000 --set run.exit_at_step=$((last + 7)) --set checkpoint.directory=read_only/c
  ends_with "read-only: goes on when writable" 0
  says "read-only: from the last saved step" "from step $last "
  check_metrics run $((last + 7))
fi
finish
