#!/usr/bin/env bash
# scripts/gpu_check.sh [--train BINARY] [--tests FOLDER] [--output FOLDER] [--device DEVICE] [STAGE...]
#
# The first hour on a machine with a GPU: checks and times everything that the tests execute on the host, the most
# telling first. Stages know nothing of each other: any of them may be run alone, again, or be the one that crashes. Each
# is ended after 5 minutes and leaves STAGE.log and STAGE.json in FOLDER (gpu_check); table.txt tells what passed, which
# belief that confirms or refutes, and what to suspect first. Works from a build (build/cuda-release) as from a bundle, which
#   scripts/bundle.sh --train build/cuda-release/train --add build/cuda-release/kernels_gpu_tests \
#     --add build/cuda-release/ops_bench_gpu --add scripts/gpu_check.sh --add scripts/pytorch/gpu_reference.py
# packs (under 60 MB). --dry-run says what each stage would run, and needs no GPU; --device cuda-host rehearses it all with
# a test build, in small.
#
#   device      what is there: driver, GPU, memory, clocks, libraries (also those of pip's torch)
#   kernels     every op's tests on the GPU, Hopper's products first, each suite in a process of its own
#   train       losses beside the CPU's, the same bits twice and without a CUDA graph, resume; 124M and 1.5B parameters
#   families    every family's losses beside the CPU's, windows too, and its tokens by kept keys and values
#   memory      what a rank uses beside what `plan` says, alone and with NCCL
#   ranks       two and four ranks on one GPU by NCCL: losses of one rank; steps recorded with their transfers; calls of
#               NCCL that block beside calls that do not
#   meshes      every axis, schedule and stage of ZeRO over NCCL on two ranks: losses of one
#   placements  evaluation and training on a V: receives that spin beside kernels
#   killed      a rank killed in a step: how the other ends, and when
#   checkpoint  two ranks stop and go on, on two and on one
#   gpus        every GPU of this machine, without the settings that share one
#   aligned     the kernels' tests again, with tensors aligned to 16 bytes
#   cudnn       attention by cuDNN: beside the reference, in a run, and beside our own in time
#   times       train benchmark of 124M, 1.5B and layers of 8B: tokens/s in bf16 and fp8, ops beside copy and product rates
#   ops         every op at the shapes of three models in TB/s or TFLOP/s beside the same rates (ops_bench_gpu)
#   memcheck    a part of the tests under compute-sanitizer, where that is installed
#   pytorch     the same step, attention, a product and a copy by PyTorch, where python3 has it
set -uo pipefail
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
case ${1-} in -h | --help) usage && exit 0 ;; esac
self=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "${BASH_SOURCE[0]}")
here=$(dirname "$self")
all=(device kernels train families memory ranks meshes placements killed checkpoint gpus aligned cudnn times ops memcheck pytorch)

train='' tests='' output=$PWD/gpu_check device=cuda stages=() only='' dry=''
while (($#)); do
  case "$1" in
  --train) train=$2 && shift ;;
  --tests) tests=$2 && shift ;;
  --output) output=$2 && shift ;;
  --device) device=$2 && shift ;;
  --inside) only=$2 && shift ;; # one stage, by this script itself
  --dry-run) dry=1 ;;
  -*) usage >&2 && exit 2 ;;
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
# Libraries that pip's torch has brought, for who has no others.
while read -r folder; do
  [ ! -d "$folder" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done < <("${PYTHON:-python3}" -c 'import glob, nvidia
for root in nvidia.__path__: print(*glob.glob(root + "/*/lib"), sep="\n")' 2>/dev/null)
# Every program of a stage by way of this; a dry run only tells.
limit() { # limit SECONDS COMMAND...
  if [ "$dry" ]; then echo "would run, at most $1 s: ${*:2}" && return 0; fi
  timeout -k 5 "$@"
}

# model LAYERS HEADS HIDDEN FFN VOCABULARY T MICRO GLOBAL [KEY_HEADS]
config() {
  cat <<JSON
{"run": {"directory": "$output/run", "steps": 20, "device": "$device", "resume": "never"},
 "model": {"model_type": "llama", "num_hidden_layers": $1, "num_attention_heads": $2, "num_key_value_heads": ${9:-$2},
           "hidden_size": $3, "intermediate_size": $4, "vocab_size": $5, "max_position_embeddings": $6},
 "data": {"train": "synthetic", "validation": "synthetic", "sequence_length": $6}, "batch": {"micro": $7, "global": $8},
 "optimizer": {"lr": 3e-4}, "checkpoint": {"interval_steps": 0}, "log": {"interval_steps": 1}, "evaluation": {"batches": 2}}
JSON
}
if [ "$device" = cuda ]; then
  config 4 4 128 352 512 128 4 8 >tiny.json
  config 12 12 768 2048 50304 1024 16 32 >124m.json
  config 48 25 1600 4352 50304 1024 8 16 >1558m.json
  config 8 32 4096 14336 32000 8192 2 8 8 >8b-layers.json
else # a rehearsal
  config 4 2 32 48 67 32 2 4 >tiny.json
  for size in 124m 1558m 8b-layers; do cp tiny.json $size.json; done
fi

# What the GPU has of fp8 (docs/fp8.md): Hopper all, others that have it at all products without experts, one scale a tensor.
capability=90
[ "$device" != cuda ] || [ "$dry" ] || capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -dc 0-9)
recipes=()
[ "${capability:-0}" -lt 89 ] || recipes=(tensor)
[ "$capability" != 90 ] || recipes=(block tensor)

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
  local code=0 library found
  if [ "$device" = cuda ]; then
    limit 20 nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit,mig.mode.current --format=csv
    code=$?
  fi
  for library in libcublasLt.so.13 libnccl.so.2 libcudnn.so.9 libnvrtc.so.13; do
    found=$( (PATH=$PATH:/sbin:/usr/sbin ldconfig -p; IFS=:; for f in ${LD_LIBRARY_PATH-}; do ls "$f/$library" 2>/dev/null; done) | grep "$library")
    printf '%s: %s\n' $library "$(head -n 1 <<<"${found:-not found: see LD_LIBRARY_PATH}")"
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
  echo "== products" && by_suite 60 '*Gemm*:*Product*' || code=1
  echo "== all else" && by_suite 60 '-*Gemm*:*Product*:Simd*:*OpWork*:*AttentionLibrary.*' || code=1
  return $code
}
stage_aligned() { TRIREME_TEST_ALIGNED=1 by_suite 60 '-Simd*:*OpWork*:*AttentionLibrary.*'; }
stage_cudnn() {
  local code=0
  limit 150 "$tests" '--gtest_filter=*AttentionLibrary.*' || code=1
  run tiny.json own --set precision.compute=bf16 --set model_backend.attention=own || code=1
  run tiny.json cudnn --set precision.compute=bf16 --set model_backend.attention=cudnn || code=1
  close "tiny: losses by cuDNN's attention" cudnn own 5e-3 || code=1
  run tiny.json cudnn-again --set precision.compute=bf16 --set model_backend.attention=cudnn || code=1
  close "tiny: the same bits twice by cuDNN" cudnn-again cudnn 0 || code=1
  run tiny.json fastest --set precision.compute=bf16 || code=1
  close "tiny: losses by the faster of both" fastest own 5e-3 || code=1
  sed -n '/"attention"/,$ p' "$output/fastest/kernel_choices.json"
  if [ "$bench" ]; then limit 150 "$bench" --benchmark_filter='attention_(forward|backward).*' --benchmark_min_time=0.1 || code=1; fi
  return $code
}
stage_memcheck() {
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not installed: skipped" && return 0; }
  limit 280 compute-sanitizer --error-exitcode 9 "$tests" --gtest_brief=1 '--gtest_filter=*values_by_hand*:*odd*:*same_bits*'
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
# family NAME COMPUTE CONFIG ARGUMENTS: on the GPU and on the CPU
family() {
  local name=$1-$2 tolerance=1e-4 code=0 answers
  [ "$2" = fp32 ] || tolerance=5e-3
  run "$3" gpu-$name --set run.steps=6 --set precision.compute=$2 "${@:4}" || code=1
  run "$3" cpu-$name --set run.steps=6 --set precision.compute=$2 --set run.device=cpu "${@:4}" || code=1
  close "$1, $2: the losses of the CPU" gpu-$name cpu-$name $tolerance || code=1
  [ "$2" = fp32 ] || return $code
  # Without a GPU that it sees, the program takes the CPU.
  answers=(--checkpoint "$output/cpu-$name" --token-ids-file prompts.txt --temperature 0 --max-new-tokens 24 --precision fp32)
  limit 60 "$train" generate "${answers[@]}" >gpu-$name.txt || code=1
  CUDA_VISIBLE_DEVICES='' limit 60 "$train" generate "${answers[@]}" >cpu-$name.txt || code=1
  [ "$dry" ] || if cmp cpu-$name.txt gpu-$name.txt; then echo "ok: $1: the tokens of the CPU"; else echo "FAILED: $1: the tokens of the CPU" && code=1; fi
  return $code
}
# fp8_by_library RECIPE ARGUMENTS: by cuBLASLt whatever it serves of what was chosen in gpu-llama-RECIPE-fp8
fp8_by_library() {
  local code=0
  [ "$device" = cuda ] || return 0
  [ "$dry" ] || sed 's/"kernel": "hopper"/"kernel": "cublaslt"/' "gpu-llama-$1-fp8/kernel_choices.json" >library.json
  TRIREME_KERNEL_CHOICES=$output/library.json run tiny.json library-$1 --set run.steps=6 --set precision.compute=fp8 "${@:2}" || code=1
  close "llama-$1, fp8, by cuBLASLt: the losses of the CPU" library-$1 cpu-llama-$1-fp8 5e-3 || code=1
  return $code
}
# Heads of 192 and 128, as DeepSeek-V3 has them, and few of everything else.
latents=(--set model.model_type=deepseek_v3 --set model.num_attention_heads=4 --set model.num_key_value_heads=4
  --set model.q_lora_rank=96 --set model.kv_lora_rank=64 --set model.qk_nope_head_dim=128 --set model.qk_rope_head_dim=64
  --set model.v_head_dim=128 --set model.n_routed_experts=8 --set model.n_group=2 --set model.topk_group=1
  --set model.num_experts_per_tok=2 --set model.moe_intermediate_size=64 --set model.first_k_dense_replace=1)
stage_families() {
  local code=0 compute model=(--set model.num_key_value_heads=2)
  [ "$device" = cuda ] || model=()
  for n in 1 2 3 4 5 6; do seq -s , 3 $((n * 7 % 64)) $((n * 11)); done | sed '/^$/d' >prompts.txt
  sed 's/"model": {"model_type": "llama"/"model": {"model_type": "gpt2"/; s/num_hidden_layers/n_layer/; s/num_attention_heads/n_head/
    s/"num_key_value_heads": [0-9]*,//; s/hidden_size/n_embd/; s/"intermediate_size": [0-9]*,//; s/max_position_embeddings/n_positions/' tiny.json >gpt2.json
  for compute in fp32 bf16; do
    family llama $compute tiny.json "${model[@]}" || code=1
    family qwen2 $compute tiny.json --set model.model_type=qwen2 --set model.tie_word_embeddings=true || code=1
    family qwen3 $compute tiny.json --set model.model_type=qwen3 --set model.head_dim=64 "${model[@]}" || code=1
    family smollm3 $compute tiny.json --set model.model_type=smollm3 --set model.no_rope_layer_interval=2 "${model[@]}" || code=1
    family mistral $compute tiny.json --set model.model_type=mistral --set model.sliding_window=20 || code=1
    family qwen3-windows $compute tiny.json --set model.model_type=qwen3 --set model.head_dim=16 --set model.use_sliding_window=true \
      --set model.sliding_window=9 --set model.max_window_layers=2 || code=1
    family olmo2 $compute tiny.json --set model.model_type=olmo2 "${model[@]}" || code=1
    family olmo3 $compute tiny.json --set model.model_type=olmo3 --set model.sliding_window=20 || code=1
    family gemma3 $compute tiny.json --set model.model_type=gemma3_text --set model.head_dim=64 --set model.sliding_window=20 \
      --set model.sliding_window_pattern=2 --set model.tie_word_embeddings=true || code=1
    family gpt2 $compute gpt2.json || code=1
    family qwen2_moe $compute tiny.json --set model.model_type=qwen2_moe --set model.num_experts=6 --set model.num_experts_per_tok=2 \
      --set model.moe_intermediate_size=64 --set model.shared_expert_intermediate_size=96 || code=1
    family mixtral $compute tiny.json --set model.model_type=mixtral --set model.num_local_experts=5 --set moe.balance=aux || code=1
    family deepseek_v3 $compute tiny.json "${latents[@]}" || code=1
    family gpt_oss $compute tiny.json --set model.model_type=gpt_oss --set model.head_dim=64 --set model.num_local_experts=6 \
      --set model.num_experts_per_tok=2 --set model.intermediate_size=64 --set model.sliding_window=20 --set model.swiglu_limit=0.2 || code=1
  done
  for compute in "${recipes[@]}"; do
    family llama-$compute fp8 tiny.json --set precision.fp8.recipe=$compute "${model[@]}" || code=1
    [ "$capability" = 90 ] || continue
    fp8_by_library $compute --set precision.fp8.recipe=$compute "${model[@]}" || code=1
    family qwen2_moe-$compute fp8 tiny.json --set precision.fp8.recipe=$compute --set model.model_type=qwen2_moe --set model.num_experts=6 \
      --set model.num_experts_per_tok=2 --set model.moe_intermediate_size=64 --set model.shared_expert_intermediate_size=96 || code=1
    family deepseek_v3-$compute fp8 tiny.json --set precision.fp8.recipe=$compute "${latents[@]}" || code=1
  done
  return $code
}
# NCCL refuses two ranks on one GPU of a host, so that each says that it is a host of its own. A hang is told, with the
# transfer that waits, before the limit ends it.
ranks() { # ranks N FOLDER ARGUMENTS
  rm -rf "$2"
  on_ranks "$@"
}
on_ranks() {
  TRIREME_SHARE_GPU=1 NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_MAX_NCHANNELS=1 NCCL_NVLS_ENABLE=0 \
    NCCL_MNNVL_ENABLE=0 NCCL_CUMEM_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_DEBUG=WARN limit 70 "$mpirun" --allow-run-as-root --oversubscribe -n "$1" \
    sh -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$@"' sh "$train" tiny.json --set batch.micro=1 --set run.hang_timeout_seconds=50 \
    --set run.directory="$output/$2" "${@:3}"
}
# The median of the later steps, in milliseconds.
step_time() { sed -n 's/.*"kind":"step".*"step_seconds":\([^,]*\),.*/\1/p' "$1/metrics.jsonl" | tail -n +4 | sort -g | awk '{ a[NR] = $1 } END { if (NR) printf "%.2f ms\n", 1e3 * a[int((NR + 1) / 2)] }'; }
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
  ranks 2 ranks-order --set parallel.reduction_order=rank || code=1
  close "2 ranks, sums in rank order: the losses of one" ranks-order one 5e-3 || code=1
  [ "$dry" ] || echo "a step of 2 ranks: $(step_time ranks-2-plain) plain, $(step_time ranks-2) recorded"
  return $code
}
stage_meshes() {
  local code=0 setting name
  run tiny.json one --set batch.micro=1 || code=1
  for setting in zero_stage=1 zero_stage=2 zero_stage=3 tensor=2 "tensor=2 sequence_parallel=false" context=2 "context=2 context_method=ulysses" \
    pipeline=2 "pipeline=2 pipeline_schedule=gpipe" "pipeline=2 pipeline_schedule=zb-h1" "pipeline=2 pipeline_schedule=v-min"; do
    name=${setting//[ =]/-}
    # shellcheck disable=SC2046,SC2086 # a --set for each word
    ranks 2 "$name" --set run.steps=6 $(printf -- '--set parallel.%s ' $setting) || code=1
    close "2 ranks, $setting: the losses of one" "$name" one 5e-3 || code=1
  done
  # A norm of all heads: its sums travel between the ranks.
  run tiny.json one-olmo2 --set batch.micro=1 --set model.model_type=olmo2 || code=1
  ranks 2 olmo2 --set run.steps=6 --set parallel.tensor=2 --set model.model_type=olmo2 || code=1
  close "2 ranks, olmo2, tensor=2: the losses of one" olmo2 one-olmo2 5e-3 || code=1
  # Tokens travel to experts.
  local experts=(--set model.model_type=mixtral --set model.num_local_experts=4 --set moe.balance=aux)
  run tiny.json one-experts --set batch.micro=1 "${experts[@]}" || code=1
  for setting in expert=2 "expert=2 tensor=2"; do
    name=${setting//[ =]/-}
    # shellcheck disable=SC2046,SC2086
    ranks 2 "$name" --set run.steps=6 "${experts[@]}" $(printf -- '--set parallel.%s ' $setting) || code=1
    close "2 ranks, $setting: the losses of one" "$name" one-experts 5e-3 || code=1
  done
  run tiny.json one-latents --set batch.micro=1 "${latents[@]}" || code=1
  ranks 2 latents --set run.steps=6 --set parallel.tensor=2 "${latents[@]}" || code=1
  close "2 ranks, latents, tensor=2: the losses of one" latents one-latents 5e-3 || code=1
  ranks 2 wire --set run.steps=6 --set precision.wire=bf16 || code=1
  close "2 ranks, bf16 on the wire: near the losses of one" wire one 2e-2 || code=1
  return $code
}
stage_placements() {
  local code=0 schedule
  run tiny.json one --set batch.micro=1 --set evaluation.interval_steps=2 || code=1
  for schedule in v-min v-half zb-v interleaved; do
    ranks 2 v-$schedule --set run.steps=6 --set evaluation.interval_steps=2 --set parallel.pipeline=2 --set parallel.pipeline_schedule=$schedule || code=1
    close "2 ranks, $schedule with evaluations between: the losses of one" v-$schedule one 5e-3 || code=1
  done
  return $code
}
stage_killed() {
  local code=0 job began
  if [ "$dry" ]; then ranks 2 killed && return 0; fi
  rm -rf killed
  on_ranks 2 killed --set run.steps=1000000 &
  job=$!
  for ((i = 0; i < 600; ++i)); do
    if [ -e killed/metrics.jsonl ] && [ "$(grep -c '"kind":"step"' killed/metrics.jsonl)" -ge 10 ]; then break; fi
    sleep 0.1
  done
  [ -e killed/metrics.jsonl ] || { echo "FAILED: a killed rank: none had made a step" && code=1; }
  pkill -KILL -n -f "$train tiny.json.*run.directory=$output/killed" || code=1
  began=$(date +%s)
  wait $job && { echo "FAILED: a killed rank: the job ended with 0" && code=1; }
  echo "the other rank ended $(($(date +%s) - began)) s after the kill"
  [ $(($(date +%s) - began)) -le 30 ] && echo "ok: a killed rank ends the other" || { echo "FAILED: a killed rank: the other went on" && code=1; }
  return $code
}
stage_checkpoint() {
  local code=0 stage
  for stage in 0 3; do
    ranks 2 whole-$stage --set parallel.zero_stage=$stage || code=1
    ranks 2 part-$stage --set parallel.zero_stage=$stage --set run.exit_at_step=10 || code=1
    rm -rf alone-$stage
    [ "$dry" ] || cp -r part-$stage alone-$stage
    on_ranks 2 part-$stage --set parallel.zero_stage=$stage --set run.resume=auto || code=1
    close "ZeRO $stage: 2 ranks go on with the same bits" part-$stage whole-$stage 0 || code=1
    limit 70 "$train" tiny.json --set batch.micro=1 --set run.directory="$output/alone-$stage" --set run.resume=auto || code=1
    close "ZeRO $stage: one rank goes on" alone-$stage whole-$stage 5e-3 || code=1
  done
  return $code
}
stage_memory() {
  local code=0 ranks size plan planned nccl used
  for ranks in 1 2; do
    if [ $ranks = 1 ]; then
      size=124m
      run $size.json memory-1 --set batch.micro=1 --set run.steps=5 || code=1
    else
      size=tiny
      ranks 2 memory-2 --set run.steps=5 || code=1
    fi
    [ "$dry" ] && continue
    plan=$("$train" plan $size.json --world $ranks --set batch.micro=1 --no-data --json 2>/dev/null)
    planned=$(sed -n 's/.*"memory_bytes_max": \([0-9]*\).*/\1/p' <<<"$plan")
    nccl=$(sed -n 's/.*"nccl_bytes": \([0-9]*\).*/\1/p' <<<"$plan" | head -n 1)
    used=$(sed -n 's/.*"kind":"step".*"memory_bytes":\([0-9]*\).*/\1/p' memory-$ranks/metrics.jsonl | tail -n 1)
    [ -n "$used" ] && [ -n "$planned" ] || { echo "FAILED: memory of $ranks ranks is not told" && code=1 && continue; }
    echo "ok: $ranks ranks: planned $planned bytes, ${nccl:-0} of them NCCL's, used $used: $(((used - planned) >> 20)) MiB more (the driver's; what NCCL takes otherwise than planned)"
  done
  return $code
}
stage_gpus() {
  local count code=0
  count=$([ "$dry" ] && echo 2 || nvidia-smi -L 2>/dev/null | wc -l)
  [ "$count" -ge 2 ] || { echo "one GPU or none: skipped" && return 0; }
  run tiny.json one --set batch.micro=1 || code=1
  for setting in zero_stage=0 zero_stage=3; do
    rm -rf gpus-$setting
    limit 70 "$mpirun" --allow-run-as-root -n 2 "$train" tiny.json --set batch.micro=1 --set run.directory="$output/gpus-$setting" --set parallel.$setting || code=1
    close "2 GPUs, $setting: the losses of one" gpus-$setting one 5e-3 || code=1
  done
  return $code
}
# timed NAME CONFIG ARGUMENTS: times-NAME.json, and the line of it that is read first
timed() {
  limit 100 "$train" benchmark "$2.json" --steps 8 --json "${@:3}" >"times-$1.json" || return 1
  [ "$dry" ] || echo "$1: $(sed -n 's/.*"tokens_per_second": *\([0-9]*\).*/\1/p' "times-$1.json" | head -n 1) tokens/s"
}
stage_times() {
  local code=0 size recipe
  for size in 124m 1558m 8b-layers; do
    timed $size $size || code=1
    for recipe in "${recipes[@]}"; do
      [ $size != 124m ] || continue
      timed $size-$recipe $size --no-rates --set precision.compute=fp8 --set precision.fp8.recipe=$recipe || code=1
    done
  done
  return $code
}

stage_ops() {
  [ "$bench" ] || { echo "ops_bench_gpu was not built (-DTRIREME_BENCHMARKS=ON): skipped" && return 0; }
  limit 285 "$bench" --benchmark_min_time=0.2 --benchmark_out=ops-figures.json --benchmark_out_format=json
}
stage_pytorch() {
  local python=${PYTHON:-python3} script
  "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { echo "$python has no torch with CUDA: skipped" && return 0; }
  script=$(ls "$here/gpu_reference.py" "$here/pytorch/gpu_reference.py" 2>/dev/null | head -n 1)
  limit 285 "$python" "$script" 124m.json 1558m.json
}

if [ "$only" ]; then
  "stage_$only"
  exit
fi

# What was never run on a GPU when this was written, in the order in which a failure is likely theirs.
suspects_of() {
  case $1 in
  kernels | aligned) echo "fp8 products by three warpgroups (GemmQuantizedGpu, GroupedGemmQuantizedGpu: Fp8Tile, gemm_fp8_sm90.cuh); f32 results added by TMA (GemmOp, GemmQuantizedGpu: store_floats, gemm_sm90_stages.cuh); cuBLASLt's fp8 products (GemmQuantizedLibrary: gemm_fp8_cublaslt.cc); quantize_both (quantize_tile.cuh)" ;;
  cudnn) echo "the graph (attention_library.cc) where only numbers differ, the variant pack and by-value numbers (attention_cudnn.cc) where it refuses; libnvrtc.so.13 must be found" ;;
  train) echo "run.cuda_graph=off tells whether a recording is at fault, TRIREME_KERNEL_CHOICES whether a product is (README: kernel choices)" ;;
  ranks) echo "NCCL_DEBUG=INFO; ncclCommSplit with shared resources, then recording (run.cuda_graph=off), then the exchange of the rank order" ;;
  meshes) echo "run.cuda_graph=off; ZeRO: pack_shards (kernels/shards); a pipeline: what goes one way in a graph" ;;
  placements) echo "a receive that spins beside a kernel that is loaded or memory that is freed (CUDA_MODULE_LOADING, CUDA_DEVICE_MAX_CONNECTIONS)" ;;
  killed) echo "the watchdog: asynchronous errors of NCCL (transfer_faults.h)" ;;
  times | ops) echo "figures only: compare with the rooflines of kernels/README.md" ;;
  esac
}
# What each stage shows to be so, or not.
belief_of() {
  case $1 in
  device) echo "the libraries are found where the program looks" ;;
  kernels | aligned) echo "what a kernel does when it is executed on the host it does on a GPU" ;;
  train) echo "a GPU trains as the CPU does, recorded steps have the bits of plain ones" ;;
  families) echo "every family is on a GPU what it is on the CPU, trained and generated with" ;;
  memory) echo "plan counts what a rank takes, NCCL's share too; the driver's is a constant beside it" ;;
  ranks) echo "NCCL's calls take microseconds, and recorded transfers have the bits of plain ones" ;;
  meshes) echo "every mesh over NCCL trains as one rank does" ;;
  placements) echo "no receive is started in front of what it needs" ;;
  killed) echo "who loses a rank ends within seconds" ;;
  checkpoint) echo "runs on GPUs go on with equal bits on their mesh, and near on others" ;;
  gpus) echo "what holds for ranks that share a GPU holds for GPUs" ;;
  cudnn) echo "cuDNN's attention agrees, and is the faster one" ;;
  *) echo "the figures are near the rooflines" ;;
  esac
}

status=0
gpu=$([ "$dry" ] || nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
program=$("$train" --version 2>/dev/null | head -n 1)
[ -e table.txt ] || printf '%-10s %-7s %6s   %s\n' stage result seconds figures >table.txt
for stage in "${stages[@]}"; do
  begin=$(date +%s)
  timeout -k 10 300 bash "$self" --inside "$stage" --train "$train" --tests "$tests" --output "$output" --device "$device" ${dry:+--dry-run} >"$stage.log" 2>&1 </dev/null
  code=$?
  seconds=$(($(date +%s) - begin))
  [ $code = 0 ] && result=passed || { result=failed && status=1; }
  [ $code != 124 ] || result=ended
  verdict=confirms
  [ $code = 0 ] || verdict=refutes
  ! grep -q ': skipped$' "$stage.log" || verdict='says nothing of'
  passed=$(($(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$stage.log" | paste -sd+) + $(grep -c '^ok:' "$stage.log")))
  failed=$(grep -c '^FAILED\|^\[  FAILED  \] [^0-9]' "$stage.log")
  printf '{"stage": "%s", "result": "%s", "exit": %d, "seconds": %d, "passed": %d, "failed": %d, "date": "%s", "gpu": "%s", "program": "%s"}\n' \
    "$stage" $result $code $seconds $passed "$failed" "$(date -u +%FT%TZ)" "$gpu" "$program" >"$stage.json"
  printf '%-10s %-7s %4d s   %s; %s: %s\n' "$stage" $result $seconds "$passed ok, $failed failed" "$verdict" "$(belief_of "$stage")" | tee -a table.txt
  if [ $code != 0 ]; then
    tail -n 25 "$stage.log" | sed 's/^/    /'
    suspects=$(suspects_of "$stage")
    [ -z "$suspects" ] || printf '    suspect first: %s\n' "$suspects" | tee -a table.txt
  elif [ "$dry" ]; then
    grep '^would run' "$stage.log" | sed 's/^/    /'
  fi
done
exit $status
