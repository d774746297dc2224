#!/usr/bin/env bash
# Builds everything with each compiler that is here, says what each warned of, and trains two ranks with what it made.
#
# usage: scripts/check_compilers.sh [--target TARGET] [COMPILER]...
#   --target TARGET   in place of everything, e.g. train
#   COMPILER          g++-11, clang++-14 ... (all of g++-11 to g++-19 and clang++-14 to clang++-29 that are on the PATH, else
#                     g++ and clang++)
#
# The builds are in build/compilers. A table comes last; ends with 1 where a compiler warned or failed, or its program did.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=all compilers=()
while [ $# -gt 0 ]; do
  case $1 in
  --target) [ $# -gt 1 ] || { echo "check_compilers: --target needs a value" >&2 && exit 2; }
    target=$2 && shift ;;
  -*) echo "check_compilers: $1 is not known (--help)" >&2 && exit 2 ;;
  *) compilers+=("$1") ;;
  esac
  shift
done
if [ ${#compilers[@]} = 0 ]; then
  for name in g++-{11..19} clang++-{14..29}; do
    if command -v "$name" >/dev/null; then compilers+=("$name"); fi
  done
fi
if [ ${#compilers[@]} = 0 ]; then compilers=(g++ clang++); fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
failed=0 table=''
for compiler in "${compilers[@]}"; do
  build=$PWD/build/compilers/$compiler log=$PWD/build/compilers/$compiler.log begin=$(date +%s) result=trains
  mkdir -p build/compilers
  c=${compiler/clang++/clang}
  # What is built already would say nothing again.
  if [ -d "$build" ]; then find "$build" -name '*.o' -delete; fi
  echo "== $compiler" >&2
  if ! cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_CUDA=OFF -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_C_COMPILER="${c/g++/gcc}" "${launcher[@]}" >"$log" 2>&1; then
    result="CMake fails ($log)"
  elif ! cmake --build "$build" --parallel "$(nproc)" --target "$target" -- -k 0 >>"$log" 2>&1; then
    result="does not build ($log)"
  elif ! TRIREME_TRAIN=$build/train scripts/run.sh -n 2 configs/tiny_llama.json --set run.steps=5 \
    --set run.directory="$scratch/$compiler" >>"$log" 2>&1; then
    result="does not train ($log)"
  fi
  # Also of the linker, which sees all of the program at once.
  grep -E 'warning: |error: ' "$log" | sort | uniq -c | sort -rn >"$scratch/said" || true
  head -n 20 "$scratch/said" >&2
  warnings=$(wc -l <"$scratch/said")
  if [ "$warnings" != 0 ] || [ "$result" != trains ]; then failed=1; fi
  table+=$(printf '%-12s %-48s %9s %7s  %s' "$compiler" "$("$compiler" --version | head -n 1 | cut -c -48)" "$warnings" \
    "$(($(date +%s) - begin))" "$result")$'\n'
done
printf '%-12s %-48s %9s %7s  %s\n%s' compiler version warnings seconds result "$table"
exit "$failed"
