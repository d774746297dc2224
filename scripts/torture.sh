#!/usr/bin/env bash
# Everything that happens to checkpoints, in full: ranks killed at every call of a save, calls refused, full disks, damaged
# files, every mesh to every other, ranks stopped in every phase, restarts under random deaths, ten thousand steps that save
# every ten. Hours; the tests run a part of each in seconds. Prints a table as it goes; the exit code is 1 where anything was lost, wrong or hung.
#
# usage: scripts/torture.sh [--build DIR] [--output DIR] [--every N] [--ranks "1 2 4"] [--async "false true"] [--only STAGES]
#   DIR      build/cpu-release; --output keeps README.md and the logs
#   N        of whole runs only each N-th call is hit on 4 ranks and more (1); of refused calls each 16 N-th
#   STAGES   of "calls kills refuse full damage meshes hangs restarts soak", apart by spaces (all)
set -uo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
cd "$(dirname "$0")/.."
build=build/cpu-release output='' every=1 ranks='1 2 4' asynchronous='false true'
only='calls kills refuse full damage meshes hangs restarts soak'
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || { echo "$1: not known, or without a value" >&2 && exit 2; }
  case $1 in
  --build) build=$2 ;; --output) output=$2 ;; --every) every=$2 ;; --ranks) ranks=$2 ;; --async) asynchronous=$2 ;;
  --only) only=$2 ;;
  *) echo "unknown option $1" >&2 && exit 2 ;;
  esac
  shift 2
done
build=$(realpath "$build")
logs=${output:-$(mktemp -d)}
mkdir -p "$logs"
table=$logs/README.md
failed=0
tell() { printf '%s\n' "$*" | tee -a "$table"; }
wanted() { [[ " $only " == *" $1 "* ]]; }
# stage NAME COMMAND...: its output to a log of that name; rows of the table out of it.
stage() {
  local name=$1 begin=$SECONDS row
  shift
  if ! "$@" >"$logs/$name.log" 2>&1; then
    failed=1
    tell "| **failed: $name** | | | | | | $((SECONDS - begin)) |"
  fi
  seconds=$((SECONDS - begin))
  grep '^row|' "$logs/$name.log" | while IFS='|' read -r _ what trials lost phantom wrong hung; do
    tell "| $what | $trials | $lost | $phantom | $wrong | $hung | |"
  done
}
# said NAME PATTERN: lines of a stage's log as rows.
said() {
  grep -h "$2" "$logs/$1.log" | while read -r line; do tell "| $line | | | | | | $seconds |"; done
}

: >"$table"
tell "# Torture of checkpoints"
tell ""
tell "By \`scripts/torture.sh --every $every --ranks \"$ranks\" --async \"$asynchronous\" --only \"$only\"\`, $(date +%F), commit $(git rev-parse --short HEAD 2>/dev/null)$(git diff --quiet HEAD -- src 2>/dev/null || echo ' and changes')."
tell ""
tell "| what | trials | lost | phantom | wrong | hung | seconds |"
tell "|---|---|---|---|---|---|---|"
torture=tests/e2e/torture_test.sh
preload=$build/tests/libfaults_preload.so
# Every call of every rank of 1, 2 and 4, by ranks that are forked; whole runs under a launcher follow.
if wanted kills; then
  stage killed-ranks env LD_PRELOAD="$preload" "$build/checkpoint_tests" --gtest_filter='*KilledRanks*'
fi
for n in $ranks; do
  if wanted calls; then
    stage "calls-$n" tests/support/mpirun.sh "$n" env LD_PRELOAD="$preload" "$build/checkpoint_mpi_tests" \
      --gtest_filter='FaultsOnRanks.*'
    said "calls-$n" '^refused calls on'
  fi
  step=$every
  [ "$n" -ge 4 ] || step=1
  for background in $asynchronous; do
    name=$n-async-$background
    ! wanted kills || stage "kills-$name" $torture "$build/train" "$preload" kill "$n" "$step" "$background"
    ! wanted refuse || stage "refuse-$name" $torture "$build/train" "$preload" refuse "$n" $((16 * every)) "$background"
    ! wanted full || stage "full-$name" $torture "$build/train" "$preload" full "$n" 1 "$background"
  done
done
if wanted damage; then
  stage damage env TRIREME_DAMAGE_TRIALS=1000 "$build/checkpoint_tests" --gtest_filter='*Damage.*:SavingUnderFaults.*'
  said damage '^damaged checkpoints'
fi
if wanted meshes; then
  stage meshes env TRIREME_RESHARD=all tests/support/mpirun.sh 8 "$build/train_mpi_tests" --gtest_filter='Reshard.*'
  said meshes 'ordered pairs of'
fi
if wanted hangs; then
  stage hangs tests/e2e/hang_product_test.sh "$build/train" "$build/stop_in_phase" "$build/tests/libslow_fsync.so" 3
fi
if wanted restarts; then
  stage restarts tests/e2e/restarts_test.sh "$build/train" 500 7
  said restarts 'steps in .* lives'
fi
if wanted soak; then
  stage soak tests/e2e/soak_test.sh "$build/train" 10000 10
  said soak '^\(memory\|threads\|open descriptors\|bytes\|files\).* early, '
fi
exit $failed
