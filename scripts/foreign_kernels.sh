#!/usr/bin/env bash
# Runs kernels of other projects, which hardware has proved, on the interpreter of PTX (kernels/ptx_host), to the right numbers.
#
#   scripts/foreign_kernels.sh [options] [NAME...]      cutlass deep_gemm flash_attention_2 flash_attention_3 (the default), layouts, sums,
#                                                       flash_attention_3_backward
#
#   --cutlass FOLDER            a checkout of CUTLASS (include/, test/unit/); wanted by all but sums
#   --deep-gemm FOLDER          of DeepGEMM (deep_gemm/include/)
#   --flash-attention FOLDER    of FlashAttention (hopper/, csrc/flash_attn/src/)
#   --build FOLDER              a build of this project (default build/cpu-release)
#   --work FOLDER               where programs are built (default: a folder under --build)
#   --mutations N               then N single edits of each program's PTX: are they found?
#
# A checkout that is not named is cloned from GitHub. Nothing of theirs enters this tree; a line for each case and their
# versions are printed, for tests/bench/results. layouts and sums write the tables tests/golden/cute_layouts.txt and
# tensor_core_sums.txt anew (sums: python3 with torch and mmasim). flash_attention_3_backward compiles its kernels to machine
# code and prints their main loops (scripts/check_sass.py --scale). Needs nvcc; no GPU. CUTLASS' unit tests take minutes each.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/cpu-release work="" mutations=0 names=()
declare -A source=([cutlass]="" [deep_gemm]="" [flash_attention]="")
while [ $# -gt 0 ]; do
  case $1 in
  --cutlass) source[cutlass]=$2 && shift 2 ;;
  --deep-gemm) source[deep_gemm]=$2 && shift 2 ;;
  --flash-attention) source[flash_attention]=$2 && shift 2 ;;
  --build) build=$2 && shift 2 ;;
  --work) work=$2 && shift 2 ;;
  --mutations) mutations=$2 && shift 2 ;;
  -*) echo "foreign_kernels.sh: $1 is not known; see --help" >&2 && exit 2 ;;
  *) names+=("$1") && shift ;;
  esac
done
[ ${#names[@]} -gt 0 ] || names=(cutlass deep_gemm flash_attention_2 flash_attention_3)
work=${work:-$build/foreign_kernels}
mkdir -p "$work"
here=$root/tests/ptx_host/foreign
nvcc=$(sed -n 's/^TRIREME_NVCC:[A-Z]*=//p' "$build/CMakeCache.txt")
[ -n "$nvcc" ] || { echo "foreign_kernels.sh: $build was configured without nvcc" >&2 && exit 2; }

checkout() { # NAME URL: the folder, and its version on standard error
  folder=${source[$1]:-$work/$1}
  [ -d "$folder" ] || git clone -q --depth 1 "$2" "$folder"
  version=$(git -C "$folder" log -1 --format='%h of %cs' 2>/dev/null || echo "a folder without git")
  echo "# $1: $version" >&2
  echo "$folder"
}

cmake --build "$build" --target trireme_ptx_runtime >/dev/null
rm -f "$work/libptx.a"
ar rcs "$work/libptx.a" "$build"/CMakeFiles/trireme_ptx_runtime.dir/kernels/ptx_host/*.o
echo "# $("$nvcc" --version | sed -n 's/.*release \([^,]*\), V\(.*\)/nvcc \2/p'); interpreter of $(git -C "$root" log -1 --format=%h)"

program() { # NAME STANDARD SOURCE LIBRARIES OPTIONS...: builds $work/NAME
  name=$1 standard=$2 file=$3 libraries=$4 && shift 4
  "$nvcc" -std="$standard" -O1 -w -gencode arch=compute_90a,code=compute_90a --no-compress --expt-relaxed-constexpr \
    --expt-extended-lambda -cudart none -I"$here" "$@" -c "$file" -o "$work/$name.o"
  # shellcheck disable=SC2086
  g++ -o "$work/$name" "$work/$name.o" "$work/libptx.a" $libraries -lpthread -ldl
}
failed=0
run() { # NAME ARGUMENTS...
  name=$1 && shift
  # Their pipelines ask for tiles that nobody waits for.
  export TRIREME_PTX_OPEN_LOADS=allowed
  "$work/$name" "$@" >"$work/$name.log" 2>&1 || failed=1
  grep -E "right$|WRONG$|ptx_host:|^\[ +(OK|FAILED) +\].*\)" "$work/$name.log" || true
  [ "$mutations" = 0 ] || "$root/tests/mutation/mutate_ptx.py" --count "$mutations" "$work/$name" "$@" || failed=1
}

flash_attention_3() { # sets $options: as its own build compiles
  folder=$(checkout flash_attention https://github.com/Dao-AILab/flash-attention.git)
  options=(--use_fast_math -I"$folder/hopper" -I"$cutlass/include")
  for option in PAGEDKV SPLIT APPENDKV LOCAL SOFTCAP PACKGQA FP16 VARLEN SM8x; do options+=("-DFLASHATTENTION_DISABLE_$option"); done
  options+=(-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED -DCUTLASS_ENABLE_GDC_FOR_SM90 -DNDEBUG)
}

for name in "${names[@]}"; do
  [ "$name" = sums ] || cutlass=$(checkout cutlass https://github.com/NVIDIA/cutlass.git)
  case $name in
  cutlass)
    include=(-I"$cutlass/include" -I"$cutlass/tools/util/include" -I"$cutlass/test/unit" -DCUTLASS_TEST_LEVEL=0)
    for test in sm90_gemm_bf16_bf16_bf16_tensor_op_f32 sm90_gemm_f8_f8_bf16_tensor_op_fp32; do
      program $test c++17 "$cutlass/test/unit/gemm/device/$test.cu" "-lgtest_main -lgtest" "${include[@]}"
      run $test --gtest_filter=*_tensor_op_gmma_f32.64x128x64:*_tensor_op_gmma_f32.64x128x128
    done
    ;;
  deep_gemm)
    folder=$(checkout deep_gemm https://github.com/deepseek-ai/DeepGEMM.git)
    program deep_gemm c++20 "$here/deep_gemm.cu" "" -I"$folder/deep_gemm/include" -I"$cutlass/include"
    run deep_gemm
    ;;
  flash_attention_2)
    folder=$(checkout flash_attention https://github.com/Dao-AILab/flash-attention.git)
    options=()
    for option in DROPOUT ALIBI LOCAL SOFTCAP; do options+=("-DFLASHATTENTION_DISABLE_$option"); done
    program flash_attention_2 c++17 "$here/flash_attention_2.cu" "" --use_fast_math "${options[@]}" -I"$here/torch" \
      -I"$folder/csrc/flash_attn/src" -I"$cutlass/include"
    run flash_attention_2
    ;;
  flash_attention_3)
    flash_attention_3
    program flash_attention_3 c++17 "$here/flash_attention_3.cu" "" "${options[@]}"
    run flash_attention_3
    ;;
  flash_attention_3_backward)
    flash_attention_3
    objects=()
    for kernel in 64 64_causal 128 128_causal 256; do
      object=$work/flash_attention_3_backward_d$kernel.o
      "$nvcc" -std=c++17 -O3 -w -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr --expt-extended-lambda "${options[@]}" \
        -DHEAD_SIZE="${kernel%_*}" -DCAUSAL="$([[ $kernel == *causal ]] && echo true || echo false)" -c "$here/$name.cu" -o "$object"
      objects+=("$object")
    done
    python3 "$root/scripts/check_sass.py" --scale "${objects[@]}"
    ;;
  layouts)
    "$nvcc" -std=c++17 -O1 -w --expt-relaxed-constexpr -I"$cutlass/include" "$here/cute_layouts.cu" -o "$work/cute_layouts"
    "$work/cute_layouts" "$root/tests/golden/cute_layouts.txt" >/dev/null
    ;;
  sums) python3 "$here/tensor_core_sums.py" "$root/tests/golden/tensor_core_sums.txt" ;;
  *) echo "foreign_kernels.sh: $name is not known; see --help" >&2 && exit 2 ;;
  esac
done
exit $failed
