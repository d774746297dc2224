#!/usr/bin/env bash
# watchdog_test.sh HANG_PROGRAM: jobs that hang end with 124 and one report that names the rank and where it stands; the
# real program: e2e/hangs_test.sh.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
program=$1
mpirun=$root/tests/support/mpirun.sh

hang() {
  local -i begin
  begin=$(date +%s%N)
  "$mpirun" 3 "$program" 2 "$@" >"$scratch/log" 2>&1
  code=$?
  begin=$((($(date +%s%N) - begin) / 1000000))
  log=$(tr -d '\0' <"$scratch/log")
  check "$*: the job ends with 124" [ "$code" = 124 ]
  in_time "$*: it ends, after a deadline of 2 s" $begin
  check "$*: the closing line stands once" [ "$(grep -c '^train: exit 124 (' "$scratch/log")" = 1 ]
  check "$*: a line for each rank" [ "$(grep -c '^  rank [012] on .*last progress' "$scratch/log")" = 3 ]
}
# Every class of ranks, every phase: two phases with all ranks, the others with one.
stopped() { # RANK PHASE STEP
  hang "$1" "stop:$2"
  check "rank $1 stopped in $2 is named" contains "$log" \
    "Without progress: rank $1 (stopped (SIGSTOP or a debugger); $3, phase $2)"
}
for rank in 0 1 2; do stopped $rank backward_input "step 4"; done
stopped 0 start "before the first step"
stopped 1 forward "step 4"
stopped 2 communication "step 4"
stopped 0 evaluation "step 4"
stopped 1 checkpoint "step 4"

hang 1 sleep
check "a rank that hangs is named with its phase" \
  contains "$log" "Without progress: rank 1 (alive; step 4, phase backward_input)"
check "the collective of the others is named" contains "$log" "phase communication, in all_reduce #"
check "and who is not in it" contains "$log" \
  "Rank 0, 2 wait in all_reduce 4 of 391 KiB on forward, which rank 1 never entered."
check "that may be slowness" contains "$log" "raise run.hang_timeout_seconds"

# Ranks in different places of the program are told from slow ones.
out_of_step() { # WHAT TEXT
  hang 1 "$1"
  check "$1: told from slowness" contains "$log" "Collectives out of step: $2"
  check "$1: no longer timeout is advised" lacks "$log" "raise run.hang_timeout_seconds"
}
out_of_step size "rank 0 entered all_reduce 4 of 391 KiB on forward, rank 1 all_reduce 4 of 11.4 MiB on forward"
out_of_step operation "rank 0 entered all_reduce 4 of 391 KiB on backward, rank 1 all_gather 4 of 22.9 MiB on backward"
out_of_step order "rank 0 waits in all_reduce 4 of 391 KiB on forward, rank 1 in all_reduce 4 of 391 KiB on backward"

hang 1 writer
check "a writer that stands still beside the steps is named" \
  contains "$(sed 's/step [45],/step N,/' <<<"$log")" \
  "rank 1 (the thread that writes its checkpoint; step N, phase checkpoint)"
"$mpirun" 3 "$program" 2 1 none >"$scratch/log" 2>&1
check "a job that goes on is left alone" [ $? = 0 ]
check "and nothing is said" [ ! -s "$scratch/log" ]

# A launcher that leaves the others waiting when one dies: they see that it is gone.
case $(mpirun --version) in
*"(Open MPI) 4."*) export OMPI_MCA_orte_abort_on_non_zero_status=0 ;;
*) export TEST_MPIRUN_OPTIONS=--continuous ;;
esac
declare -i begin
begin=$(date +%s%N)
timeout 60 "$mpirun" 3 "$program" 300 1 die >"$scratch/log" 2>&1
check "a rank that dies ends the others" [ $? != 124 ]
begin=$((($(date +%s%N) - begin) / 1000000))
in_time "the others end after its death, start and all" $begin
check "it is named with its phase" contains "$(cat "$scratch/log")" "gone: step 4, phase forward"
finish
