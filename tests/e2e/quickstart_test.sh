#!/usr/bin/env bash
# quickstart_test.sh TRAIN: the newcomer's script, shortened: a model of its size, interrupted on two ranks, resumed,
# evaluated, sampled, exported.
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/check.sh"
TRIREME_TRAIN=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
export TRIREME_TRAIN NO_COLOR=1
cat "$root"/README.md "$root"/src/README.md "$root"/configs/README.md "$root"/kernels/README.md >"$scratch/text.txt"

quickstart() {
  "$root/scripts/quickstart.sh" --text "$scratch/text.txt" --directory "$scratch/$1" --steps "$2" >"$scratch/log" 2>&1
  code=$?
  log=$(cat "$scratch/log")
}
quickstart whole 40
check "it ends well" [ "$code" = 0 ]
check "no noise of the launcher" lacks "$log" "Primary job"
check "nor any other" lacks "$log" "detected that one or more"
check "it was interrupted" contains "$log" "Exit code 75: saved."
check "and went on" contains "$log" "resuming from step"
check "every step stands once" \
  [ "$(grep -o '^{"kind":"step","step":[0-9]*' "$scratch/whole/run/metrics.jsonl" | sort -u | wc -l)" = 40 ]
check "no step stands twice" [ "$(grep -c '^{"kind":"step"' "$scratch/whole/run/metrics.jsonl")" = 40 ]
check "the export is there" [ -s "$scratch/whole/huggingface/model.safetensors" ]
find "$scratch/whole" -type f -exec md5sum {} + | sort >"$scratch/before"
quickstart whole 40
check "into a folder that is not empty: refused" [ "$code" = 2 ]
check "and told" contains "$log" "is not empty"
check "and untouched" [ "$(find "$scratch/whole" -type f -exec md5sum {} + | sort)" = "$(cat "$scratch/before")" ]
mkdir "$scratch/short"
head -c 30000 "$scratch/text.txt" | gzip >"$scratch/short.txt.gz"
"$root/scripts/quickstart.sh" --text "$scratch/short.txt.gz" --directory "$scratch/short" --steps 1 >"$scratch/log" 2>&1
check "30 KB, packed, an empty folder, one step: it ends well, too" [ $? = 0 ]
seq -f 'And the evening and the morning were the day %g.' 50 >"$scratch/tiny.txt"
"$root/scripts/quickstart.sh" --text "$scratch/tiny.txt" --directory "$scratch/tiny" --steps 1 >"$scratch/log" 2>&1
check "2 KB: refused" [ $? = 2 ]
check "2 KB: plainly" grep -q 'too small.*30 KB at least' "$scratch/log"
for arguments in "--steps" "--steps none" "--text"; do
  # shellcheck disable=SC2086
  "$root/scripts/quickstart.sh" $arguments >"$scratch/log" 2>&1
  check "'$arguments' is a usage error" [ $? = 2 ]
done
# What is built where: programs of these names stand for a GPU's and CMake.
stand_in() { # NAME TEXT
  printf '#!/bin/sh\n%s\n' "$2" >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}
built() { # WHAT PRESET SENTENCE: what would be built, with what is in $scratch/bin
  env -u TRIREME_TRAIN PATH="$scratch/bin:$PATH" "$root/scripts/quickstart.sh" --text "$scratch/text.txt" --directory "$scratch/built" >"$scratch/log" 2>&1
  check "$1: built by $2" grep -q "^--preset $2 " "$scratch/log"
  check "$1: said" grep -q "$3" "$scratch/log"
}
mkdir "$scratch/bin"
stand_in cmake 'echo "$@"; exit 1'
stand_in nvidia-smi 'echo "GPU 0: NVIDIA H100"'
if [ "$(id -u)" = 0 ] && command -v nvcc >/dev/null; then # what is missing would be installed
  built "a GPU and a toolkit" cuda-release "A GPU and a CUDA toolkit are here: train is built for the GPU"
fi
stand_in nvidia-smi 'exit 9'
built "no GPU" cpu-release "== Setting up"
finish
