#!/usr/bin/env bash
# The NCCL code of the program, by what stands for NCCL where GPUs are executed on the host: meshes of 2 to 8 ranks train
# as the CPU does, with streams that run at once (each call then waits for the other ranks, so that a receive in front of
# what it needs, or two communicators in two orders, end in a deadlock that is named) and with lazy ones (a forgotten wait
# reads poison). Failures at the start, of a connection, of a rank.
#   nccl_test.sh TRAIN TRAIN_SIMT
simt=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cpu=$binary
export TRIREME_SHARE_GPU=1 TRIREME_SIMT_PATIENCE_SECONDS=100

model=(--set model.num_hidden_layers=4 --set model.num_attention_heads=4 --set model.num_key_value_heads=2
  --set precision.compute=fp32 --set run.steps=3 --set evaluation.interval_steps=3 --set batch.micro=1 --set batch.global=8)
export TRIREME_TRAIN=$cpu
ranks 1 base.json "${model[@]}" --set run.directory=cpu
ends_with "the run on the CPU" 0

# mesh RANKS STREAMS ARGUMENTS: one mesh, compared with the CPU's run of that name.
count=0 beside=cpu
mesh() {
  local n=$1 streams=$2 name
  shift 2
  name=mesh-$((++count))
  TRIREME_TRAIN=$simt TRIREME_SIMT_STREAMS=$streams ranks "$n" base.json "${model[@]}" --set run.device=cuda-host \
    --set run.directory=$name "$@"
  ends_with "$n ranks, $streams, $*" 0
  close "$n ranks, $streams, $*: losses" $name $beside 1e-5
  close "$n ranks, $streams, $*: gradient norms" $name $beside 1e-5 grad_norm
}
of() { # of KEY=VALUE...: --set parallel.KEY=VALUE
  arguments=()
  local each
  for each in "$@"; do arguments+=(--set "parallel.$each"); done
}
for streams in eager lazy; do
  of zero_stage=1
  mesh 2 $streams "${arguments[@]}"
  of pipeline=3 pipeline_layers=[1,2,1]
  mesh 3 $streams "${arguments[@]}"
  of tensor=2 zero_stage=3
  mesh 4 $streams "${arguments[@]}"
  of pipeline=2 pipeline_schedule=v-min zero_stage=2
  mesh 4 $streams "${arguments[@]}"
  of pipeline=2 context=2 pipeline_schedule=zb-h1
  mesh 4 $streams "${arguments[@]}"
done
of tensor=2 pipeline=2 zero_stage=1 pipeline_schedule=interleaved
mesh 8 lazy "${arguments[@]}"
of context=2 tensor=2 zero_stage=2 zero_group=2 reduction_order=rank
mesh 8 random "${arguments[@]}"


# A ramp of the batch: each size has sends and receives of its own.
ramp=(--set 'batch.global=[[0, 8], [256, 4], [500, 8]]' --set run.steps=5)
TRIREME_TRAIN=$cpu ranks 1 base.json "${model[@]}" "${ramp[@]}" --set run.directory=cpu-ramp
beside=cpu-ramp
of pipeline=2 pipeline_schedule=zb-v zero_stage=1
mesh 4 lazy "${ramp[@]}" "${arguments[@]}"
of pipeline=3 pipeline_layers=[1,2,1]
mesh 3 eager "${ramp[@]}" "${arguments[@]}"
beside=cpu

# Tokens travel to experts: over data ranks, tensor ranks, with an expert's columns cut, in a pipeline.
experts=(--set model.model_type=qwen2_moe --set model.num_experts=4 --set model.num_experts_per_tok=2
  --set model.moe_intermediate_size=24 --set model.shared_expert_intermediate_size=40 --set moe.balance=aux)
TRIREME_TRAIN=$cpu ranks 1 base.json "${model[@]}" "${experts[@]}" --set run.directory=cpu-experts
ends_with "experts: the run on the CPU" 0
beside=cpu-experts
for streams in eager lazy; do
  of expert=2 zero_stage=2
  mesh 2 $streams "${experts[@]}" "${arguments[@]}"
  of tensor=2 expert=2 expert_tensor=2 zero_stage=3
  mesh 4 $streams "${experts[@]}" "${arguments[@]}" --set moe.dispatch=allgather
  of pipeline=2 expert=2 pipeline_schedule=zb-h1
  mesh 4 $streams "${experts[@]}" "${arguments[@]}"
done
# Latents and the keys' shared dims are gathered, their gradients reduced.
latents=(--set model.model_type=deepseek_v3 --set model.num_attention_heads=4 --set model.num_key_value_heads=4 --set model.q_lora_rank=24
  --set model.kv_lora_rank=16 --set model.qk_nope_head_dim=8 --set model.qk_rope_head_dim=4 --set model.v_head_dim=8 --set model.n_routed_experts=4
  --set model.n_group=2 --set model.topk_group=1 --set model.num_experts_per_tok=2 --set model.moe_intermediate_size=24
  --set model.first_k_dense_replace=1 --set model.head_dim=4)
TRIREME_TRAIN=$cpu ranks 1 base.json "${model[@]}" "${latents[@]}" --set run.directory=cpu-latents
ends_with "latents: the run on the CPU" 0
beside=cpu-latents
of tensor=2 zero_stage=2
mesh 4 lazy "${latents[@]}" "${arguments[@]}"
# Sinks of heads that ranks trade, biases of experts that others have.
gpt_oss=(--set model.model_type=gpt_oss --set model.head_dim=16 --set model.num_local_experts=4 --set model.num_experts_per_tok=2
  --set model.intermediate_size=24 --set model.sliding_window=9)
TRIREME_TRAIN=$cpu ranks 1 base.json "${model[@]}" "${gpt_oss[@]}" --set run.directory=cpu-gpt-oss
ends_with "sinks: the run on the CPU" 0
beside=cpu-gpt-oss
of context=2 context_method=ulysses expert=2 expert_tensor=2
mesh 4 lazy "${gpt_oss[@]}" "${arguments[@]}"
beside=cpu

# Without a graph each transfer is a call: the same bits.
of pipeline=2 pipeline_schedule=v-min zero_stage=2
mesh 4 lazy "${arguments[@]}" --set run.cuda_graph=off
same_run "the same bits without a CUDA graph" mesh-$count 3 mesh-4

# A rank takes of its GPU what `plan` says, before NCCL's own: tables of a few bytes apart.
# as_planned RANKS ARGUMENTS
as_planned() {
  local n=$1 planned used name
  shift
  name=planned-$((++count))
  TRIREME_TRAIN=$simt TRIREME_SIMT_GPUS=$n TRIREME_SHARE_GPU='' ranks "$n" base.json "${model[@]}" --set run.device=cuda-host \
    --set run.directory=$name "$@"
  ends_with "$n ranks, a GPU each, $*" 0
  used=$(sed -n 's/^{"kind":"step".*"memory_bytes":\([0-9]*\).*/\1/p' $name/metrics.jsonl | tail -n 1)
  planned=$("$cpu" plan base.json "${model[@]}" --set run.device=cuda --set run.directory=$name "$@" --world "$n" --no-data --json |
    sed -n 's/.*"nccl_bytes": *\([0-9]*\).*/\1/p; s/.*"memory_bytes_max": *\([0-9]*\).*/\1/p' | sort -n | awk '{ last = $1; if (NR == 1) first = $1 } END { print last - (NR > 1 ? first : 0) }')
  check "$n ranks, $*: planned $planned bytes, used $used" [ $((used - planned)) -le 16384 ]
  check "$n ranks, $*: and not much more is planned" [ $((planned - used)) -le 65536 ]
}
as_planned 1
of reduction_order=rank
as_planned 2 "${arguments[@]}"
of zero_stage=3
as_planned 2 "${arguments[@]}"
of tensor=2 zero_stage=2 reduction_order=rank
as_planned 4 "${arguments[@]}"
of pipeline=2 context=2
as_planned 4 "${arguments[@]}"
of expert=2 tensor=2 zero_stage=1
as_planned 4 "${experts[@]}" "${arguments[@]}"
of tensor=2 pipeline=2 pipeline_schedule=zb-h1
as_planned 4 "${latents[@]}" "${arguments[@]}"

export TRIREME_TRAIN=$simt
two=(base.json --set run.device=cuda-host --set batch.micro=1 --set evaluation.interval_steps=0 --set checkpoint.interval_steps=2)
TRIREME_NCCL_FAILS=init:1 ranks 2 "${two[@]}" --set run.directory=unconnected
ends_with "a rank that cannot be connected" 3
says_once "it is named, by NCCL's words" "rank 1: NCCL: connecting 2 ranks: .*a planned failure of rank 1"
check "nothing was trained" [ ! -s unconnected/metrics.jsonl ]
# Buckets of ZeRO are registered with NCCL; where that fails they go through its own memory, with the same bits.
sharded=("${two[@]}" --set run.steps=2 --set parallel.zero_stage=3)
ranks 2 "${sharded[@]}" --set run.directory=registered
ends_with "buckets in registered memory" 0
check "nothing is said of it" [ "$(grep -c "does not register" log)" = 0 ]
TRIREME_NCCL_FAILS=window:1 ranks 2 "${sharded[@]}" --set run.directory=unregistered
ends_with "buckets in memory that one rank cannot register" 0
says_once "it is said" "^warning: NCCL does not register the memory of transfers on data.gather (memory of rank 1.*own"
same_run "registered or not" registered 2 unregistered
NCCL_COMM_BLOCKING=0 ranks 2 "${two[@]}" --set run.directory=refused
ends_with "NCCL's calls that do not block" 3
says_once "are refused" "^error: NCCL_COMM_BLOCKING=0 is set: .*Unset it"
for blocks in 3 4; do
  TRIREME_NCCL_FAILS=blocks:1:4 ranks 2 "${two[@]}" --set run.steps=2 --set parallel.nccl_max_ctas=$blocks --set run.directory=blocks-$blocks
  ends_with "NCCL's blocks are limited to $blocks, of 4 that are asked for here" $((blocks == 4 ? 0 : 3))
done
TRIREME_NCCL_FAILS=async:1:100 ranks 2 "${two[@]}" --set run.steps=100000 --set run.directory=broken
ends_with "a connection that breaks" 71
says_once "it is told in NCCL's words" "^error: .*NCCL: a transfer on data.reduce: .*a planned failure in an all-reduce"
says "and what to do" "started again, the run goes on at its newest checkpoint"
check "it had made steps" [ "$(steps_of broken | wc -l)" -ge 2 ]
ranks 2 "${two[@]}" --set run.steps=$(($(steps_of broken | wc -l) + 2)) --set run.directory=broken
ends_with "started again it goes on" 0

for streams in eager lazy; do
  TRIREME_SIMT_STREAMS=$streams start killed-log "$root/scripts/run.sh" -n 2 "${two[@]}" --set run.steps=100000 \
    --set run.directory=killed-$streams
  until_true logged killed-log "^step *10/"
  kill -KILL "$(binary=$simt train_processes "$job" | tail -n 1)"
  began=$SECONDS
  wait "$job"
  code=$?
  check "$streams: a killed rank ends the other ($code)" [ $code -ne 0 ]
  check "$streams: within seconds" [ $((SECONDS - began)) -le 30 ]
done
finish
