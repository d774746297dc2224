#!/usr/bin/env bash
# Saving beside training: the bits of a run do not depend on it, steps go on while a slow disk takes its time, and every
# way to stop waits for what is under way.
#
# usage: async_saving_test.sh TRAIN SLOW_FSYNC_LIBRARY
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
slow_disk=(env "LD_PRELOAD=$2" TRIREME_SLOW_FSYNC_MS=200
  "ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0")
saving=(base.json --set checkpoint.interval_steps=5 --set checkpoint.keep_last=0)
long=("${saving[@]}" --set run.steps=200000 --set log.interval_steps=1000)
slow() {
  "${slow_disk[@]}" "$binary" "$@" >out 2>log
  code=$?
}
line_of() { grep -n "\"kind\":\"$2\",\"step\":$3," "$1/metrics.jsonl" | head -n 1 | cut -d : -f 1; }
behind() { [ -n "$1" ] && [ -n "$2" ] && [ "$1" -gt "$2" ]; }
# of_save RUN STEP KEY: a number of a checkpoint line.
of_save() { sed -n 's/^{"kind":"checkpoint","step":'"$2"',.*"'"$3"'":\([-+.0-9eE]*\).*/\1/p' "$1/metrics.jsonl"; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a < b) }'; }
saving_now() { compgen -G 'run/checkpoints/*.tmp-*' >/dev/null; }
saved_folders() { ls run/checkpoints | tr '\n' ' '; }
all_good() { # WHAT
  local folder
  for folder in run/checkpoints/step-????????; do
    train checkpoint verify "$folder"
    check "$1: $(basename "$folder") is good" [ "$code" = 0 ]
  done
}

# The bits: beside and waiting, with little memory, resumed, alone and on two ranks.
for n in 1 2; do
  run=train
  [ $n = 1 ] || run="ranks $n"
  rm -rf run waiting
  $run "${saving[@]}" --set batch.micro=1 --set run.directory=waiting --set checkpoint.async=false
  ends_with "$n: waiting" 0
  $run "${saving[@]}" --set batch.micro=1 --set run.exit_at_step=13
  ends_with "$n: beside" 0
  $run "${saving[@]}" --set batch.micro=1 --set checkpoint.staging_bytes=1048576
  ends_with "$n: resumed" 0
  for step in 5 10 15 20; do same_run "$n: step $step" run $step waiting; done
  check_metrics run 20
  for step in 5 10 13 15 20; do
    check "$n: the save of step $step is on record once" \
      [ "$(grep -c '"kind":"checkpoint","step":'$step',.*"error":null' run/metrics.jsonl)" = 1 ]
  done
done
rm -rf run
train "${saving[@]}" --set run.exit_at_step=5
says "the memory for saves is printed" 'saving .* of memory for a save under way'

# Steps go on while the disk is slow: the save of step 5 ends behind later steps, and was waited for much shorter.
rm -rf run
slow "${saving[@]}" --set checkpoint.interval_steps=10
ends_with "a slow disk" 0
check "a slow disk: steps went on" behind "$(line_of run checkpoint 10)" "$(line_of run step 12)"
check "a slow disk: they did not wait" less "$(of_save run 10 stall_seconds)" "$(of_save run 10 save_seconds)"
check "a slow disk: both are saved" same "$(saved_folders)" "step-00000010 step-00000020 "
check_metrics run 20
rm -rf run
slow "${saving[@]}" --set checkpoint.interval_steps=10 --set checkpoint.async=false
ends_with "async false" 0
check "async false: the next step waits" behind "$(line_of run step 11)" "$(line_of run checkpoint 10)"

# The next save falls due while one is under way.
rm -rf run
slow "${saving[@]}" --set checkpoint.interval_steps=6
ends_with "wait" 0
check "wait: each is made" same "$(saved_folders)" "step-00000006 step-00000012 step-00000018 step-00000020 "
rm -rf run
slow "${saving[@]}" --set checkpoint.interval_steps=6 --set checkpoint.when_busy=skip
ends_with "skip" 0
says_once "skip: it says which" 'step 12 is not saved: step 6 is still being written'
check "skip: the first and the last" same "$(saved_folders)" "step-00000006 step-00000020 "
all_good "skip"
check "skip is no failure" [ "$(tail -n 1 run/metrics.jsonl | grep -c '"failed_saves":0')" = 1 ]

# A signal during a save: it is finished, then the last one made; the stop file and a time limit likewise.
stopped_by() { # WHAT CODE COMMAND...
  local what=$1 expected=$2
  shift 2
  rm -rf run
  start log "${slow_disk[@]}" "$binary" "${long[@]}" --set checkpoint.interval_steps=50
  until_true saving_now
  "$@"
  wait "$job"
  code=$?
  ends_with "$what during a save" "$expected"
  check "$what: two are saved" [ "$(ls run/checkpoints | grep -c '^step-[0-9]*$')" -ge 2 ]
  check "$what: nothing else stands there" [ -z "$(ls run/checkpoints | grep -v '^step-[0-9]*$')" ]
  last=$(steps_of run | tail -n 1 | sed 's/"step":\([0-9]*\).*/\1/')
  check "$what: the last step is saved" [ -e "$(folder_of run "$last")/manifest.json" ]
  all_good "$what"
}
terminate() { kill -TERM "$job"; }
stopped_by SIGTERM 75 terminate
train "${long[@]}" --set run.exit_at_step=$((last + 4))
train "${long[@]}" --set run.exit_at_step=$((last + 4)) --set run.directory=whole
same_run "stopped during a save" run $((last + 4)) whole
stopped_by "the stop file" 0 touch run/stop

# A second signal does not wait for the save, and SIGKILL for nothing: no part of it can be seen.
for second in TERM KILL; do
  rm -rf run
  start log "${slow_disk[@]}" "$binary" "${long[@]}"
  until_true [ -e run/checkpoints/step-00000005 ]
  until_true saving_now
  kill -TERM "$job"
  until_true taken "$job"
  kill -$second "$job"
  wait "$job"
  code=$?
  check "SIG$second after a signal ends at once" same "$code" "$([ $second = TERM ] && echo 143 || echo 137)"
  all_good "SIG$second"
  saved=$(ls run/checkpoints | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | tail -n 1)
  train "${long[@]}" --set run.exit_at_step=$((saved + 4))
  ends_with "after SIG$second" 0
  check "after SIG$second nothing is left of the save" [ -z "$(ls run/checkpoints | grep -v '^step-[0-9]*$')" ]
  rm -rf whole
  train "${long[@]}" --set run.directory=whole --set run.exit_at_step=$((saved + 4))
  same_run "after SIG$second" run $((saved + 4)) whole
done
finish
