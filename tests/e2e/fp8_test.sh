#!/usr/bin/env bash
# Training in fp8: both recipes learn, a run goes on to the bit where it was stopped, ranks and ZeRO change no bits that
# they keep in bf16, checkpoints are those of any precision, and what fp8 cannot be is refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
fp8=(base.json --set precision.compute=fp8)
block='precision.fp8={"recipe": "block", "gradients": "e4m3"}'
last_losses() { steps_of "$1" | tail -n 4 | sed 's/.*"loss":\([-0-9.e+]*\).*/\1/' | awk '{ s += $1 } END { print s / NR }'; }
near() { awk -v a="$1" -v b="$2" -v limit="$3" 'BEGIN { d = a / b - 1; exit !(d < limit && d > -limit) }'; }

train base.json --set run.directory=half --set precision.compute=bf16
ends_with "bf16" 0
# whole NAME OPTIONS...: a run in one go, and one stopped at step 7 and resumed.
whole() {
  local name=$1
  shift
  train "${fp8[@]}" "$@" --set run.directory="$name"
  ends_with "$name" 0
  check_metrics "$name" 20
  check "$name: it learns what bf16 learns" near "$(last_losses "$name")" "$(last_losses half)" 0.02
  check "$name: with products of its own" [ "$(steps_of "$name" | tail -n 1)" != "$(steps_of half | tail -n 1)" ]
  train "${fp8[@]}" "$@" --set run.directory="$name-again" --set run.exit_at_step=7
  ends_with "$name, first part" 0
  train "${fp8[@]}" "$@" --set run.directory="$name-again"
  ends_with "$name, second part" 0
  says "$name: it says where it goes on" 'resuming from step 7 '
  same_run "$name, resumed" "$name-again" 20 "$name"
}
whole tensor
says "what is in fp8 is told" 'fp8 (one scale a tensor, gradients e5m2'
check "the default is one scale a tensor" grep -q '"recipe": "tensor"' tensor/config.json
whole block --set "$block" --set batch.micro=1
says "blocks are told" 'fp8 (scales of blocks of 128, gradients e4m3'
check "recipes differ" [ "$(steps_of tensor | tail -n 1)" != "$(steps_of block | tail -n 1)" ]
train "${fp8[@]}" --set 'precision.fp8={"bf16_layers": [1, 0]}' --set run.directory=mixed --set run.steps=3
ends_with "a first layer in bf16" 0
check "a first layer in bf16 has other bits" [ "$(steps_of mixed | head -n 1)" != "$(steps_of tensor | head -n 1)" ]

# Two ranks: codes and scales are those of one, so that ZeRO adds in the order that it has in bf16.
for recipe in tensor block; do
  for stage in 0 1 2 3; do
    rm -rf zero$stage
    ranks 2 "${fp8[@]}" --set "precision.fp8={\"recipe\": \"$recipe\"}" --set run.directory=zero$stage --set run.steps=6 \
      --set parallel.zero_stage=$stage
    ends_with "$recipe, ZeRO $stage" 0
  done
  check "$recipe: ZeRO 1 as 0" same "$(steps_of zero1)" "$(steps_of zero0)"
  check "$recipe: ZeRO 3 as 2" same "$(steps_of zero3)" "$(steps_of zero2)"
  check "$recipe: there are steps" same "$(steps_of zero0 | wc -l) $(steps_of zero2 | wc -l)" "6 6"
  check "$recipe: ZeRO 2 learns what 0 learns" near "$(last_losses zero2)" "$(last_losses zero0)" 0.001
done
ranks 2 "${fp8[@]}" --set "$block" --set run.directory=wide --set run.steps=6 --set parallel.tensor=2 \
  --set model.num_key_value_heads=2 --set parallel.sequence_parallel=true
ends_with "tensor axis" 0
train "${fp8[@]}" --set "$block" --set run.directory=narrow --set run.steps=6 --set model.num_key_value_heads=2
ends_with "the same on one rank" 0
check "tensor axis: the losses of one rank" near "$(last_losses wide)" "$(last_losses narrow)" 0.001

# What norms' backward leaves for products, where norms stand behind branches too, where W waits, and with latents, where
# W of a layer comes behind the norm that begins the next.
behind=(--set model.model_type=olmo2)
latents=(--set model.model_type=deepseek_v3 --set model.num_key_value_heads=2 --set model.q_lora_rank=16 --set model.kv_lora_rank=16
  --set model.qk_nope_head_dim=16 --set model.qk_rope_head_dim=16 --set model.v_head_dim=16 --set model.first_k_dense_replace=2)
for kind in behind latents; do
  declare -n model=$kind
  maxima=("${fp8[@]}" "${model[@]}" --set run.steps=3 --set batch.micro=1)
  train "${maxima[@]}" --set run.directory=$kind
  ends_with "$kind" 0
  ranks 2 "${maxima[@]}" --set run.directory=$kind-apart --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h1
  ends_with "$kind, B and W apart" 0
  check "$kind: there are steps" same "$(steps_of $kind | wc -l)" 3
  check "$kind: the same bits" same "$(steps_of $kind-apart)" "$(steps_of $kind)"
done

# Checkpoints hold fp32 alone, from which bf16 goes on, and fp8 from what bf16 saved.
cp -r tensor to_half && cp -r half to_fp8
check "a checkpoint has the tensors of bf16's" same \
  "$(tensors_of "$(folder_of tensor 20)" | sed 's/"xxh3_128.*//')" "$(tensors_of "$(folder_of half 20)" | sed 's/"xxh3_128.*//')"
check "tensors are in fp32" same "$(grep -o '"dtype": "[a-z0-9]*"' "$(folder_of tensor 20)/manifest.json" | sort -u)" '"dtype": "fp32"'
train base.json --set precision.compute=bf16 --set run.directory=to_half --set run.steps=22
ends_with "bf16 after fp8" 0
says "bf16 after fp8: it goes on" 'resuming from step 20 '
train "${fp8[@]}" --set run.directory=to_fp8 --set run.steps=22
ends_with "fp8 after bf16" 0
says "fp8 after bf16: it goes on" 'resuming from step 20 '
for name in to_half to_fp8; do
  check "$name: the loss does not jump" awk -v before="$(last_losses half)" -v after="$(last_losses $name)" \
    'BEGIN { exit !(after < before * 1.03) }'
done
train generate --checkpoint tensor --prompt "stroke 7" --max-new-tokens 24 --temperature 0
ends_with "generate" 0
check "generate: it has learned how lines go on" [ "$(wc -c <out)" -gt 20 ]
train "${fp8[@]}" --set "$block" --set run.directory=sampled --set run.steps=4 --set evaluation.interval_steps=2 \
  --set 'evaluation.samples=["stroke 7"]'
ends_with "samples" 0
check "samples: one at each evaluation" same "$(grep -c '"kind":"sample","step":[24],"prompt":"stroke 7"' sampled/metrics.jsonl)" 2
train "${fp8[@]}" --set "$block" --set run.directory=unsampled --set run.steps=4
check "samples and evaluations change no bits" same "$(steps_of sampled)" "$(steps_of unsampled)"

# Adapters with magnitudes: a row's length is that of its codes' values, so that they begin as the base alone.
lora=(--set init.weights=half --set optimizer.lr=0.02 --set lora.rank=4)
first_loss() { steps_of "$1" | head -n 1 | sed 's/.*"loss":\([-0-9.e+]*\).*/\1/'; }
train base.json "${lora[@]}" --set precision.compute=bf16 --set lora.dora=true --set run.directory=dora_half
for recipe in tensor block; do
  adapted=("${fp8[@]}" "${lora[@]}" --set "precision.fp8={\"recipe\": \"$recipe\"}")
  train "${adapted[@]}" --set run.directory=lora_$recipe
  ends_with "$recipe: adapters" 0
  adapted+=(--set lora.dora=true)
  train "${adapted[@]}" --set run.directory=dora_$recipe
  ends_with "$recipe: adapters with magnitudes" 0
  check "$recipe: they begin as the base" near "$(first_loss dora_$recipe)" "$(first_loss lora_$recipe)" 0.001
  check "$recipe: lengths are trained" [ "$(last_losses dora_$recipe)" != "$(last_losses lora_$recipe)" ]
  check "$recipe: they learn what bf16 learns" near "$(last_losses dora_$recipe)" "$(last_losses dora_half)" 0.02
  train "${adapted[@]}" --set run.directory=dora_$recipe-again --set run.exit_at_step=7
  train "${adapted[@]}" --set run.directory=dora_$recipe-again
  same_run "$recipe: magnitudes, resumed" dora_$recipe-again 20 dora_$recipe
done

# plan: half the bytes of weights travel, and the maxima with them.
weights_sent() { number weights <(tr -d '\n' <out | grep -o '"data": *{[^}]*}' | tail -n 1); }
planned=(plan --world 4 --json --no-data --set batch.micro=1 --set parallel.zero_stage=3 --set model.hidden_size=512
  --set model.intermediate_size=1024)
train "${planned[@]}" base.json --set precision.compute=bf16
ends_with "plan of bf16" 0
half_sent=$(weights_sent)
for recipe in tensor block; do
  train "${planned[@]}" "${fp8[@]}" --set "precision.fp8={\"recipe\": \"$recipe\"}"
  ends_with "plan of $recipe" 0
  check "plan of $recipe: precision" grep -q '"precision": *"fp8"' out
  check "plan of $recipe: half of the weights' bytes, nearly" \
    awk -v fp8="$(weights_sent)" -v half="$half_sent" 'BEGIN { r = fp8 / half; exit !(r > 0.45 && r < 0.6) }'
done

# A cluster whose GPUs lack it is refused as by a start on one; a search keeps the precision, so that it is too.
lacks() { # lacks WHAT CLUSTER SENTENCE OPTIONS
  local what=$1 cluster=$2 sentence=$3 extra
  shift 3
  for extra in "" --search; do
    # shellcheck disable=SC2086
    train plan base.json --world 8 --no-data --cluster "$cluster" --json --set precision.compute=fp8 --set batch.global=16 "$@" $extra
    ends_with "$what $extra" 3
    says_once "$what $extra: the sentence" "$sentence"
    check "$what $extra: a JSON value" valid_json out
    check "$what $extra: with the error" grep -q '"path": "precision.compute"' out
    check "$what $extra: and no prediction" [ "$(grep -c '"time"\|"layouts"' out)" = 0 ]
  done
}
experts=(--set model.model_type=mixtral --set model.num_local_experts=4)
lacks "plan for A100" a100 'precision.compute: is "fp8" by the recipe "tensor", which A100 SXM 80GB (compute capability 8.0) cannot do: its tensor cores have no fp8, which begins at compute capability 8.9. Set precision.compute "bf16"'
lacks "plan of blocks for B200" b200 'which B200 SXM (compute capability 10.0) cannot do: products of blocks have kernels for compute capability 9.0 alone. Set precision.fp8.recipe "tensor"' \
  --set precision.fp8.recipe=block
lacks "plan of experts for B200" b200 'products of experts in fp8 have kernels for compute capability 9.0 alone. Set precision.compute "bf16"' "${experts[@]}"
for cluster in h100 b200; do
  train plan base.json --world 8 --no-data --cluster $cluster --search --set precision.compute=fp8 --set batch.global=16
  ends_with "plan for $cluster" 0
done
train plan base.json --world 8 --no-data --cluster h200 --set precision.compute=fp8 --set batch.global=16 --set precision.fp8.recipe=block "${experts[@]}"
ends_with "plan of experts in blocks for H200" 0

# What is refused says which key, and what would do.
refused() {
  local what=$1 pattern=$2
  shift 2
  train base.json "$@" --set run.directory=refused
  ends_with "$what" 2
  says_once "$what" "$pattern"
  check "$what: nothing was begun" [ ! -e refused/checkpoints ]
}
refused "sizes that are no multiples of 16" 'precision.compute: .*multiples of 16.*the hidden size .* 24' \
  --set precision.compute=fp8 --set model.hidden_size=24 --set model.num_attention_heads=2
refused "MLP columns" 'precision.compute: .*multiples of 16.*MLP columns .* 40' \
  --set precision.compute=fp8 --set model.intermediate_size=40
refused "a recipe without fp8" 'precision.fp8: .*precision.compute "fp8"' \
  --set precision.compute=bf16 --set 'precision.fp8={"recipe": "tensor"}'
refused "a recipe of no name" 'precision.fp8.*"tensor".*"block"' \
  --set precision.compute=fp8 --set 'precision.fp8={"recipe": "rows"}'
refused "gradients of no format" 'precision.fp8.*e5m2.*e4m3\|precision.fp8.*e4m3.*e5m2' \
  --set precision.compute=fp8 --set 'precision.fp8={"gradients": "e3m4"}'
refused "every layer in bf16" 'precision.fp8: .*fewer than the model.s 2 layers' \
  --set precision.compute=fp8 --set 'precision.fp8={"bf16_layers": [1, 1]}'

# What is not finite is skipped, with the tensor that shows it.
for recipe in tensor block; do
  train "${fp8[@]}" --set "precision.fp8={\"recipe\": \"$recipe\"}" --set run.directory=huge-$recipe \
    --set optimizer.lr=1e30 --set lr_schedule.warmup_steps=0 --set optimizer.clip_grad_norm=0
  ends_with "$recipe, weights beyond all bounds" 4
  check "$recipe: ten skips" [ "$(grep -c '"kind":"skip"' huge-$recipe/metrics.jsonl)" = 10 ]
  check "$recipe: skips name a tensor" \
    [ "$(grep '"kind":"skip"' huge-$recipe/metrics.jsonl | grep -c '"rank":[0-9]*,"tensor":"[a-z_]')" = 10 ]
done
finish
