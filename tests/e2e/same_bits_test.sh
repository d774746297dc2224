#!/usr/bin/env bash
# 20 steps = 10 + resume + 10, to the bit; so are two runs.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# continued WHAT STOP OPTIONS...: a run in one go against one stopped at STOP and resumed.
continued() {
  local what=$1 stop=$2 reference
  shift 2
  reference=whole-${what// /-}
  rm -rf run
  train base.json "$@" --set run.directory="$reference"
  ends_with "$what, whole" 0
  train base.json "$@" --set run.exit_at_step="$stop"
  ends_with "$what, first part" 0
  check "$what: the first part says why it ended" same "$(end_reason run)" exit_at_step
  train base.json "$@"
  ends_with "$what, second part" 0
  says "$what: it says where it goes on" "resuming from step $stop "
  same_run "$what" run 20 "$reference"
  check "$what: the second part says why it ended" same "$(end_reason run)" steps
  check "$what: evaluations agree" same "$(grep '"kind":"evaluation"' run/metrics.jsonl)" \
    "$(grep '"kind":"evaluation"' "$reference/metrics.jsonl")"
}

continued "plain" 10
check_metrics whole-plain 20
last_line_is_closing "a run"
check "a resume is on record" [ "$(grep -c '"kind":"resume","step":10,' run/metrics.jsonl)" = 1 ]
grep -v '"kind":"\(end\|start\|resume\)"' run/metrics.jsonl | reduced_json | sort -u >reduced
check "metrics of a resumed run are JSON" same "$(cat reduced)" V
check "each step stands once after a resume" same "$(steps_of run | sed 's/"step":\([0-9]*\).*/\1/' | tr '\n' ' ')" \
  "$(seq 20 | tr '\n' ' ')"
check "the loss falls" awk -v first="$(number loss run/metrics.jsonl)" -v last="$(number loss <(tail -n 4 run/metrics.jsonl))" \
  'BEGIN { exit !(last < first - 0.3) }'

train base.json --set run.directory=again
same_run "two runs" again 20 whole-plain
check "an update changes the tensors" [ "$(tensors_of "$(folder_of run 10)" | sort)" != "$(tensors_of "$(folder_of run 20)" | sort)" ]
train base.json --set run.directory=seed --set run.seed=77 --set run.exit_at_step=1
check "another seed, another loss" [ "$(steps_of seed | head -n 1)" != "$(steps_of run | head -n 1)" ]

# What a run wrote as its config trains to the same bits.
cp whole-plain/config.json resolved.json
check "config.json is JSON" valid_json resolved.json
train resolved.json --set run.directory=resolved
ends_with "a run of config.json" 0
same_run "config.json" resolved 20 whole-plain
sed 's/"resolved"/"whole-plain"/' resolved/config.json >back.json
check "config.json gives itself" same_file back.json resolved.json

continued "inside the warm-up" 3 --set lr_schedule.warmup_steps=7
continued "accumulation" 10 --set batch.micro=1 --set batch.global=2 --set batch.accumulation=2
continued "document mask" 10 --set data.document_mask=true --set data.mask_eod_loss=true
head -c 1300 text.txt >short.txt
train tokenize --tokenizer byte --output short short.txt
# 40 windows, 4 a step: the epoch turns at step 10 (and with 3 a step within step 14).
continued "epoch edge" 10 --set data.train=short
continued "within an epoch's edge" 14 --set data.train=short --set batch.global=3 --set batch.micro=3
continued "sequential order" 11 --set data.train=short --set data.order=sequential
continued "megatron order" 10 --set data.train=short --set data.order=megatron
continued "bf16" 10 --set precision.compute=bf16
continued "blend" 10 --set 'data.train=[[0.7, "toy"], [0.3, "short"]]' --set lr_schedule.kind=wsd
continued "synthetic" 10 --set data.train=synthetic
# On one rank a micro-batch of more than 512 MiB of activations is computed in passes.
cat >wide.json <<'E2'
{
  "run": {"directory": "wide", "steps": 1},
  "model": {"model_type": "llama", "vocab_size": 64, "hidden_size": 128, "intermediate_size": 576, "num_hidden_layers": 4,
            "num_attention_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": false},
  "data": {"train": "synthetic", "validation": "synthetic", "sequence_length": 512},
  "batch": {"global": 32, "micro": 32},
  "optimizer": {"lr": 0.001},
  "evaluation": {"interval_steps": 1, "batches": 1},
  "checkpoint": {"interval_steps": 1},
  "log": {"interval_steps": 1, "tensorboard": false}
}
E2
train wide.json
ends_with "a micro-batch in passes" 0
says "it says that it has passes" "32 global = 32 micro x 1 accumulation x 1 data rank, computed 16 at a time"
train wide.json --set run.directory=narrow --set batch.micro=16
ends_with "passes as micro-batches" 0
check "passes and micro-batches: the steps are equal" same "$(steps_of wide)" "$(steps_of narrow)"
check "passes and micro-batches: there are steps" [ "$(steps_of wide | wc -l)" = 1 ]
check "passes and micro-batches: evaluations agree" same "$(grep '"kind":"evaluation"' wide/metrics.jsonl)" \
  "$(grep '"kind":"evaluation"' narrow/metrics.jsonl)"
check "passes and micro-batches: there are evaluations" [ "$(grep -c '"kind":"evaluation"' wide/metrics.jsonl)" = 1 ]
check "passes and micro-batches: the tensors are equal" same "$(tensors_of "$(folder_of wide 1)")" \
  "$(tensors_of "$(folder_of narrow 1)")"
finish
