#!/bin/sh
# mpirun.sh RANKS PROGRAM [ARGUMENTS]: one thread a rank, also as root and on fewer cores than ranks. More options for
# mpirun: TEST_MPIRUN_OPTIONS.
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_reachable="${OMPI_MCA_reachable-weighted}"  # as scripts/run.sh says
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1
# Open MPI frees little of what it allocates; leaks of our own show in the tests of one process.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
export TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}suppressions=$(cd "$(dirname "$0")" && pwd)/tsan_suppressions.txt"
# shellcheck disable=SC2086  # words
exec mpirun --oversubscribe --bind-to none ${TEST_MPIRUN_OPTIONS-} -n "$ranks" "$@"
