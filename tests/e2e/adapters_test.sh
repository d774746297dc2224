#!/usr/bin/env bash
# A run of adapters from end to end: small checkpoints that every command takes as the whole model, peft's files out and in,
# means, and a base that has moved or changed.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
refused() {
  ends_with "$1" "$2"
  says "$1: why" "$3"
}
heads=(--set model.num_attention_heads=4 --set model.num_key_value_heads=2 --set run.steps=2)
train base.json "${heads[@]}" --set run.directory=first
ends_with "a base" 0
train export --checkpoint first --output hf
ends_with "a base for transformers" 0
lora=("${heads[@]}" --set init.weights=hf --set lora.rank=3 --set lora.alpha=9 --set optimizer.lr=0.05)
for seed in 1 2; do
  train base.json "${lora[@]}" --set run.directory=tuned$seed --set run.seed=$seed
  ends_with "adapters" 0
done

train export --checkpoint tuned1 --output peft
ends_with "export" 0
check "peft's files" test -f peft/adapter_config.json -a -f peft/adapter_model.safetensors -a ! -f peft/config.json
train export --checkpoint tuned1 --output whole --merge
ends_with "export --merge" 0
check "a whole model" test -f whole/config.json -a -f whole/model.safetensors -a ! -f whole/adapter_config.json
greedy=(--token-ids 104,101,32,115,101 --temperature 0 --max-new-tokens 12)
sources=(tuned1 peft whole)
for source in "${sources[@]}"; do
  train generate --checkpoint $source "${greedy[@]}"
  ends_with "generate, $source" 0
  cp out $source.ids
  train evaluate --checkpoint $source --data toy --sequence-length 32 --batches 4 --json
  ends_with "evaluate, $source" 0
  grep -o '"loss":[0-9.]*' out >$source.loss
  check "$source: the ids of one model" same_file $source.ids tuned1.ids
  check "$source: the loss of one model" same_file $source.loss tuned1.loss
done
train evaluate base.json "${lora[@]}" --set run.directory=tuned1
ends_with "evaluate, by the run's config" 0
train evaluate --checkpoint hf --data toy --sequence-length 32 --batches 4 --json
grep -o '"loss":[0-9.]*' out >hf.loss
check "the base has another" [ "$(cat hf.loss)" != "$(cat tuned1.loss)" ]
for mesh in "--tensor 2" "--pipeline 2"; do
  # shellcheck disable=SC2086
  ranks 2 generate --checkpoint tuned1 "${greedy[@]}" $mesh
  ends_with "two ranks, $mesh" 0
  check "two ranks, $mesh: the ids of one" same_file out tuned1.ids
done

train average tuned1 tuned2 --output mean
ends_with "average" 0
check "a mean is an adapter" test -f mean/adapter_config.json -a -f mean/adapter_model.safetensors
train generate --checkpoint mean "${greedy[@]}"
ends_with "generate, of the mean" 0
train average tuned1 hf --output other
refused "average with a whole model" 2 "hf: holds a whole model"

train base.json "${lora[@]}" --set run.directory=again --set init.adapter=peft
ends_with "adapters from a folder of peft's" 0
train base.json "${lora[@]}" --set run.directory=less --set init.adapter=peft --set lora.rank=2
refused "from adapters of another rank" 2 "rank 3, lora has 2"
train export --checkpoint first --output x --merge
refused "a whole model merged" 2 "holds a whole model already"

# Products of GPT-2 lie [in, out], three of them in one tensor; adapters that have not moved add nothing.
gpt2=(--set model=null --set init.weights="$root/tests/golden/model/gpt2" --set run.steps=1)
train base.json "${gpt2[@]}" --set run.directory=gpt2
ends_with "GPT-2" 0
train base.json "${gpt2[@]}" --set run.directory=gpt2_tuned --set lora.rank=2
ends_with "adapters beside GPT-2" 0
first_loss() { grep -o '"kind":"step","step":1,"loss":[0-9.]*' "$1/metrics.jsonl"; }
check "GPT-2: the loss of the base" same "$(first_loss gpt2_tuned)" "$(first_loss gpt2)"

# one_model PARTS SOURCE...: greedy ids of all sources are those of the first, which two ranks have in PARTS too.
one_model() {
  local parts=$1 first=$2 source
  shift
  for source in "$@"; do
    train generate --checkpoint "$source" "${greedy[@]}"
    ends_with "generate, $source" 0
    cp out "$source.ids"
    check "$source: the ids of one model" same_file "$source.ids" "$first.ids"
  done
  ranks 2 generate --checkpoint "$first" "${greedy[@]}" --tensor 2
  ends_with "generate, two ranks with $parts" 0
  check "two ranks: the ids of one" same_file out "$first.ids"
}

# Beside the head too, whose rows three ranks do not divide; with lengths of its rows; on other meshes it goes on.
head=("${lora[@]}" --set lora.dora=true --set lora.dropout=0.1 --set 'lora.targets=["v_proj","lm_head"]')
ranks 2 base.json "${head[@]}" --set run.directory=head --set parallel.tensor=2
ends_with "adapters of the head on two ranks" 0
ranks 2 base.json "${head[@]}" --set run.directory=head --set parallel.pipeline=2 --set run.steps=3
ends_with "two stages go on" 0
train export --checkpoint head --output head_peft
ends_with "export of the head's adapter" 0
check "as a module" grep -q '"lm_head"' head_peft/adapter_config.json
train export --checkpoint head --output head_whole --merge
ends_with "export --merge of the head's" 0
one_model "parts of the head" head head_peft head_whole
train base.json "${head[@]}" --set run.directory=head_again --set init.adapter=head_peft --set run.steps=1
ends_with "the head's from a folder of peft's" 0
train average head head_peft --output head_mean
ends_with "average of the head's" 0
for mesh in parallel.zero_stage=3 parallel.pipeline=2; do
  ranks 2 base.json "${lora[@]}" --set run.directory="alone_$mesh" --set 'lora.targets=["lm_head"]' --set $mesh \
    --set evaluation.samples='["he"]'
  ends_with "the head's alone, $mesh" 0
done
train base.json "${gpt2[@]}" --set run.directory=no --set lora.rank=2 --set 'lora.targets=["lm_head"]'
refused "a head that is the embedding" 2 "lora.targets: this head is the embedding"

# Experts, which files of peft's hold together, beside a model of two ranks and another that it goes on from.
moe=(--set 'model={"model_type":"mixtral","vocab_size":257,"hidden_size":32,"intermediate_size":24,"num_hidden_layers":2,
  "num_attention_heads":2,"num_key_value_heads":1,"max_position_embeddings":64,"num_local_experts":4}')
train base.json "${moe[@]}" --set run.directory=moe --set run.steps=2
ends_with "a base of experts" 0
train export --checkpoint moe --output moe_hf
of_experts=("${moe[@]}" --set init.weights=moe_hf --set lora.rank=2 --set optimizer.lr=0.05
  --set 'lora.targets=["v_proj","experts.gate_up_proj","experts.down_proj"]')
ranks 2 base.json "${of_experts[@]}" --set parallel.expert=2 --set run.directory=moe_tuned --set run.steps=2
ends_with "adapters of experts on two ranks" 0
train export --checkpoint moe_tuned --output moe_peft
ends_with "export of experts' adapters" 0
check "as parameters" grep -q '"experts.gate_up_proj"' moe_peft/adapter_config.json
train export --checkpoint moe_tuned --output moe_whole --merge
ends_with "export --merge of experts" 0
one_model "parts of experts" moe_tuned moe_peft moe_whole
train base.json "${of_experts[@]}" --set run.directory=moe_again --set init.adapter=moe_peft --set run.steps=1
ends_with "experts from a folder of peft's" 0
train base.json "${of_experts[@]}" --set run.directory=moe_tuned --set run.steps=3
ends_with "one rank goes on" 0
train average moe_tuned moe_peft --output moe_mean
ends_with "average of experts" 0
train generate --checkpoint moe_mean "${greedy[@]}"
ends_with "generate, of the mean of experts" 0
train base.json "${of_experts[@]}" --set run.directory=no --set lora.dora=true
refused "DoRA beside experts" 2 "lora.dora: peft has none beside experts"

mv hf moved
train generate --checkpoint tuned1 "${greedy[@]}"
refused "a base that is gone" 74 "its adapters stand beside weights that are not there"
train generate --checkpoint tuned1 "${greedy[@]}" --base moved
ends_with "a base that has moved" 0
check "the same model" same_file out tuned1.ids
printf 'x' | dd of=moved/model.safetensors bs=1 seek="$(($(stat -c %s moved/model.safetensors) - 1))" conv=notrunc 2>dd.log
train export --checkpoint tuned1 --output y --merge --base moved
refused "another base" 74 "moved/model.safetensors: is not the file beside which"
train base.json "${lora[@]}" --set init.weights=moved --set run.directory=tuned1 --set run.steps=4
refused "a run that goes on beside another base" 74 "moved/model.safetensors: is not the file beside which"
finish
