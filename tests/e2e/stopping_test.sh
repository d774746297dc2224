#!/usr/bin/env bash
# Each way to stop a run, what it leaves, and how the next one goes on.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
long=(base.json --set run.steps=200000 --set log.interval_steps=20)

# last_step RUN: of its metrics.
last_step() { steps_of "$1" | tail -n 1 | sed 's/"step":\([0-9]*\).*/\1/'; }
# goes_on WHAT RANKS STEP REFERENCE OPTIONS...: `run` goes on to STEP; REFERENCE is trained to STEP in one go.
goes_on() {
  local what=$1 n=$2 step=$3 reference=$4 run=train
  shift 4
  [ "$n" = 1 ] || run="ranks $n"
  $run "${long[@]}" "$@" --set run.exit_at_step="$step"
  ends_with "$what, resumed" 0
  $run "${long[@]}" "$@" --set run.directory="$reference" --set run.exit_at_step="$step"
  same_run "$what" run "$step" "$reference"
  check_metrics run "$step"
}

for signal in TERM INT USR1; do
  rm -rf run
  start log env --default-signal=INT "$binary" "${long[@]}"
  until_true logged log '^step '
  kill -$signal "$job"
  wait "$job"
  code=$?
  ends_with "SIG$signal" 75
  last_line_is_closing "SIG$signal"
  says_once "SIG$signal: answered at once" "^SIG$signal: stopping after this step, saving; again to end at once"
  says "SIG$signal: named at the end" "^train: exit 75 (SIG$signal, saved, please requeue)"
  check "SIG$signal: on record" same "$(end_reason run)" signal
  stopped=$(last_step run)
  check "SIG$signal: the last step is saved" [ -e "$(folder_of run "$stopped")/manifest.json" ]
done
goes_on "stopped by a signal" 1 $((stopped + 5)) signal-reference

rm -rf run
start log "$root/scripts/run.sh" -n 2 "${long[@]}" --set batch.micro=1
until_true logged log '^step '
kill -USR1 "$job"
wait "$job"
code=$?
ends_with "SIGUSR1 to two ranks" 75
says_once "SIGUSR1 to two ranks: one answer" '^SIGUSR1: stopping after this step'
says "SIGUSR1 to two ranks: named at the end" '^train: exit 75 (SIGUSR1, saved'
check "two ranks: on record" same "$(end_reason run)" signal
goes_on "two ranks stopped" 2 $(($(last_step run) + 5)) ranks-reference --set batch.micro=1

# Any rank will do.
start log "$root/scripts/run.sh" -n 2 "${long[@]}" --set batch.micro=1
until_true logged log '^step '
kill -TERM "$(train_processes "$job" | tail -n 1)"
wait "$job"
code=$?
ends_with "SIGTERM to one rank of two" 75
says_once "SIGTERM to one rank of two: one answer" '^SIGTERM: stopping after this step'
says "SIGTERM to one rank of two: named at the end" '^train: exit 75 (SIGTERM, saved'

# A second signal ends at once: while the first waits for a step that does not end in time.
rm -rf run
start log "$binary" "${long[@]}" --set batch.global=200000 --set batch.micro=1
until_true logged log '^ *rank '
kill -TERM "$job"
until_true taken "$job"
until_true logged log '^SIGTERM: stopping'
check "the first is answered while the step goes on" kill -0 "$job"
kill -TERM "$job"
wait "$job"
check "a second signal ends with 128 + its number" [ $? = 143 ]

rm -rf run
start log "$binary" "${long[@]}"
until_true logged log '^step '
touch run/stop
wait "$job"
code=$?
ends_with "the stop file" 0
says "the stop file: named at the end" '^train: exit 0 (stop file, saved)'
check "the stop file is removed" [ ! -e run/stop ]
check "the stop file is on record" same "$(end_reason run)" stop_file
check "stopped with a save" [ -e "$(folder_of run "$(last_step run)")/manifest.json" ]
rm -rf run
train "${long[@]}" --set run.exit_after_minutes=0.001
ends_with "exit_after_minutes" 75
says "exit_after_minutes: named at the end" '^train: exit 75 (.*time limit, saved, please requeue)'
check "the time is on record" same "$(end_reason run)" time

# A live run holds its directory.
rm -rf run
start held "$binary" "${long[@]}"
until_true logged held '^step '
train base.json
ends_with "a second run of the directory" 3
says "it names host and process" "$(hostname).*$job\|$job.*$(hostname)"
check "the first run lives on" kill -0 "$job"
kill -TERM "$job"
wait "$job"
check "and ends as it would" [ $? = 75 ]

# What run.resume may say.
rm -rf run
train base.json --set run.resume=must
ends_with "resume must without a checkpoint" 74
train base.json --set checkpoint.interval_steps=5 --set checkpoint.keep_last=0
cp -r run whole
train base.json
ends_with "a finished run" 0
says "a finished run says so" 'is saved in'
says "a finished run: named at the end" '^train: exit 0 (finished)'
check "a finished run writes no steps" same "$(steps_of run)" "$(steps_of whole)"
train base.json --set run.resume=10 --set checkpoint.keep_last=0
ends_with "resume at a step" 0
says "a run to its end: named there" '^train: exit 0 (finished)'
says "resume at a step says so" 'from step 10 '
says_once "and that a later one stands" 'warning: .*step-00000020 is later than step 10'
same_run "resume at a step" run 20 whole
check "each step once after going back" [ "$(steps_of run | wc -l)" = 20 ]
train base.json --set run.resume=7
ends_with "a step that is not there" 74
says "it is named" 'step-00000007'
train base.json --set run.directory=other --set run.resume=whole/checkpoints/step-00000015
ends_with "resume from a directory" 0
says "the directory is named" 'from step 15 .*whole/checkpoints/step-00000015'
check "its steps are those" same "$(steps_of other)" "$(steps_of whole | tail -n 5)"
train base.json --set run.directory=never --set run.exit_at_step=5
train base.json --set run.directory=never --set run.resume=never
ends_with "resume never" 0
check "resume never begins at 1" same "$(steps_of never)" "$(steps_of whole)"

# Changes between two parts of a run.
train base.json --set run.resume=10 --set optimizer.lr=0.001 --set run.exit_at_step=12
ends_with "another learning rate" 0
says "exit_at_step: named at the end" '^train: exit 0 (run.exit_at_step, saved)'
says "the change is printed" '^optimizer.lr: 0.003 -> 0.001'
train base.json --set run.resume=12 --set run.steps=22 --set checkpoint.keep_last=2 --set checkpoint.keep_every_steps=7 \
  --set checkpoint.interval_steps=1
ends_with "more steps" 0
says "the change of steps is printed" '^run.steps: 20 -> 22'
says "and that of the rate, back" '^optimizer.lr: 0.001 -> 0.003'
says "and that of what is kept" '^checkpoint.keep_last: 3 -> 2'
check "an unchanged key is not printed" lacks "$(cat log)" 'batch.global:'
check "keep_last and keep_every_steps" same "$(ls run/checkpoints | tr '\n' ' ')" \
  'step-00000014 step-00000021 step-00000022 '
train base.json --set model.hidden_size=64
ends_with "another model" 2
says "what changed is named" 'model.hidden_size: 32 .*64'
train base.json --set model.num_hidden_layers=1 --set run.resume=must
ends_with "fewer layers" 2
sed -e 's/"global": 4, //' base.json >derived.json
train derived.json --set run.directory=derived --set run.exit_at_step=4
ranks 2 derived.json --set run.directory=derived
ends_with "another global batch through another rank count" 2
says_once "batch.global is what to set" 'batch.global'
finish
