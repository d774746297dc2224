#!/usr/bin/env bash
# Two ranks hold the same promises as one; losses do not depend on how many share the batch.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ranks 2 base.json --set run.directory=whole --set batch.micro=1
ends_with "two ranks" 0
check_metrics whole 20
check "two ranks write two shards" [ "$(ls "$(folder_of whole 20)" | grep -c '^rank-')" = 2 ]
ranks 2 base.json --set run.directory=again --set batch.micro=1
same_run "two runs of two ranks" again 20 whole
ranks 2 base.json --set batch.micro=1 --set run.exit_at_step=10
ends_with "two ranks, first part" 0
ranks 2 base.json --set batch.micro=1
ends_with "two ranks, second part" 0
same_run "two ranks resumed" run 20 whole

# From two ranks to one: the same samples, sums of another order.
rm -rf run
ranks 2 base.json --set batch.micro=1 --set run.exit_at_step=10
train base.json
ends_with "one rank goes on where two stopped" 0
check "each step stands once after another rank count" [ "$(steps_of run | wc -l)" = 20 ]
# losses_agree WHAT RUN EXPECTED_RUN: to 1e-5.
losses_agree() {
  check "$1" awk 'NR == FNR { expected[FNR] = $1; next }
    { d = $1 - expected[FNR]; if (d < 0) d = -d; if (!(d <= 1e-5 * expected[FNR])) exit 1; ++n }
    END { exit n < 5 }' <(steps_of "$3" | sed 's/.*"loss":\([^,]*\).*/\1/') <(steps_of "$2" | sed 's/.*"loss":\([^,]*\).*/\1/')
}
losses_agree "resumed on one rank, losses agree" run whole

twelve=(--set batch.global=12 --set batch.micro=1 --set run.steps=8)
train base.json "${twelve[@]}" --set run.directory=n1
ends_with "twelve samples on one rank" 0
for n in 2 3 4; do
  ranks $n base.json "${twelve[@]}" --set run.directory=n$n
  ends_with "twelve samples on $n ranks" 0
  losses_agree "losses on $n ranks are those of one" n$n n1
  check "$n ranks consume the same samples" same "$(steps_of n$n | sed 's/.*"consumed/"consumed/')" \
    "$(steps_of n1 | sed 's/.*"consumed/"consumed/')"
done
# With counts of targets that differ between samples.
masked=("${twelve[@]}" --set data.document_mask=true --set data.mask_eod_loss=true)
train base.json "${masked[@]}" --set run.directory=m1
ranks 3 base.json "${masked[@]}" --set run.directory=m3
losses_agree "masked losses on 3 ranks are those of one" m3 m1
ranks 3 base.json "${twelve[@]}" --set run.directory=n3b
same_run "two runs of three ranks" n3b 8 n3

# Activations of more than 512 MiB on both together: each rank computes its micro-batch in passes.
cat >wide.json <<'E2'
{
  "run": {"directory": "wide", "steps": 5},
  "model": {"model_type": "llama", "vocab_size": 64, "hidden_size": 128, "intermediate_size": 576, "num_hidden_layers": 4,
            "num_attention_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": false},
  "data": {"train": "synthetic", "sequence_length": 512},
  "batch": {"global": 64, "micro": 32},
  "optimizer": {"lr": 0.001},
  "log": {"interval_steps": 1, "tensorboard": false}
}
E2
ranks 2 wide.json
ends_with "micro-batches in passes on two ranks" 0
says "it says that both have passes" "64 global = 32 micro x 1 accumulation x 2 data ranks, computed 16 at a time"
ranks 2 wide.json --set run.directory=whole2 --set parallel.zero_stage=2
check "shards of gradients have none" [ "$(grep -c 'at a time' log)" = 0 ]
losses_agree "passes on two ranks, losses agree" wide whole2

# A vocabulary of far more rows than a step has tokens: the embedding's gradient is held as rows, with ZeRO 1 whole.
rows=("${twelve[@]}" --set model.vocab_size=1999 --set optimizer.clip_grad_norm=0.5)
for n in 2 3 4; do
  ranks $n base.json "${rows[@]}" --set run.directory=rows$n
  ends_with "gradient in rows on $n ranks" 0
  ranks $n base.json "${rows[@]}" --set run.directory=zero$n --set parallel.zero_stage=1
  check "rows and the whole on $n ranks: the steps are equal" same "$(steps_of rows$n)" "$(steps_of zero$n)"
  check "rows and the whole on $n ranks: there are steps" [ "$(steps_of rows$n | wc -l)" = 8 ]
done

# OpenMP's own binding does not know of the other ranks of the host.
OMP_PROC_BIND=true ranks 2 benchmark base.json --set run.threads_per_rank=2 --set batch.micro=1 --steps 1 --no-rates
ends_with "ranks whose threads the user binds" 0
check "threads bound to the same cores are spoken of" grep -q 'warning: OMP_PROC_BIND .* 2 ranks' log
ranks 2 benchmark base.json --set run.threads_per_rank=2 --set batch.micro=1 --steps 1 --no-rates
check "threads that nobody binds are not" [ "$(grep -c OMP_PROC_BIND log)" = 0 ]
finish
