#!/usr/bin/env bash
# optimizer.state 8bit in whole runs: equal bits on meshes whose cuts cross blocks, after a stop and on another mesh; what a
# checkpoint holds, the plan and the refusals; going on from moments in the other type.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# 80 and 200 columns: no cut by two or three falls between blocks of 256.
model=(--set model.hidden_size=80 --set model.intermediate_size=200 --set model.num_attention_heads=4
  --set model.num_key_value_heads=2 --set model.head_dim=20)
coded=("${model[@]}" --set optimizer.state=8bit --set run.steps=8 --set batch.micro=1)

# same_state WHAT RUN STEP EXPECTED_RUN OPTIONS...: equal steps, and one rank that goes on from either makes the same step.
same_state() {
  local what=$1 run=$2 step=$3 expected=$4 of
  shift 4
  check "$what: the steps are equal" same "$(steps_of "$run" | head -n "$step")" "$(steps_of "$expected" | head -n "$step")"
  for of in "$run" "$expected"; do
    rm -rf "$of-on" && cp -r "$of" "$of-on"
    train base.json "${coded[@]}" --set batch.global=3 "$@" --set run.steps=$((step + 1)) --set run.directory="$of-on"
    ends_with "$what: one more step of $of" 0
  done
  same_run "$what" "$run-on" $((step + 1)) "$expected-on"
}

ranks 3 base.json "${coded[@]}" --set batch.global=3 --set run.directory=zero-0
ends_with "three ranks" 0
for stage in 1 2 3; do
  ranks 3 base.json "${coded[@]}" --set batch.global=3 --set parallel.zero_stage=$stage --set run.directory=zero-$stage
  ends_with "ZeRO $stage" 0
  same_state "ZeRO $stage" zero-$stage 8 zero-0
done
ranks 4 base.json "${coded[@]}" --set parallel.tensor=2 --set parallel.zero_stage=2 --set run.directory=grid
ends_with "tensor 2 x ZeRO 2" 0
ranks 2 base.json "${coded[@]}" --set parallel.tensor=2 --set run.directory=tensor
ends_with "tensor 2" 0
close "tensor 2 x ZeRO 2: losses" grid tensor 1e-5
ranks 2 base.json "${coded[@]}" --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h2 \
  --set model.tie_word_embeddings=true --set parallel.speculative_step=true --set run.directory=ahead
ends_with "two stages, a step ahead" 0
train base.json "${coded[@]}" --set model.tie_word_embeddings=true --set log.blocks=true --set run.directory=alone
ends_with "one rank with norms of blocks" 0
same_run "two stages, a step ahead" ahead 8 alone

# In parts, each on another mesh: as bits where the mesh promises them.
for part in 3:0 5:2 8:3; do
  ranks 3 base.json "${coded[@]}" --set batch.global=3 --set parallel.zero_stage="${part#*:}" --set run.directory=parts \
    --set run.exit_at_step="${part%:*}"
  ends_with "to step ${part%:*} at stage ${part#*:}" 0
done
same_state "in three parts" parts 8 zero-0
ranks 2 base.json "${coded[@]}" --set parallel.tensor=2 --set run.directory=chain --set run.exit_at_step=4
ranks 4 base.json "${coded[@]}" --set parallel.tensor=2 --set parallel.zero_stage=3 --set run.directory=chain --set run.exit_at_step=6
ends_with "from two ranks to four" 0
train base.json "${coded[@]}" --set run.directory=chain
ends_with "and to one" 0
close "over three meshes: losses" chain tensor 1e-4

# Of experts that ranks share.
mixed=("${coded[@]}" --set model.model_type=mixtral --set model.num_local_experts=4 --set model.num_experts_per_tok=2)
train base.json "${mixed[@]}" --set run.directory=experts-1
ends_with "experts on one rank" 0
ranks 4 base.json "${mixed[@]}" --set parallel.tensor=4 --set parallel.expert=2 --set parallel.expert_tensor=2 \
  --set model.num_key_value_heads=4 --set model.num_attention_heads=4 --set run.directory=experts-4
ends_with "experts shared by two ranks" 0
ranks 2 base.json "${mixed[@]}" --set parallel.expert=2 --set parallel.zero_stage=2 --set run.directory=experts-2
ends_with "experts on two ranks" 0

# What is saved.
folder=$(folder_of zero-0 8)
down=model.layers.0.mlp.down_proj.weight
train checkpoint show "$folder"
ends_with "show" 0
check "codes are bytes" grep -q "optimizer/$down/exp_avg  *uint8  *\[80, *200\]" out
check "magnitudes of their blocks" grep -q "optimizer/$down/exp_avg_sq_absmax  *fp32  *\[63\]" out
check "small tensors keep fp32" grep -q 'optimizer/model.norm.weight/exp_avg  *fp32' out
train checkpoint verify zero-3
ends_with "verify" 0

# The plan: two bytes and an eighth of one of 256 for each of most.
train plan base.json "${model[@]}" --json
plain=$(number optimizer out)
train plan base.json "${coded[@]}" --json
ends_with "plan" 0
check "the plan counts fewer bytes" awk -v a="$plain" -v b="$(number optimizer out)" 'BEGIN { exit !(b > 0 && b < 0.4 * a) }'

# Going on with the other type.
train base.json "${model[@]}" --set run.steps=8 --set batch.micro=1 --set run.directory=plain
cp -r plain changed
for state in 8bit fp32; do
  steps=$([ $state = 8bit ] && echo 12 || echo 16)
  train base.json "${model[@]}" --set batch.micro=1 --set optimizer.state=$state --set run.steps="$steps" --set run.directory=changed
  ends_with "on to step $steps with $state" 0
done
says "the change is said" 'optimizer.state: "8bit" -> "fp32"'
train base.json "${model[@]}" --set run.steps=16 --set batch.micro=1 --set run.directory=plain
close "losses with moments that were rounded between" changed plain 2e-2
cp -r zero-3 widened && cp -r zero-0 widened-too
ranks 3 base.json "${coded[@]}" --set batch.global=3 --set optimizer.state=fp32 --set run.steps=10 --set run.directory=widened
ends_with "three ranks go on in fp32" 0
ranks 3 base.json "${coded[@]}" --set batch.global=3 --set optimizer.state=fp32 --set run.steps=10 --set parallel.zero_stage=2 \
  --set run.directory=widened-too
same_state "another stage" widened-too 10 widened --set optimizer.state=fp32
for stage in 0 3; do
  cp -r widened rounded-$stage
  ranks 3 base.json "${coded[@]}" --set batch.global=3 --set run.steps=12 --set parallel.zero_stage=$stage --set run.directory=rounded-$stage
  ends_with "and again in 8 bits, stage $stage" 0
done
same_state "rounded on another stage" rounded-3 12 rounded-0

# Lion, bf16, averages, adapters.
for more in "--set optimizer.kind=lion --set optimizer.lr=0.0003" "--set precision.compute=bf16 --set optimizer.ema=0.5"; do
  # shellcheck disable=SC2086
  ranks 3 base.json "${coded[@]}" --set batch.global=3 $more --set run.directory="zero-0 $more"
  # shellcheck disable=SC2086
  ranks 3 base.json "${coded[@]}" --set batch.global=3 $more --set parallel.zero_stage=3 --set run.directory="zero-3 $more"
  ends_with "ZeRO 3 $more" 0
  # shellcheck disable=SC2086
  same_state "ZeRO 3 $more" "zero-3 $more" 8 "zero-0 $more" $more
done
train export --checkpoint plain --output hf
train base.json "${coded[@]}" --set init.weights=hf --set lora.rank=64 --set run.directory=tuned
ends_with "adapters" 0
check "adapters have codes" grep -q 'lora_A.*exp_avg_absmax' <<<"$(tensors_of "$(folder_of tuned 8)")"

train base.json --set optimizer.state=4bit --set run.directory=no
ends_with "another type" 2
says "another type: why" 'optimizer.state.*"fp32".*"8bit"'
finish
