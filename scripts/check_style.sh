#!/usr/bin/env bash
# Has clang-format and clang-tidy look for what they know of the house rules (CONTRIBUTING.md).
#
# usage: scripts/check_style.sh [--since COMMIT | --all]
#   (nothing)        the format of every tracked source (.clang-format)
#   --since COMMIT   that, and names and the other checks of .clang-tidy in the sources that differ from COMMIT
#   --all            that, and .clang-tidy in every source: half an hour of a core, as scripts/nightly.sh does
#
# STYLE_JOBS: how many run at once (all processors). STYLE_SOURCES_MAX: of more that differ from COMMIT only so many are
# looked at, and it says so (all). Both tools are of version 14, by which the tree is formatted: others break lines
# elsewhere. clang-tidy has the compiler's arguments from a tree of CMake's in build/style, where nothing is built, and
# looks at no source in CUDA's language, whose names are not ours.
#
# Ends with 1 where anything was found, with 3 where this machine lacks a tool (scripts/setup.sh --style installs them).
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac

since='' all=false
case ${1-} in
--since) [ $# = 2 ] || { echo "check_style: --since needs a commit" >&2 && exit 2; }
  since=$2 ;;
--all) all=true ;;
'') ;;
*) echo "check_style: $1 is not known (--help)" >&2 && exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=${STYLE_JOBS:-$(nproc)} failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
say() { echo "check_style: $*" >&2; }

# find_tool NAME: the command of version 14.
find_tool() {
  local command
  for command in "$1-14" "$1"; do
    if "$command" --version 2>/dev/null | grep -q 'version 14\.'; then echo "$command" && return; fi
  done
  say "no $1 of version 14 here (scripts/setup.sh --style installs it)"
  return 3
}

format=$(find_tool clang-format)
git ls-files -z '*.cc' '*.h' '*.cu' '*.cuh' >"$scratch/sources"
xargs -0 -n 16 -P "$jobs" "$format" --dry-run --Werror <"$scratch/sources" || failed=1
if ! $all && [ -z "$since" ]; then exit "$failed"; fi

tidy=$(find_tool clang-tidy)
build=$PWD/build/style
if ! cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_CUDA=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  >"$scratch/cmake" 2>&1; then
  cat "$scratch/cmake" >&2
  exit 1
fi
# By what they include; there may be none.
{ git grep -lE '^#include "((kernels/)?simt_host/|[^"]*\.cuh")' -- '*.cc' '*.cu' || [ $? = 1 ]; } |
  sed "s|^|$PWD/|" >"$scratch/foreign"
sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$build/compile_commands.json" | sort -u |
  grep -vxFf "$scratch/foreign" >"$scratch/known"

# source_of HEADER: a known source by which it is read: its own, that which reads it alone, or one that includes it.
source_of() {
  local header=$1 candidate
  for candidate in "$PWD/${header%.*}.cc" "$build/tests/house/headers/${header//\//_}.cc"; do
    if grep -qxF "$candidate" "$scratch/known"; then echo "$candidate" && return; fi
  done
  header=${header#src/} header=${header#tests/}
  git grep -lF "#include \"$header\"" -- '*.cc' '*.cu' | sed "s|^|$PWD/|" | grep -xFf - "$scratch/known" | head -n 1
}

if $all; then
  grep -v "^$build/" "$scratch/known" >"$scratch/wanted"
else
  git diff --name-only --diff-filter=d "$since" -- '*.cc' '*.h' '*.cu' '*.cuh' >"$scratch/changed"
  while read -r path; do
    # clang 14 has no std::source_location, by which these tell where a fault is.
    case $path in kernels/simt_host/*.h) continue ;; esac
    if grep -qxF "$PWD/$path" "$scratch/known"; then
      echo "$PWD/$path"
    else
      source_of "$path" || say "$path: no source that includes it is compiled here"
    fi
  done <"$scratch/changed" | sort -u >"$scratch/wanted"
  count=$(wc -l <"$scratch/wanted")
  if [ "$count" -gt "${STYLE_SOURCES_MAX:-$count}" ]; then
    say "$count sources to look at: only $STYLE_SOURCES_MAX, the others with --all"
    sed -i "$STYLE_SOURCES_MAX"q "$scratch/wanted"
  fi
fi
# A header is told of by each source that includes it.
tr '\n' '\0' <"$scratch/wanted" | xargs -0 -r -n 1 -P "$jobs" "$tidy" -p "$build" --quiet --warnings-as-errors='*' \
  --header-filter="^$PWD/(src|kernels|tests)/" >"$scratch/found" 2>"$scratch/said" || failed=1
grep -E ': (error|warning): ' "$scratch/found" | sort -u >&2 || true
if [ "$failed" != 0 ] && [ ! -s "$scratch/found" ]; then cat "$scratch/said" >&2; fi
exit "$failed"
