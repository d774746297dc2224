#!/usr/bin/env bash
# scripts/gpu_check.sh [--train BINARY] [--tests FOLDER] [--output FOLDER] [STAGE...]
#
# On a machine with a GPU: checks and times everything that was only executed on the host before. Stages know nothing of
# each other: any of them may be run alone, again, or be the one that crashes. Each is ended after 8 minutes and leaves
# STAGE.log and STAGE.json in FOLDER (gpu_check); table.txt tells what passed, and what to suspect first where it did not.
# Works from a build (build/cuda-release) as from a bundle, which
#   scripts/bundle.sh --train build/cuda-release/train --add build/cuda-release/kernels_gpu_tests \
#     --add build/cuda-release/ops_bench_gpu --add scripts/gpu_check.sh --add scripts/pytorch/gpu_reference.py
# packs (under 60 MB). --dry-run says what each stage would run, and needs no GPU.
#
#   device    what is there: driver, GPU, memory, clocks, libraries
#   kernels   every op's tests on the GPU, each suite in a process of its own, with tensors aligned to 16 bytes and not
#   cudnn     attention by cuDNN: beside the reference, in a run, and beside our own in time
#   memcheck  a part of the tests under compute-sanitizer, where that is installed
#   train     124M and 1.5B parameters: 20 steps each, losses beside the CPU's where that is quick; resume; graphs
#   ranks     two and four ranks on one GPU by NCCL: losses of one rank; steps recorded with their transfers
#   times     train benchmark at both sizes: tokens/s, ops beside copy and product rates
#   ops       every op at the shapes of three models in TB/s or TFLOP/s beside the same rates (ops_bench_gpu)
#   pytorch   the same step, attention, a product and a copy by PyTorch, where python3 has it
set -uo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
self=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "${BASH_SOURCE[0]}")
here=$(dirname "$self")
all=(device kernels cudnn memcheck train ranks times ops pytorch)

train='' tests='' output=$PWD/gpu_check stages=() only='' dry=''
while (($#)); do
  case "$1" in
  --train) train=$2 && shift ;;
  --tests) tests=$2 && shift ;;
  --output) output=$2 && shift ;;
  --inside) only=$2 && shift ;; # one stage, by this script itself
  --dry-run) dry=1 ;;
  -*) sed -n '2,25s/^# \?//p' "$self" >&2 && exit 2 ;;
  *)
    [[ " ${all[*]} " == *" $1 "* ]] || { echo "gpu_check: no stage $1 (there are ${all[*]})" >&2 && exit 2; }
    stages+=("$1")
    ;;
  esac
  shift
done
((${#stages[@]})) || stages=("${all[@]}")
first_of() { local path && for path in "$@"; do [ ! -x "$path" ] || { echo "$path" && return; }; done; }
[ "$train" ] || train=$(first_of "$here/train" "$here/../build/cuda-release/train")
[ "$tests" ] || tests=$(first_of "$here/kernels_gpu_tests" "$here/../build/cuda-release/kernels_gpu_tests")
mpirun=$(first_of "$here/mpirun" "$(command -v mpirun)")
bench=$(first_of "$here/ops_bench_gpu" "$here/../build/cuda-release/ops_bench_gpu")
[ "$train" ] && [ "$tests" ] || { echo "gpu_check: no train or no kernels_gpu_tests; name them" >&2 && exit 3; }
train=$(readlink -f "$train") tests=$(readlink -f "$tests")
mkdir -p "$output" && cd "$output" || exit 74
output=$PWD
export NO_COLOR=1
# Every program of a stage by way of this; a dry run only tells.
limit() { # limit SECONDS COMMAND...
  if [ "$dry" ]; then echo "would run, at most $1 s: ${*:2}" && return 0; fi
  timeout -k 5 "$@"
}

# model LAYERS HEADS HIDDEN FFN VOCABULARY T MICRO GLOBAL
config() {
  cat <<JSON
{"run": {"directory": "$output/run", "steps": 20, "device": "cuda", "resume": "never"},
 "model": {"model_type": "llama", "num_hidden_layers": $1, "num_attention_heads": $2, "num_key_value_heads": $2,
           "hidden_size": $3, "intermediate_size": $4, "vocab_size": $5, "max_position_embeddings": $6},
 "data": {"train": "synthetic", "sequence_length": $6}, "batch": {"micro": $7, "global": $8},
 "optimizer": {"lr": 3e-4}, "checkpoint": {"interval_steps": 0}, "log": {"interval_steps": 1}}
JSON
}
config 2 4 128 352 512 128 4 4 >tiny.json
config 12 12 768 2048 50304 1024 16 32 >124m.json
config 48 25 1600 4352 50304 1024 8 16 >1558m.json

losses() { sed -n 's/.*"kind":"step","step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl"; }
# close WHAT RUN EXPECTED_RUN TOLERANCE
close() {
  [ -z "$dry" ] || return 0
  if awk -v t="$4" 'NR == FNR { e[$1] = $2; next } { d = $2 - e[$1]; if (d < 0) d = -d; if (!(d <= t * e[$1])) exit 1; ++n } END { exit n < 2 }' \
    <(losses "$3") <(losses "$2"); then
    echo "ok: $1"
  else
    echo "FAILED: $1"
    paste <(losses "$3") <(losses "$2")
    return 1
  fi
}
run() { rm -rf "$2" && limit "${LIMIT:-60}" "$train" "$1" --set run.directory="$output/$2" "${@:3}"; }

stage_device() {
  "$train" --version
  limit 20 nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit,mig.mode.current --format=csv
  local code=$? library
  for library in libcublasLt.so.13 libnccl.so.2 libcudnn.so.9 libnvrtc.so.13; do
    printf '%s: %s\n' $library "$( (PATH=$PATH:/sbin:/usr/sbin ldconfig -p; IFS=:; for f in ${LD_LIBRARY_PATH-}; do ls "$f/$library" 2>/dev/null; done) | grep -m 1 "$library" || echo 'not found: see LD_LIBRARY_PATH')"
  done
  command -v compute-sanitizer nvcc python3
  return $code
}
# A crash leaves a GPU's context useless for every later test, so that suites have processes of their own.
by_suite() { # by_suite SECONDS FILTER
  local code=0 suite
  while read -r suite; do
    limit "$1" "$tests" --gtest_brief=1 "--gtest_filter=$suite*" || {
      echo "FAILED: $suite (exit $?)"
      code=1
    }
  done < <("$tests" --gtest_list_tests "--gtest_filter=$2" 2>/dev/null | sed -nE 's/^([A-Za-z0-9_/]+\.)( .*)?$/\1/p')
  return $code
}
stage_kernels() {
  local code=0
  echo "== tensors aligned to their element" && by_suite 60 '-Simd*:*OpWork*:*AttentionLibrary.*' || code=1
  echo "== tensors aligned to 16 bytes" && TRIREME_TEST_ALIGNED=1 by_suite 60 '-Simd*:*OpWork*:*AttentionLibrary.*' || code=1
  return $code
}
stage_cudnn() {
  local code=0
  limit 150 "$tests" '--gtest_filter=*AttentionLibrary.*' || code=1
  run tiny.json own --set precision.compute=bf16 || code=1
  run tiny.json cudnn --set precision.compute=bf16 --set model_backend.attention=cudnn || code=1
  close "tiny: losses by cuDNN's attention" cudnn own 5e-3 || code=1
  run tiny.json cudnn-again --set precision.compute=bf16 --set model_backend.attention=cudnn || code=1
  close "tiny: the same bits twice by cuDNN" cudnn-again cudnn 0 || code=1
  if [ "$bench" ]; then limit 150 "$bench" --benchmark_filter='attention_(forward|backward).*' --benchmark_min_time=0.1s || code=1; fi
  return $code
}
stage_memcheck() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed: skipped" && return 0; }
  limit 450 compute-sanitizer --error-exitcode 9 "$tests" --gtest_brief=1 '--gtest_filter=*values_by_hand*:*odd*:*same_bits*'
}
stage_train() {
  local code=0
  for compute in fp32 bf16; do
    local tolerance=1e-4 && [ $compute = fp32 ] || tolerance=5e-3
    run tiny.json gpu-$compute --set precision.compute=$compute || code=1
    run tiny.json cpu-$compute --set precision.compute=$compute --set run.device=cpu || code=1
    close "tiny, $compute: the losses of the CPU" gpu-$compute cpu-$compute $tolerance || code=1
    run tiny.json again-$compute --set precision.compute=$compute || code=1
    close "tiny, $compute: the same bits twice" again-$compute gpu-$compute 0 || code=1
  done
  run tiny.json no-graph --set run.cuda_graph=off || code=1
  close "tiny: the same bits without a CUDA graph" no-graph gpu-bf16 0 || code=1
  run tiny.json part --set run.exit_at_step=10 && limit 60 "$train" tiny.json --set run.directory="$output/part" --set run.resume=auto || code=1
  close "resumed" part gpu-bf16 0 || code=1
  LIMIT=100 run 124m.json large-124m || code=1
  LIMIT=150 run 1558m.json large-1558m --set run.steps=6 --set run.exit_at_step=5 || code=1
  rm -rf large-*/checkpoints
  return $code
}
# NCCL refuses two ranks on one GPU of a host, so that each says that it is a host of its own.
ranks() { # ranks N FOLDER ARGUMENTS
  rm -rf "$2"
  TRIREME_SHARE_GPU=1 NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=1 NCCL_NVLS_ENABLE=0 \
    NCCL_MNNVL_ENABLE=0 NCCL_CUMEM_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_DEBUG=WARN limit 70 "$mpirun" --allow-run-as-root --oversubscribe -n "$1" \
    sh -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$@"' sh "$train" tiny.json --set batch.micro=1 --set run.directory="$output/$2" "${@:3}"
}
stage_ranks() {
  local code=0 n
  run tiny.json one --set batch.micro=1 || code=1
  for n in 2 4; do
    # The plainest first: what it shows is NCCL's, what only the next one shows is the recording's.
    ranks $n ranks-$n-plain --set run.cuda_graph=off || code=1
    close "$n ranks on one GPU, plain: the losses of one" ranks-$n-plain one 5e-3 || code=1
    ranks $n ranks-$n || code=1
    close "$n ranks, transfers recorded: the same bits" ranks-$n ranks-$n-plain 0 || code=1
  done
  ranks 2 ranks-zero3 --set parallel.zero_stage=3 || code=1
  close "2 ranks, ZeRO 3: the losses of one" ranks-zero3 one 5e-3 || code=1
  ranks 2 ranks-order --set parallel.reduction_order=rank || code=1
  close "2 ranks, sums in rank order: the losses of one" ranks-order one 5e-3 || code=1
  return $code
}
stage_times() {
  local code=0
  for size in 124m 1558m; do
    limit 110 "$train" benchmark $size.json --steps 10 --json >"times-$size.json" || code=1
    limit 110 "$train" benchmark $size.json --steps 5 --no-rates || code=1
  done
  return $code
}

stage_ops() {
  [ "$bench" ] || { echo "ops_bench_gpu was not built (-DTRIREME_BENCHMARKS=ON): skipped" && return 0; }
  limit 470 "$bench" --benchmark_min_time=0.2s --benchmark_out=ops-figures.json --benchmark_out_format=json
}
stage_pytorch() {
  local python=${PYTHON:-python3} script
  "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { echo "$python has no torch with CUDA: skipped" && return 0; }
  script=$(ls "$here/gpu_reference.py" "$here/pytorch/gpu_reference.py" 2>/dev/null | head -n 1)
  limit 470 "$python" "$script" 124m.json 1558m.json
}

if [ "$only" ]; then
  "stage_$only"
  exit
fi

# What was never run on a GPU when this was written, in the order in which a failure is likely theirs.
suspects_of() {
  case $1 in
  kernels) echo "Gemm of Hopper: MN-major descriptors of wgmma (m = 129, gemm_sm90.cuh), multicast in clusters, SwiGLU's 4-D tensor map; cuBLASLt's alignments (gemm_cublaslt.cc)" ;;
  cudnn) echo "the graph (attention_library.cc) where only numbers differ, the variant pack and by-value numbers (attention_cudnn.cc) where it refuses; libnvrtc.so.13 must be found" ;;
  train) echo "run.cuda_graph=off tells whether a recording is at fault, TRIREME_KERNEL_CHOICES whether a product is (README: kernel choices)" ;;
  ranks) echo "NCCL_DEBUG=INFO; non-blocking init, then recording (run.cuda_graph=off), then the exchange of the rank order" ;;
  times | ops) echo "figures only: compare with the rooflines of kernels/README.md" ;;
  esac
}

status=0
gpu=$([ "$dry" ] || nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
program=$("$train" --version 2>/dev/null | head -n 1)
[ -e table.txt ] || printf '%-9s %-7s %6s   %s\n' stage result seconds figures >table.txt
for stage in "${stages[@]}"; do
  begin=$(date +%s)
  timeout -k 10 480 bash "$self" --inside "$stage" --train "$train" --tests "$tests" --output "$output" ${dry:+--dry-run} >"$stage.log" 2>&1 </dev/null
  code=$?
  seconds=$(($(date +%s) - begin))
  [ $code = 0 ] && result=passed || { result=failed && status=1; }
  [ $code != 124 ] || result=ended
  passed=$(($(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$stage.log" | paste -sd+) + $(grep -c '^ok:' "$stage.log")))
  failed=$(grep -c '^FAILED\|^\[  FAILED  \] [^0-9]' "$stage.log")
  printf '{"stage": "%s", "result": "%s", "exit": %d, "seconds": %d, "passed": %d, "failed": %d, "date": "%s", "gpu": "%s", "program": "%s"}\n' \
    "$stage" $result $code $seconds $passed "$failed" "$(date -u +%FT%TZ)" "$gpu" "$program" >"$stage.json"
  printf '%-9s %-7s %4d s   %s\n' "$stage" $result $seconds "$passed ok, $failed failed" | tee -a table.txt
  if [ $code != 0 ]; then
    tail -n 25 "$stage.log" | sed 's/^/    /'
    suspects=$(suspects_of "$stage")
    [ -z "$suspects" ] || printf '    suspect first: %s\n' "$suspects" | tee -a table.txt
  elif [ "$dry" ]; then
    grep '^would run' "$stage.log" | sed 's/^/    /'
  fi
done
exit $status
