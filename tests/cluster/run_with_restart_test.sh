#!/usr/bin/env bash
# scripts/run_with_restart.sh around a stand-in that lives and dies as told; with the real program: e2e/restarts_test.sh.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
export FAKE_DIRECTORY
restart=$root/scripts/run_with_restart.sh
fake=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/fake_run.sh

# lives LINE...: a fresh folder in which the k-th life does LINE: SAVED_STEP STEP_IN_METRICS END.
lives() {
  FAKE_DIRECTORY=$(mktemp -d -p "$scratch")
  printf '%s\n' "$@" >"$FAKE_DIRECTORY/lives"
  printf '{ // a config\n "run":\n  {"seed": 1, "directory": "%s/run"}, "model": {"directory": "no"}}\n' "$FAKE_DIRECTORY" \
    >"$FAKE_DIRECTORY/run.json"
  directory=(--directory "$FAKE_DIRECTORY/run")
}
run() {
  timeout 60 "$restart" --delay 0.05 "$@" >"$scratch/log" 2>&1
  code=$?
  count=$(cat "$FAKE_DIRECTORY/count" 2>/dev/null || echo 0)
}
ends() { # WHAT CODE LIVES
  check "$1: code $2 after $3 lives" [ "$code $count" = "$2 $3" ]
  [ "$code $count" = "$2 $3" ] || sed 's/^/    /' "$scratch/log"
}
log_says() { check "$1" grep -q -e "$2" "$scratch/log"; }

for end in 0 2 4 74; do
  lives "- - $end" "- - 0"
  run "${directory[@]}" "$fake"
  ends "exit $end ends it" $end 1
done
for end in 75 124 137 134 139 143 70 71 1 KILL SEGV ABRT; do
  lives "5 - $end" "- - 0"
  run "${directory[@]}" "$fake"
  ends "$end starts it again" 0 2
done
log_says "it prints how a life ended" 'life 1 ended after [0-9]* s at step 5 with 134 (signal ABRT): again in 0.05 s'
lives "- - 3" "- - 0"
run "${directory[@]}" "$fake"
ends "3 at first ends it" 3 1
lives "5 - 137" "- - 3" "- - 0"
run "${directory[@]}" "$fake"
ends "3 after a restart may pass" 0 3
lives "5 - 75" "- - 0"
run "${directory[@]}" --end-on 75,70 "$fake"
ends "--end-on 75" 75 1
# A launcher that starts nothing and says 0.
lives "5 6 75" "- - 0" "- 7 0" "- - 4"
run --recorded "${directory[@]}" "$fake"
ends "--recorded: 0 counts where something was recorded" 0 3
log_says "it says why it goes on" 'with 1 (in place of 0: it recorded nothing.*again in'
lives "- - 0" "- - 0" "- - 0" "- 1 0"
run --recorded "${directory[@]}" "$fake"
ends "--recorded: three lives that record nothing are no success" 1 3
lives "- - 0"
run "${directory[@]}" env
log_says "mpirun is told to miss a host that is cut off" '^OMPI_MCA_oob_tcp_keepalive_time=10$'
run "${directory[@]}" "$scratch/absent"
check "no such command: 127" [ "$code" = 127 ]

# Progress: a newer checkpoint, or a step in the metrics beyond those before.
lives "- - 137" "- - 137" "- - 137" "- - 0"
run "${directory[@]}" "$fake"
ends "three lives without a step" 137 3
log_says "it says so" '3 lives in a row brought no step: ends'
log_says "the pause grows" 'again in 0.1 s, 2 of 3 without progress'
lives "- - 137" "- - 137" "10 - 137" "10 - 137" "10 12 137" "10 - 137" "10 11 137" "- - 137" "- - 0"
run "${directory[@]}" "$fake"
ends "progress counts anew" 137 8
lives "- - 137" "- - 137" "- - 0"
run "${directory[@]}" --cycles 2 "$fake"
ends "--cycles 2" 137 2
lives "7 - 0"
mkdir -p "$FAKE_DIRECTORY/run/checkpoints/step-00000009.tmp-1" "$FAKE_DIRECTORY/run/checkpoints/step-00000008"
run "${directory[@]}" "$fake"
log_says "a folder without a manifest is no checkpoint" 'at step 7 '
lives "5 - 75" "- - 0"
run --delay 1.5 "${directory[@]}" "$fake"
mapfile -t begins <"$FAKE_DIRECTORY/begins"
check "it waits before a restart" [ $(((begins[1] - begins[0]) / 1000000)) -ge 1500 ]

# run.directory from the command line, which arrives as it is.
lives "5 - 75" "- - 0"
run "$fake" "$FAKE_DIRECTORY/run.json" --set 'a.b={"c": 1}'
ends "the directory of the config" 0 2
log_says "its steps are seen" 'at step 5'
check "arguments arrive unchanged" [ "$(tail -n 2 "$FAKE_DIRECTORY/arguments")" = $'--set\na.b={"c": 1}' ]
other=$FAKE_DIRECTORY/run
lives "5 - 0"
run "$fake" "$FAKE_DIRECTORY/run.json" --set run.directory="$other" --set a=1
log_says "a --set wins" 'at step 5 '
"$restart" "$fake" nothing.json 2>"$scratch/log"
check "no directory: 2" [ $? = 2 ]
log_says "and what to give" '--directory'
for arguments in "" "--cycles 0 true" "--delay x true" "--end-on x true" "--nonsense true" "--cycles"; do
  # shellcheck disable=SC2086
  "$restart" $arguments 2>"$scratch/log"
  check "'$arguments' is a usage error" [ $? = 2 ]
done

# Signals: one SIGUSR1 for each, and no restart after.
for signal in INT TERM USR1; do
  lives "5 - wait1" "- - 0"
  env --default-signal=INT "$restart" "${directory[@]}" "$fake" >"$scratch/log" 2>&1 &
  script=$!
  wait_for "$FAKE_DIRECTORY/ready"
  kill -$signal $script
  wait $script
  code=$? count=$(cat "$FAKE_DIRECTORY/count")
  ends "SIG$signal" 75 1
done
lives "5 - wait2"
"$restart" "${directory[@]}" "$fake" >"$scratch/log" 2>&1 &
script=$!
wait_for "$FAKE_DIRECTORY/ready"
kill -TERM $script
wait_for "$FAKE_DIRECTORY/signal.1"
kill -TERM $script
wait $script
check "a second signal is forwarded, too" [ $? = 138 ]
lives "5 - 137" "- - 0"
"$restart" --delay 30 "${directory[@]}" "$fake" >"$scratch/log" 2>&1 &
script=$!
until grep -q 'again in' "$scratch/log"; do sleep 0.05; done
kill -TERM $script
wait $script
check "a signal in a pause ends it with 75" [ $? = 75 ]
lives "5 - wait1"
"$restart" --no-forward "${directory[@]}" "$fake" >"$scratch/log" 2>&1 &
script=$!
wait_for "$FAKE_DIRECTORY/ready"
kill -TERM $script
sleep 0.5
check "--no-forward: the command goes on" kill -0 $script
kill -USR1 "$(cut -d ' ' -f 1 "/proc/$script/task/$script/children")"
wait $script
check "--no-forward: its code, and no restart" [ $? = 75 ]

lives "5 - orphan" "- - 0"
run "${directory[@]}" "$fake"
ends "a life that leaves a process" 0 2
state=$(sed 's/.*) //' "/proc/$(cat "$FAKE_DIRECTORY/orphan")/stat" 2>/dev/null | cut -c 1)
check "what it left is killed" [ "${state:-Z}" = Z ]
log_says "it says so" 'killed now: process'
finish
