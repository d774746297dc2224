#!/usr/bin/env bash
# Sets up, builds and tests.
#
#   scripts/test.sh                         what proves most for its time: 12 minutes on two cores, from nothing
#   scripts/test.sh --all [ctest options]   every test but those of label `night`, under 40 minutes; what CI runs
#
#   --preset NAME   of CMakePresets.json (cpu-release), before --all
#
# No Python is needed and no network but for packages that are missing. Options of ctest choose among all tests, as in
# `scripts/test.sh --all -R dataset`; without --all the tests of label `quick` run (tests/README.md).
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac

preset=cpu-release targets=(--target quick_tests) choice=(--label-regex '^quick$')
if [ "${1-}" = --preset ] && [ $# -ge 2 ]; then
  preset=$2
  shift 2
fi
if [ "${1-}" = --all ]; then
  shift
  targets=() choice=(--label-exclude '^night$' "$@")
elif [ $# -gt 0 ]; then
  echo "scripts/test.sh: $1: not known (--help); options of ctest follow --all" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "$(nproc)" "${targets[@]}"
exec ctest --preset "$preset" --output-on-failure "${choice[@]}"
