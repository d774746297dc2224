#!/usr/bin/env bash
# scripts/run.sh against a stand-in for the trainer, under the real mpirun and a fake one that shows its arguments.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
export OMPI_MCA_btl_vader_single_copy_mechanism=none FAKE_DIRECTORY
run=$root/scripts/run.sh
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fresh() {
  FAKE_DIRECTORY=$(mktemp -d -p "$scratch")
}
ln -s "$here/fake_train.sh" "$scratch/train"
export TRIREME_TRAIN=$scratch/train

# The code of the ranks is the code of the script; arguments arrive as they were.
for code in 0 3 74; do
  fresh
  "$run" -n 2 exit $code "with space" '--set' 'a.b={"c": 1}' >"$scratch/log" 2>&1
  check "exit $code comes through" [ $? = $code ]
  check "arguments arrive unchanged" [ "$(tail -n 3 "$FAKE_DIRECTORY/arguments.0")" = $'with space\n--set\na.b={"c": 1}' ]
done
fresh
(cd "$scratch" && TRIREME_TRAIN=train "$run" -n 1 exit 4 >log 2>&1)
check "a relative TRIREME_TRAIN works" [ $? = 4 ]

# Each signal becomes one SIGUSR1 on every rank, and the script waits for the end.
for signal in INT TERM USR1; do
  fresh
  env --default-signal=INT "$run" -n 2 wait 1 75 >"$scratch/log" 2>&1 &
  script=$!
  wait_for "$FAKE_DIRECTORY/ready.0"
  wait_for "$FAKE_DIRECTORY/ready.1"
  kill -$signal $script
  wait $script
  check "SIG$signal ends with 75" [ $? = 75 ]
  check "SIG$signal reached both ranks" [ "$(ls "$FAKE_DIRECTORY" | grep -c '^signal.1')" = 2 ]
done

# A second signal follows the first.
fresh
"$run" -n 2 wait 2 138 >"$scratch/log" 2>&1 &
script=$!
wait_for "$FAKE_DIRECTORY/ready.0"
wait_for "$FAKE_DIRECTORY/ready.1"
kill -TERM $script
wait_for "$FAKE_DIRECTORY/signal.1.0"
wait_for "$FAKE_DIRECTORY/signal.1.1"
kill -TERM $script
wait $script
check "a second signal is forwarded, too" [ $? = 138 ]

# A signal while ranks are starting waits until they listen.
fresh
"$run" -n 2 wait 1 75 late >"$scratch/log" 2>&1 &
script=$!
wait_for "$FAKE_DIRECTORY/starting.0"
wait_for "$FAKE_DIRECTORY/starting.1"
kill -USR1 $script
: >"$FAKE_DIRECTORY/sent"
wait $script
check "an early signal kills no rank" [ $? = 75 ]

# Options of mpirun, seen by a fake one.
cat >"$scratch/mpirun" <<'FAKE'
#!/bin/sh
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit; fi
echo "arguments: $*"
echo "session: $(cut -d' ' -f6 /proc/self/stat)"
FAKE
chmod +x "$scratch/mpirun"
export TRIREME_MPIRUN=$scratch/mpirun
one=$("$run" -n 1 c.json)
many=$("$run" -n 4096 c.json)
check "one rank is not pinned to one core" contains "$one" "-n 1 --bind-to none"
check "one rank does not oversubscribe" lacks "$one" OVERSUBSCRIBE
check "more ranks than cores oversubscribe" contains "$many" OVERSUBSCRIBE
if [ "$(id -u)" = 0 ]; then
  check "root may run as root" contains "$one" --allow-run-as-root
else
  check "others do not ask for it" lacks "$one" --allow-run-as-root
fi
check "mpirun has a session of its own" lacks "$one" "session: $(cut -d' ' -f6 /proc/self/stat)"

# What is refused.
for arguments in "" "c.json" "-n" "-n 2" "-n 0 c.json" "-n two c.json" "-n -1 c.json"; do
  # shellcheck disable=SC2086
  "$run" $arguments >"$scratch/log" 2>&1
  check "'$arguments' is a usage error" [ $? = 2 ]
done
TRIREME_TRAIN=$scratch/nothing "$run" -n 1 c.json 2>"$scratch/log"
check "a missing binary is exit 3" [ $? = 3 ]
check "and named" contains "$(cat "$scratch/log")" "$scratch/nothing"
TRIREME_MPIRUN=$scratch/nothing "$run" -n 1 c.json 2>"$scratch/log"
check "a missing mpirun is exit 3" [ $? = 3 ]
finish
