#!/usr/bin/env bash
# scripts/gpu_check.sh [--train BINARY] [--tests FOLDER] [--output FOLDER] [STAGE...]
#
# On a machine with a GPU: checks and times everything that was only executed on the host before. Each stage takes at
# most 8 minutes and leaves STAGE.log and STAGE.json in FOLDER (gpu_check); the table at the end tells what passed.
# Works from a build (build/cuda-release) as from a bundle made by
#   scripts/bundle.sh --train build/cuda-release/train --add build/cuda-release/kernels_gpu_tests --add scripts/gpu_check.sh
#
#   device    what is there: driver, GPU, memory, clocks
#   kernels   every op's tests on the GPU, with tensors aligned to 16 bytes and not
#   memcheck  a part of them under compute-sanitizer, where that is installed
#   train     124M and 1.5B parameters: 20 steps each, losses beside the CPU's where that is quick; resume
#   ranks     two and four ranks on one GPU by NCCL: losses of one rank
#   times     train benchmark at both sizes: tokens/s, ops beside copy and product rates
#   ops       every op at the shapes of three models in TB/s or TFLOP/s beside the same rates (ops_bench_gpu)
#   pytorch   the same step, attention, a product and a copy by PyTorch, where python3 has it
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

train='' tests='' output=$PWD/gpu_check stages=()
while (($#)); do
  case "$1" in
  --train) train=$2 && shift ;;
  --tests) tests=$2 && shift ;;
  --output) output=$2 && shift ;;
  -*) sed -n '2,16s/^# \?//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
  *) stages+=("$1") ;;
  esac
  shift
done
((${#stages[@]})) || stages=(device kernels memcheck train ranks times ops pytorch)
first_of() { local path && for path in "$@"; do [ ! -x "$path" ] || { echo "$path" && return; }; done; }
[ "$train" ] || train=$(first_of "$here/train" "$here/../build/cuda-release/train")
[ "$tests" ] || tests=$(first_of "$here/kernels_gpu_tests" "$here/../build/cuda-release/kernels_gpu_tests")
mpirun=$(first_of "$here/mpirun" "$(command -v mpirun)")
[ "$train" ] && [ "$tests" ] || { echo "gpu_check: no train or no kernels_gpu_tests; name them" >&2 && exit 3; }
mkdir -p "$output" && cd "$output" || exit 74
export NO_COLOR=1

# model LAYERS HEADS HIDDEN FFN VOCABULARY T MICRO GLOBAL
config() {
  cat <<JSON
{"run": {"directory": "$output/run", "steps": 20, "device": "cuda", "resume": "never"},
 "model": {"model_type": "llama", "num_hidden_layers": $1, "num_attention_heads": $2, "num_key_value_heads": $2,
           "hidden_size": $3, "intermediate_size": $4, "vocab_size": $5, "max_position_embeddings": $6},
 "data": {"train": "synthetic", "sequence_length": $6}, "batch": {"micro": $7, "global": $8},
 "optimizer": {"lr": 3e-4}, "checkpoint": {"interval_steps": 0, "async": false}, "log": {"interval_steps": 1}}
JSON
}
config 2 4 128 352 512 128 4 4 >tiny.json
config 12 12 768 2048 50304 1024 16 32 >124m.json
config 48 25 1600 4352 50304 1024 8 16 >1558m.json

losses() { sed -n 's/.*"kind":"step","step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl"; }
# close WHAT RUN EXPECTED_RUN TOLERANCE
close() {
  if awk -v t="$4" 'NR == FNR { e[$1] = $2; next } { d = $2 - e[$1]; if (d < 0) d = -d; if (!(d <= t * e[$1])) exit 1; ++n } END { exit n < 2 }' \
    <(losses "$3") <(losses "$2"); then
    echo "ok: $1"
  else
    echo "FAILED: $1"
    paste <(losses "$3") <(losses "$2")
    return 1
  fi
}
run() { rm -rf "$2" && timeout 400 "$train" "$1" --set run.directory="$output/$2" "${@:3}"; }

stage_device() {
  "$train" --version
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit --format=csv
}
stage_kernels() {
  local code=0
  echo "== tensors aligned to their element" && timeout 220 "$tests" --gtest_brief=1 '--gtest_filter=-Simd*:*OpWork*' || code=1
  echo "== tensors aligned to 16 bytes" && TRIREME_TEST_ALIGNED=1 timeout 220 "$tests" --gtest_brief=1 '--gtest_filter=-Simd*:*OpWork*' || code=1
  return $code
}
stage_memcheck() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed: skipped" && return 0; }
  timeout 450 compute-sanitizer --error-exitcode 9 "$tests" --gtest_brief=1 '--gtest_filter=*values_by_hand*:*odd*:*same_bits*'
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
  run tiny.json part --set run.exit_at_step=10 && timeout 100 "$train" tiny.json --set run.directory="$output/part" --set run.resume=auto || code=1
  close "resumed" part gpu-bf16 0 || code=1
  run 124m.json large-124m --set checkpoint.min_free_bytes=0 || code=1
  run 1558m.json large-1558m --set run.steps=6 --set run.exit_at_step=5 || code=1
  rm -rf large-*/checkpoints
  return $code
}
stage_ranks() {
  local code=0 n
  run tiny.json one --set batch.micro=1 || code=1
  for n in 2 4; do
    rm -rf "ranks-$n"
    # NCCL refuses two ranks on one GPU of a host, so that each says that it is a host of its own.
    TRIREME_SHARE_GPU=1 NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=1 NCCL_NVLS_ENABLE=0 \
      NCCL_MNNVL_ENABLE=0 NCCL_CUMEM_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_DEBUG=WARN timeout 200 "$mpirun" --allow-run-as-root --oversubscribe -n "$n" \
      sh -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$@"' sh "$train" tiny.json --set batch.micro=1 --set run.directory="$output/ranks-$n" || code=1
    close "$n ranks on one GPU: the losses of one" "ranks-$n" one 5e-3 || code=1
  done
  return $code
}
stage_times() {
  local code=0
  for size in 124m 1558m; do
    timeout 220 "$train" benchmark $size.json --steps 10 --json >"times-$size.json" || code=1
    timeout 220 "$train" benchmark $size.json --steps 5 || code=1
  done
  return $code
}

stage_ops() {
  local bench
  bench=$(first_of "$here/ops_bench_gpu" "$here/../build/cuda-release/ops_bench_gpu")
  [ "$bench" ] || { echo "ops_bench_gpu was not built (-DTRIREME_BENCHMARKS=ON): skipped" && return 0; }
  timeout 470 "$bench" --benchmark_min_time=0.2s --benchmark_out=ops-figures.json --benchmark_out_format=json
}
stage_pytorch() {
  local python=${PYTHON:-python3} script
  "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { echo "$python has no torch with CUDA: skipped" && return 0; }
  script=$(ls "$here/gpu_reference.py" "$here/pytorch/gpu_reference.py" 2>/dev/null | head -n 1)
  timeout 470 "$python" "$script" 124m.json 1558m.json
}

status=0
for stage in "${stages[@]}"; do
  begin=$(date +%s)
  ("stage_$stage") >"$stage.log" 2>&1
  code=$?
  seconds=$(($(date +%s) - begin))
  [ $code = 0 ] && result=passed || { result=failed && status=1; }
  printf '{"stage": "%s", "result": "%s", "exit": %d, "seconds": %d, "date": "%s", "gpu": "%s", "program": "%s"}\n' "$stage" $result $code $seconds \
    "$(date -u +%FT%TZ)" "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)" "$("$train" --version 2>/dev/null | head -n 1)" >"$stage.json"
  printf '%-9s %-7s %4d s   %s\n' "$stage" $result $seconds "$(grep -c '^ok:\|\[       OK' "$stage.log") ok, $(grep -c '^FAILED\|\[  FAILED' "$stage.log") failed"
  if [ $code != 0 ]; then tail -n 25 "$stage.log" | sed 's/^/    /'; fi
done
exit $status
