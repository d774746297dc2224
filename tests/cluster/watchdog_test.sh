#!/usr/bin/env bash
# watchdog_test.sh HANG_PROGRAM: jobs that hang end with 124 and one report that names the rank.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
program=$1
mpirun=$root/tests/support/mpirun.sh

hang() {
  "$mpirun" 3 "$program" 2 "$@" >"$scratch/log" 2>&1
  code=$?
  log=$(cat "$scratch/log")
  check "$*: the job ends with 124" [ "$code" = 124 ]
  check "$*: the closing line stands once" [ "$(grep -c '^train: exit 124 (' "$scratch/log")" = 1 ]
}
for rank in 0 1 2; do
  hang $rank stop
  check "rank $rank stopped is named" contains "$log" "Without progress: rank $rank (stopped (SIGSTOP"
done
hang 1 sleep
check "a rank that hangs is named with its phase" \
  contains "$log" "Without progress: rank 1 (alive; step 4, phase backward_input)"
check "the collective of the others is named" contains "$log" "phase communication, in all_reduce #"
"$mpirun" 3 "$program" 2 1 none >"$scratch/log" 2>&1
check "a job that goes on is left alone" [ $? = 0 ]
check "and nothing is said" [ ! -s "$scratch/log" ]
finish
