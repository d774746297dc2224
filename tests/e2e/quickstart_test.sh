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
check "it was interrupted" contains "$log" "Exit code 75: saved."
check "and went on" contains "$log" "resuming from step"
check "every step stands once" \
  [ "$(grep -o '^{"kind":"step","step":[0-9]*' "$scratch/whole/run/metrics.jsonl" | sort -u | wc -l)" = 40 ]
check "no step stands twice" [ "$(grep -c '^{"kind":"step"' "$scratch/whole/run/metrics.jsonl")" = 40 ]
check "the export is there" [ -s "$scratch/whole/huggingface/model.safetensors" ]
quickstart short 1
check "a run of one step ends well too" [ "$code" = 0 ]
finish
