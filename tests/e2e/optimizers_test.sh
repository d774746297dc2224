#!/usr/bin/env bash
# optimizer.groups, ema and kind in whole runs: meshes and stops change no bits, averages are evaluated and exported, what
# a checkpoint does not have begins anew, and groups that mean nothing are refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
tied=(--set model.tie_word_embeddings=true --set model.num_key_value_heads=2)
groups=(--set 'optimizer.groups=[{"match":"embed_tokens","trainable":false},{"match":"norm","lr_scale":2,"weight_decay":0.1},
  {"match":"layers.0.*down_proj","trainable":false}]' --set optimizer.ema=0.9)
lion=(--set optimizer.kind=lion --set optimizer.lr=0.0003)
muon=(--set optimizer.kind=muon --set optimizer.matrix_lr=0.004)
short=(--set run.steps=8 --set batch.micro=1)

# in_parts NAME OPTIONS...: eight steps at once, and five and three on two ranks of ZeRO stage 3.
in_parts() {
  local name=$1
  shift
  ranks 2 base.json "${short[@]}" "$@" --set parallel.zero_stage=2 --set run.directory="$name-whole"
  ends_with "$name" 0
  ranks 2 base.json "${short[@]}" "$@" --set parallel.zero_stage=2 --set run.directory="$name" --set run.exit_at_step=5
  ends_with "$name, five steps" 0
  ranks 2 base.json "${short[@]}" "$@" --set parallel.zero_stage=3 --set run.directory="$name"
  ends_with "$name, three more of another stage" 0
  same_run "$name in two parts" "$name" 8 "$name-whole"
}
in_parts groups "${tied[@]}" "${groups[@]}"
for recipe in tensor block; do
  in_parts "groups-in-fp8-$recipe" --set precision.compute=fp8 --set precision.fp8.recipe=$recipe \
    --set 'optimizer.groups=[{"match":"o_proj","trainable":false},{"match":"layers.0.mlp","trainable":false}]'
done
in_parts lion "${lion[@]}" --set optimizer.ema=0.5
# Schedule-free evaluates x, in the midst of a run too, and trains y; saves are of x.
free=(--set optimizer.kind=schedule-free --set lr_schedule.warmup_steps=3 --set evaluation.interval_steps=3
  --set 'optimizer.groups=[{"match":"mlp","lr_scale":0.5}]')
in_parts free "${free[@]}"
in_parts free-in-bf16 "${free[@]}" --set precision.compute=bf16
for recipe in tensor block; do
  in_parts free-in-fp8-$recipe "${free[@]}" --set precision.compute=fp8 --set precision.fp8.recipe=$recipe
done
# Adafactor's means are over all ranks' rows: exact, so that stages agree in all bits.
factored=(--set optimizer.kind=adafactor --set optimizer.lr=0.02 --set optimizer.ema=0.5)
in_parts factored "${factored[@]}" --set 'optimizer.groups=[{"match":"mlp","lr_scale":0.5}]' --set log.blocks=true
in_parts factored-in-bf16 "${factored[@]}" --set precision.compute=bf16
in_parts factored-experts "${factored[@]}" --set model.model_type=mixtral --set model.num_local_experts=4 --set parallel.expert=2
check "Adafactor keeps rows and columns" same "$(tensors_of "$(folder_of factored 8)" | grep -o 'optimizer/model.\(norm\|embed_tokens\).weight/[a-z_]*"' | tr -d '"' | sort -u | xargs)" \
  "optimizer/model.embed_tokens.weight/col_var optimizer/model.embed_tokens.weight/row_var optimizer/model.norm.weight/variance"
# moved NAME OPTIONS...: five steps on two tensor-parallel ranks, three on two data ranks; near one rank's.
moved() {
  local name=$1
  shift
  local of=("${short[@]}" "$@" --set model.num_key_value_heads=2)
  ranks 2 base.json "${of[@]}" --set parallel.tensor=2 --set run.directory="$name-moved" --set run.exit_at_step=5
  ranks 2 base.json "${of[@]}" --set parallel.zero_stage=3 --set run.directory="$name-moved"
  ends_with "$name on another mesh" 0
  train base.json "${of[@]}" --set run.directory="$name-alone"
  close "$name on another mesh: losses" "$name-moved" "$name-alone" 1e-5
}
moved factored "${factored[@]}"
moved free "${free[@]}"
ranks 2 base.json "${short[@]}" "${free[@]}" --set evaluation.interval_steps=0 --set parallel.zero_stage=2 --set run.directory=free-seldom
ends_with "schedule-free, evaluated once" 0
same_run "schedule-free: evaluations change no bits" free-seldom 8 free-whole
check "schedule-free has z and a second moment" same "$(tensors_of "$(folder_of free 8)" | grep -o 'optimizer/model.norm.weight/[a-z_]*' | sort -u | xargs)" \
  "optimizer/model.norm.weight/exp_avg_sq optimizer/model.norm.weight/z"
train evaluate --checkpoint free-whole --data toy --sequence-length 32 --batches 8 --json
check "schedule-free: the run's last evaluation is that of its checkpoint" awk -v a="$(sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' out)" \
  -v b="$(grep '"kind":"evaluation"' free-whole/metrics.jsonl | tail -n 1 | sed 's/.*"loss":\([0-9.]*\).*/\1/')" \
  'BEGIN { d = a - b; exit !(a > 0 && d < 1e-5 && d > -1e-5) }'
in_parts muon "${muon[@]}" --set optimizer.ema=0.5
names=$(tensors_of "$(folder_of groups 8)")
check "what stands still has a value" grep -q 'parameters/model.embed_tokens.weight' <<<"$names"
check "and no moments" [ "$(grep -c 'optimizer/model.embed_tokens' <<<"$names")" = 0 ]
check "averages of what is trained" grep -q 'ema/model.norm.weight' <<<"$names"
check "lion has one moment" [ "$(tensors_of "$(folder_of lion 8)" | grep -c exp_avg_sq)" = 0 ]
names=$(tensors_of "$(folder_of muon 8)")
check "matrices have a momentum" grep -q 'optimizer/model.layers.0.mlp.up_proj.weight/momentum_buffer' <<<"$names"
check "and nothing of AdamW's" [ "$(grep -c '_proj.weight/exp_avg' <<<"$names")" = 0 ]
check "all else has AdamW's moments" grep -q 'optimizer/model.embed_tokens.weight/exp_avg_sq' <<<"$names"
check "and no momentum" [ "$(grep -c 'embed_tokens.weight/momentum_buffer' <<<"$names")" = 0 ]
# Matrices are updated alike wherever they are, so that meshes part no more than with AdamW.
heads=(--set model.num_key_value_heads=2)
ranks 2 base.json "${short[@]}" "${muon[@]}" "${heads[@]}" --set run.directory=muon-mesh --set parallel.zero_stage=1 --set run.exit_at_step=4
ranks 2 base.json "${short[@]}" "${muon[@]}" "${heads[@]}" --set run.directory=muon-mesh --set parallel.tensor=2 --set run.exit_at_step=6
ends_with "matrices in rows, then in parts of another kind" 0
train base.json "${short[@]}" "${muon[@]}" "${heads[@]}" --set run.directory=muon-mesh
train base.json "${short[@]}" "${muon[@]}" "${heads[@]}" --set run.directory=muon-alone
close "muon on three meshes: losses" muon-mesh muon-alone 1e-3
train base.json "${short[@]}" "${muon[@]}" "${heads[@]}" --set run.directory=muon-blocks --set log.blocks=true --set log.interval_steps=1
ends_with "muon, norms of blocks" 0
same_run "muon, norms of blocks" muon-blocks 8 muon-alone
ranks 2 base.json "${short[@]}" "${tied[@]}" "${groups[@]}" --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h1 \
  --set run.directory=stages
ends_with "groups on two stages" 0
close "groups on two stages: losses" stages groups-whole 1e-5

# Averages of weights that never move are these.
train base.json "${short[@]}" --set optimizer.lr=0 --set optimizer.ema=0.5 --set run.directory=plain
ends_with "averages of what stands" 0
evaluate=(--data toy --sequence-length 32 --batches 4 --json)
for of in plain lion groups; do
  train evaluate --checkpoint $of "${evaluate[@]}"
  cp out $of.last
  train evaluate --checkpoint $of "${evaluate[@]}" --ema
  ends_with "evaluate --ema, $of" 0
  cp out $of.ema
done
check "averages of what stands are the weights" same_file plain.last plain.ema
check "others are not" [ "$(cat groups.last)" != "$(cat groups.ema)" ]
train export --checkpoint groups --output averaged --ema
ends_with "export --ema" 0
train evaluate --checkpoint averaged "${evaluate[@]}" --precision fp32
check "an export of averages is what --ema evaluates" same "$(grep -o '"loss":[0-9.]*' out)" "$(grep -o '"loss":[0-9.]*' groups.ema)"
train base.json "${short[@]}" --set run.directory=without
train export --checkpoint without --output none --ema
ends_with "no averages" 2
says "no averages: why" "without.*holds no averages"
train evaluate --checkpoint averaged "${evaluate[@]}" --ema
ends_with "averages of an export" 2

# A run goes on with another optimizer, with averages, with what stood still before.
train base.json "${short[@]}" "${lion[@]}" "${groups[@]}" --set run.directory=without --set run.steps=10
ends_with "another kind" 0
says "another kind: its moments begin anew" "moments begin anew"
train base.json --set run.directory=without --set run.steps=11 --set batch.micro=1 "${muon[@]}"
ends_with "a kind of whole matrices" 0
says "a kind of whole matrices: moments begin anew" "moments begin anew"
train base.json --set run.directory=without --set run.steps=12 --set batch.micro=1 --set optimizer.ema=0.9
ends_with "all is trained again" 0
check "and has moments" grep -q 'optimizer/model.embed_tokens.weight/exp_avg_sq' <<<"$(tensors_of "$(folder_of without 12)")"

# Adapters, one factor faster than the other.
train export --checkpoint plain --output hf
lora=(--set init.weights=hf --set lora.rank=2 --set 'optimizer.groups=[{"match":"lora_B","lr_scale":4}]' --set optimizer.ema=0.5)
train base.json "${short[@]}" "${lora[@]}" --set run.directory=tuned
ends_with "groups of adapters" 0
train base.json "${short[@]}" --set init.weights=hf --set lora.rank=2 "${muon[@]}" --set run.directory=whole-adapters
ends_with "adapters as whole matrices" 0
check "both factors have a momentum" same 2 \
  "$(tensors_of "$(folder_of whole-adapters 8)" | grep -o 'layers.0[a-z_.]*q_proj.lora_[AB].weight/momentum_buffer' | sort -u | wc -l)"
train export --checkpoint tuned --output peft --ema
ends_with "export --ema of adapters" 0
train export --checkpoint tuned --output merged --merge --ema
ends_with "export --merge --ema" 0
train evaluate --checkpoint tuned "${evaluate[@]}" --ema
cp out tuned.ema
train evaluate --checkpoint merged "${evaluate[@]}" --precision fp32
check "merged averages are the averages" same "$(grep -o '"loss":[0-9.]*' out)" "$(grep -o '"loss":[0-9.]*' tuned.ema)"

refused() { # NAME OPTION REASON
  train base.json --set run.directory=no --set "$2"
  ends_with "$1" 2
  says "$1: why" "$3"
}
refused "a name that is none" 'optimizer.groups=[{"match":"embed_tokns"}]' 'optimizer.groups.0..match.*nearest: "embed_tokens"'
refused "a part of one product" 'optimizer.groups=[{"match":"k_proj","trainable":false}]' 'gradients are one product'
refused "nothing to train" 'optimizer.groups=[{"match":"*","trainable":false}]' 'nothing to train'
refused "betas of adafactor" 'optimizer={"lr":1,"kind":"adafactor","betas":[0.9,0.99]}' 'optimizer.betas'
refused "eps of adafactor" 'optimizer={"lr":1,"kind":"adafactor","eps":1e-8}' 'optimizer.eps'
refused "averages of averages" 'optimizer={"lr":1,"kind":"schedule-free","ema":0.9}' 'optimizer.ema'
refused "a rate of matrices with adamw" 'optimizer.matrix_lr=0.1' 'optimizer.matrix_lr.*Muon'
refused "eps of lion" 'optimizer={"lr":1,"kind":"lion","eps":1e-8}' 'optimizer.eps'
train base.json "${free[@]}" --set lr_schedule.kind=cosine --set run.directory=no
ends_with "a schedule beside schedule-free" 2
says "a schedule beside schedule-free: why" 'lr_schedule.kind'
train plan base.json "${groups[@]}" --json
ends_with "plan" 0
train plan base.json "${muon[@]}" --json
ends_with "plan of muon" 0
finish
