#!/usr/bin/env bash
# Adapters beside a base in NF4: pipelines and a resume have the bits of one rank, ZeRO 3 and the tensor axis agree; its
# memory is half a byte and a sixteenth a weight; a mesh that would cut a block is refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
wide=(base.json --set model.hidden_size=128 --set model.intermediate_size=256 --set model.num_attention_heads=4
  --set batch.micro=1 --set run.steps=4)
nf4=("${wide[@]}" --set init.weights=whole --set lora.rank=4 --set lora.base=nf4)
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a > 0 && d <= 2e-6 * a) }'; }
losses() { steps_of "$1" | sed 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\).*/\1 \2/'; }

train "${wide[@]}" --set run.directory=whole --set run.steps=2
ends_with "a base" 0
train "${nf4[@]}" --set run.directory=one
ends_with "one rank" 0
train "${nf4[@]}" --set run.directory=plain --set lora.base=compute
check "codes are other weights" [ "$(losses one)" != "$(losses plain)" ]
ranks 2 "${nf4[@]}" --set run.directory=stages --set parallel.pipeline=2 --set run.exit_at_step=2
train "${nf4[@]}" --set run.directory=stages
ends_with "two stages, then one" 0
check "two stages and a resume have the bits of one rank" same "$(losses stages)" "$(losses one)"
ranks 4 "${nf4[@]}" --set run.directory=shared --set parallel.tensor=2 --set parallel.zero_stage=3
ends_with "two tensor ranks, each shared by two" 0
check "they agree with one rank" awk 'NR == FNR { expected[FNR] = $1; next }
    { d = $1 - expected[FNR]; if (d < 0) d = -d; if (!(d <= 2e-6 * expected[FNR])) exit 1; ++n }
    END { exit n != 4 }' <(losses one) <(losses shared)

# An evaluation in the run computes with the adapters beside the base, one of its checkpoint with both merged.
for how in nf4 nf4_dora; do
  watched=("${nf4[@]}" --set run.directory=$how --set data.validation=toy --set evaluation.batches=2)
  if [ $how = nf4_dora ]; then watched+=(--set lora.dora=true --set optimizer.lr=0.01); fi
  train "${watched[@]}"
  ends_with "$how: a run with an evaluation" 0
  train evaluate "${watched[@]}" --json
  ends_with "$how: evaluate" 0
  check "$how: merged, it has the loss of the run" near "$(grep -o '"loss":[0-9.]*' out | cut -d: -f2)" \
    "$(grep '"kind":"evaluation"' $how/metrics.jsonl | tail -n 1 | grep -o '"loss":[0-9.]*' | cut -d: -f2)"
done
train export --checkpoint nf4 --output nf4_merged --merge
ends_with "export --merge" 0
train evaluate --checkpoint nf4_merged --data toy --sequence-length 32 --batches 4 --json
merged=$(grep -o '"loss":[0-9.]*' out | cut -d: -f2)
train evaluate --checkpoint nf4 --data toy --sequence-length 32 --batches 4 --json
check "exported, the same model" near "$(grep -o '"loss":[0-9.]*' out | cut -d: -f2)" "$merged"

# q and o, k and v, gate, up and down of two layers: 4.5 bits in place of 32.
parameters() { train plan "${nf4[@]}" --json "$@"; tr -d ' \n' <out | sed 's/.*"memory_bytes":{"parameters":\([0-9]*\).*/\1/'; }
weights=$((2 * 128 * (2 * 128 + 2 * 32 + 3 * 256)))
check "a weight takes 4.5 bits" [ $(($(parameters --set lora.base=compute) - $(parameters))) = $((weights * 55 / 16)) ]
train plan "${nf4[@]}" --set parallel.tensor=4
ends_with "four tensor ranks" 2
says "the tensor and the cut are named" 'cuts model.layers.0.self_attn.o_proj.weight \[128, 128\] at row 0, column 32'
finish
