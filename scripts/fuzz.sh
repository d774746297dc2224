#!/usr/bin/env bash
# Builds the fuzzers of tests/fuzz with clang (address and undefined-behaviour sanitizers) and runs them.
#
# usage: scripts/fuzz.sh [--seconds N] [--jobs N] [READER...]
#   --seconds N   how long each reader is attacked (60); 0 builds and replays only
#   --jobs N      how many at once (half of the processors)
#   --find-clang  only says which compiler it takes
#   READER        config indexed safetensors tokenizer manifest checkpoint (all)
#
# Inputs that found something new stay in build/fuzzers/corpus and are the next run's start. A finding ends its
# reader's run; its input lies in build/fuzzers/findings and, made small, belongs into tests/fuzz/regressions.
# Ends with 0, with 1 where anything was found, with 3 where this machine has no clang with libFuzzer.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=60
only_find=false
jobs=$(($(nproc) / 2))
readers=()
while (($#)); do
  case "$1" in
  --seconds) seconds=$2 && shift ;;
  --jobs) jobs=$2 && shift ;;
  --find-clang) only_find=true ;;
  -*) sed -n '2,10s/^# \?//p' "$0" >&2 && exit 2 ;;
  *) readers+=("$1") ;;
  esac
  shift
done
((${#readers[@]})) || readers=(config indexed safetensors tokenizer manifest checkpoint)
((jobs > 0)) || jobs=1

find_clang() {
  local name
  for name in "${CLANGXX:-}" clang++ clang++-{20,19,18,17,16,15,14}; do
    [[ $name ]] && command -v "$name" >/dev/null || continue
    # The package of the compiler comes without libFuzzer.
    echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
      "$name" -x c++ -fsanitize=fuzzer,address,undefined - -o "$scratch/probe" 2>/dev/null || continue
    echo "$name"
    return
  done
  return 1
}

# In memory where there is room: each input becomes a few files.
scratch=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$scratch"' EXIT
if ! clang=$(find_clang); then
  echo "fuzz: no clang with libFuzzer here (scripts/setup.sh --fuzz installs it)" >&2
  exit 3
fi

if $only_find; then echo "$clang" && exit 0; fi

build=$PWD/build/fuzzers
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
cmake -S . -B "$build" -G Ninja -DTRIREME_FUZZ=ON "-DTRIREME_WERROR=${TRIREME_WERROR:-OFF}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$clang" \
  -DCMAKE_C_COMPILER="${clang/clang++/clang}" "${launcher[@]}" >/dev/null
cmake --build "$build" --parallel "$(nproc)" --target fuzz_seeds "${readers[@]/#/fuzz_}"
"$build/fuzz_seeds" tests/golden configs "$build/seeds"

export TMPDIR=$scratch
# One reader: first all that is known, once; then new inputs. The process is the reader's own, so that memory it
# keeps is seen; what one input may take is bounded by malloc_limit_mb, its time by the harness.
attack() {
  local reader=$1 corpus=$build/corpus/$1 findings=$build/findings/$1 log=$scratch/$1.log
  mkdir -p "$corpus" "$findings" "$scratch/$reader"
  cd "$scratch/$reader"
  local code=0
  local -a options=(-timeout=60 -rss_limit_mb=2048 -malloc_limit_mb=256 -max_len=16384 -print_final_stats=1
    "-artifact_prefix=$findings/")
  "$build/fuzz_$reader" "${options[@]}" -runs=0 "$OLDPWD/tests/fuzz/regressions/$reader" "$build/seeds/$reader" \
    >"$log" 2>&1 || code=$?
  if ((code == 0 && seconds > 0)); then
    "$build/fuzz_$reader" "${options[@]}" "-max_total_time=$seconds" "-dict=$build/seeds/$reader.dict" "$corpus" \
      "$OLDPWD/tests/fuzz/regressions/$reader" "$build/seeds/$reader" >"$log" 2>&1 || code=$?
  fi
  if ((code)); then
    tail -n 60 "$log" >&2
    echo "fuzz: $reader: FOUND SOMETHING (exit $code), input in $findings"
    return 1
  fi
  local runs coverage
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -n 1 || true)
  echo "fuzz: $reader: nothing in $seconds s, ${runs:-0} inputs, ${coverage:-no coverage}"
}

# At most `jobs` at once, in order.
failed=0
for reader in "${readers[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n || failed=1; done
  (attack "$reader") &
done
while (($(jobs -p | wc -l))); do wait -n || failed=1; done
exit "$failed"
