#!/usr/bin/env bash
# A ramp of the batch has the bits of runs of one size each, one behind the other; by every schedule, over any mesh, and
# when it is stopped within a phase.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Of 32 tokens a sample: two steps of 4, two of 8, two of 16, two of 8.
sizes='[[0, 4], [256, 8], [600, 16], ["1.6k", 8]]'
deep=(--set model.num_hidden_layers=4 --set batch.micro=1 --set run.steps=8 --set evaluation.interval_steps=4)
ramp=("${deep[@]}" --set "batch.global=$sizes")
losses() { steps_of "$1" | sed 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\).*/\1 \2/'; }

# in_parts WHAT N OPTIONS...: on N ranks, a ramp in one go against a run for each phase with its size as a constant.
in_parts() {
  local what=$1 n=$2 whole=ramp-${1// /-} parts=parts-${1// /-} part
  shift 2
  ranks "$n" base.json "${ramp[@]}" "$@" --set run.directory="$whole"
  ends_with "$what, a ramp" 0
  for part in "2 4" "4 8" "6 16" "8 8"; do
    ranks "$n" base.json "${deep[@]}" "$@" --set run.directory="$parts" --set run.exit_at_step="${part% *}" \
      --set batch.global="${part#* }"
    ends_with "$what, to step ${part% *} in batches of ${part#* }" 0
  done
  same_run "$what" "$whole" 8 "$parts"
}

in_parts "one rank" 1
check "consumed tokens go by the sizes" same "$(steps_of ramp-one-rank | sed 's/.*"consumed_tokens"://' | tr '\n' ' ')" \
  "128 256 512 768 1280 1792 2048 2304 "
check "config.json has the ramp" grep -q '"global":\[\[0,4\],\[256,8\],\[600,16\],\[1600,8\]\]' <(tr -d '\n ' <ramp-one-rank/config.json)
check "evaluation is of windows of the largest size" grep -q '"kind":"evaluation","step":4,.*"tokens":1024[,}]' ramp-one-rank/metrics.jsonl
train base.json "${deep[@]}" --set run.directory=ramp-one-rank --set batch.micro=4 --set batch.global=null --set run.steps=9
ends_with "a resume that derives another batch" 2
says "it says what the checkpoint has" "batch.global: 4 follows from .* the checkpoint has 8 "

# Stopped at each step, on whatever mesh the sizes divide.
for step in 1 2 3 5 6 7 8; do
  n=$((step % 2 + 1))
  ranks $n base.json "${ramp[@]}" --set run.directory=often --set run.exit_at_step=$step --set parallel.pipeline=$n
  ends_with "a ramp stopped behind step $step, on $n ranks" 0
done
same_run "a ramp stopped in every phase" often 8 ramp-one-rank

for schedule in gpipe 1f1b interleaved zb-h1 zb-h2 zb-auto zb-v v-half v-min dualpipe-v; do
  ranks 2 base.json "${ramp[@]}" --set run.directory="$schedule" --set parallel.pipeline=2 \
    --set parallel.pipeline_schedule="$schedule"
  ends_with "a ramp by $schedule" 0
  same_run "a ramp by $schedule" "$schedule" 8 ramp-one-rank
done
ranks 2 base.json "${ramp[@]}" --set run.directory=ahead --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h2 \
  --set parallel.speculative_step=true --set optimizer.clip_grad_norm=0
ranks 2 base.json "${ramp[@]}" --set run.directory=waits --set parallel.pipeline=2 --set optimizer.clip_grad_norm=0
same_run "a ramp whose steps run ahead" ahead 8 waits
ranks 3 base.json "${ramp[@]}" --set run.directory=three --set parallel.pipeline=3 --set parallel.pipeline_schedule=zb-h1
same_run "a ramp on three stages" three 8 ramp-one-rank
train base.json "${ramp[@]}" --set run.directory=full --set parallel.recompute=full
same_run "a ramp with recomputation" full 8 ramp-one-rank

in_parts "two data ranks" 2
close "two data ranks: losses" ramp-two-data-ranks ramp-one-rank 1e-5
for stage in 1 2 3; do
  ranks 2 base.json "${ramp[@]}" --set run.directory=zero$stage --set parallel.zero_stage=$stage
  ends_with "a ramp with ZeRO $stage" 0
done
check "ZeRO 1 has the bits of none" same "$(losses zero1)" "$(losses ramp-two-data-ranks)"
check "ZeRO 3 has the bits of 2" same "$(losses zero3)" "$(losses zero2)"
close "ZeRO 2: losses" zero2 ramp-one-rank 1e-5
in_parts "four ranks" 4 --set parallel.pipeline=2 --set parallel.zero_stage=1 --set parallel.pipeline_schedule=zb-v
check "two stages have the bits of one" same "$(losses ramp-four-ranks)" "$(losses ramp-two-data-ranks)"
in_parts "tensor and context ranks" 4 --set parallel.tensor=2 --set parallel.context=2 --set model.num_key_value_heads=2
# An auxiliary loss is divided by the tokens of its step.
experts=(--set model.model_type=mixtral --set model.num_local_experts=4 --set model.output_router_logits=true --set moe.z_loss=0.01)
in_parts "experts" 2 "${experts[@]}" --set parallel.expert=2
in_parts "bf16 in order" 1 --set precision.compute=bf16 --set data.order=sequential

# The plan: the largest size, and each.
train plan base.json "${ramp[@]}" --json
ends_with "a plan" 0
plan=$(tr -d '\n ' <out)
check "the plan's batch is the largest" grep -q '"batch":{"global":16,"micro":1,"accumulation":16,' <<<"$plan"
check "the plan has each phase" grep -q '"ramp":\[{"from_token":0,"global":4,"accumulation":4,"first_step":1,"steps":2,"bubble_rate":0.0},{"from_token":256,"global":8,"accumulation":8,"first_step":3,"steps":2,.*"from_token":1600,"global":8,"accumulation":8,"first_step":7,"steps":2,' <<<"$plan"
train plan base.json "${deep[@]}" --set batch.global=16 --json
check "memory is that of the largest" same "$(number memory_bytes_max out)" "$(sed 's/.*"memory_bytes_max":\([0-9]*\).*/\1/' <<<"$plan")"
train plan base.json "${ramp[@]}"
check "a line has each size" grep -q '^  ramp      4 from step 1 on (accumulation 4), 8 from step 3 on (accumulation 8), 16 from step 5 on' out
train plan base.json "${ramp[@]}" --set run.steps=null --set run.tokens=2k --json
check "tokens are counted over the phases" grep -q '"steps": 7,' out
train plan base.json "${ramp[@]}" --set batch.micro=8
ends_with "sizes that the micro-batch does not divide" 2
says "the size is named" 'batch.global\[0\]\[1\]: .* Found 4; legal: a multiple of micro x data ranks = 8 x 1 = 8; nearest: 8\.'
finish
