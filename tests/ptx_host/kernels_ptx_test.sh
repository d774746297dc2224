#!/usr/bin/env bash
# Every kernel's tests on the PTX that nvcc makes, without contraction, with the bits of the host execution. (As it is
# shipped: scripts/nightly.sh.) Then a training run on it, recorded as a graph, beside the CPU's.
#   kernels_ptx_test.sh CMAKE BUILD_FOLDER
build=$2
"$1" --build "$build" --parallel "$(nproc)" --target kernels_ptx_tests train train_ptx || exit 1
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/check.sh"
filter=--gtest_filter=-Simd*:*OpWork*:*Product*
tests() { # NAME ENVIRONMENT...: into $scratch/NAME.log
  name=$1 && shift
  env "$@" "$build/$name" $filter >"$scratch/$name.log" 2>&1
}
tell() { # NAME
  [ $code = 0 ] || grep -E "FAILED|ptx_host:|Failure" -A4 "$scratch/$1.log" | tail -n 60
  sed -n 's/^\[==========\] \(.* ran\)/  \1/p' "$scratch/$1.log"
}
tests kernels_ptx_tests TRIREME_TEST_ALIGNED=1 TRIREME_RECORD_BITS="$scratch/bits"
code=$?
tell kernels_ptx_tests
check "PTX without contraction" [ $code = 0 ]
if [ -f "$build/kernels_simt_aligned.bits" ] && command -v python3 >/dev/null; then
  python3 "$root/tests/ptx_host/compare_bits.py" "$build/kernels_simt_aligned.bits" "$scratch/bits"
  check "the bits of the host execution" [ $? = 0 ]
  # The comparison finds a tensor that differs.
  sed '/GradNorm/s/ [0-9a-f]*$/ 0123456789abcdef/' "$scratch/bits" >"$scratch/other_bits"
  python3 "$root/tests/ptx_host/compare_bits.py" "$scratch/other_bits" "$scratch/bits" >"$scratch/log"
  check "another bit is found" [ $? = 1 ]
else
  echo "bits are not compared: kernels_simt_aligned has not run, or there is no python3"
fi
(filter="--gtest_filter=*tensor_core*" && tests kernels_ptx_tests TRIREME_PTX_SUMS=tensor-core)
check "fp8 products with a tensor core's sums" [ $? = 0 ]

losses() { # PROGRAM DEVICE
  "$build/$1" "$root/configs/tiny_llama.json" --set run.directory="$scratch/$1" --set run.device="$2" --set run.steps=6 \
    --set data.train=synthetic --set data.sequence_length=32 --set evaluation.interval_steps=0 >"$scratch/$1.log" 2>&1 || cat "$scratch/$1.log" >&2
  sed -n 's/^{"kind":"step",.*"loss":\([^,]*\),.*/\1/p' "$scratch/$1/metrics.jsonl"
}
check "six steps of a run have the losses of the CPU, in bf16" \
  awk '{ d = $1 - $2; if (d < 0) d = -d; if (!($2 > 0 && d <= 4e-3 * $2)) exit 1; ++n } END { exit n != 6 }' \
  <(paste <(losses train_ptx cuda-host) <(losses train cpu))
finish
