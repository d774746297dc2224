#!/usr/bin/env bash
# model_backend.dropout: the same numbers are dropped on every mesh, by every schedule and recomputation, and by a run that
# goes on; what does not train drops nothing.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

sed 's/"model": {.*/"model": {"model_type": "gpt2", "vocab_size": 257, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64},/
  /"num_hidden_layers"/d' base.json >gpt2.json
options=(--set run.steps=6 --set batch.micro=1 --set evaluation.interval_steps=3)
dropped=("${options[@]}" --set model_backend.dropout=true)

train gpt2.json "${dropped[@]}" --set run.directory=whole
ends_with "a gpt2 of transformers' rates" 0
check "nothing is said to be left out" [ "$(grep -c "dropout" log)" = 0 ]
check "config.json has the key" grep -q '"dropout":true' <(tr -d '\n ' <whole/config.json)
train gpt2.json "${options[@]}" --set run.directory=plain
check "without the key another loss" [ "$(steps_of plain | head -n 1)" != "$(steps_of whole | head -n 1)" ]
train gpt2.json "${options[@]}" --set model.resid_pdrop=0.3 --set run.directory=told
check "a rate of the config is told" [ "$(grep -c "model: dropout is not applied (resid_pdrop 0.3); model_backend.dropout applies it" log)" = 1 ]
same_run "a rate that is not applied" told 6 plain
train gpt2.json "${dropped[@]}" --set data.seed=1 --set run.seed=99 --set init.weights="$(folder_of whole 6)" --set run.directory=seed
train gpt2.json "${dropped[@]}" --set data.seed=1 --set init.weights="$(folder_of whole 6)" --set run.directory=same-seed
check "another seed drops others" [ "$(steps_of seed | head -n 1)" != "$(steps_of same-seed | head -n 1)" ]

# A run that goes on, and what changes no bit.
train gpt2.json "${dropped[@]}" --set run.exit_at_step=2 --set run.directory=parts
train gpt2.json "${dropped[@]}" --set run.directory=parts
ends_with "a run that goes on" 0
same_run "a run that goes on" parts 6 whole
for recompute in selective full; do
  train gpt2.json "${dropped[@]}" --set parallel.recompute=$recompute --set run.directory=$recompute
  same_run "recomputation, $recompute" $recompute 6 whole
done
for schedule in 1f1b zb-h1 zb-v; do
  ranks 2 gpt2.json "${dropped[@]}" --set parallel.pipeline=2 --set parallel.pipeline_schedule=$schedule --set run.directory=$schedule
  ends_with "$schedule" 0
  same_run "$schedule" $schedule 6 whole
done
ranks 2 gpt2.json "${dropped[@]}" --set parallel.zero_stage=3 --set run.directory=data
close "two data ranks" data whole 1e-5
for method in ring allgather ulysses; do
  ranks 2 gpt2.json "${dropped[@]}" --set parallel.context=2 --set parallel.context_method=$method --set run.directory=$method
  close "two context ranks, $method" $method whole 1e-5
done
ranks 4 gpt2.json "${dropped[@]}" --set parallel.tensor=4 --set parallel.sequence_parallel=true --set run.directory=tensor
close "four tensor ranks" tensor whole 1e-5

# What does not train.
loss_of() { sed 's/.*"loss":\([^,}]*\).*/\1/'; }
for dropout in true false; do
  train evaluate whole/config.json --set model_backend.dropout=$dropout --checkpoint "$(folder_of whole 6)" --json
  ends_with "evaluate, dropout $dropout" 0
  check "evaluation drops nothing, dropout $dropout" same "$(grep '"kind":"evaluation"' out | loss_of)" \
    "$(grep '"kind":"evaluation","step":6,' whole/metrics.jsonl | loss_of)"
done

train base.json --set model.attention_dropout=1 --set run.directory=refused
ends_with "a rate of 1" 2
says "it is named" "model.attention_dropout"
train base.json --set model.attention_dropout=0.1 --set model_backend.dropout=true --set model_backend.attention=cudnn --set precision.compute=bf16 --set run.directory=refused
ends_with "dropout by cuDNN" 2
says "it is named" "knows no dropout of probabilities"
finish
