#!/usr/bin/env bash
# parallel.speculative_step changes no bits: of runs that clip now and then, meet steps that are not finite, evaluate,
# save, stop and go on, on every kind of mesh.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

undone() { tail -n 1 "$1/metrics.jsonl" | sed -n 's/.*"undone_steps":\([0-9]*\).*/\1/p'; }
lines_of() { grep "\"kind\":\"$1\"" "$2/metrics.jsonl"; }
ahead=(--set parallel.speculative_step=true)
common=(base.json --set run.steps=12 --set batch.global=8 --set batch.micro=1)

# A clip that some steps reach and others do not.
train "${common[@]}" --set optimizer.clip_grad_norm=0 --set run.directory=norms
clip=$(sed -n 's/.*"grad_norm":\([-0-9.e+]*\),.*/\1/p' norms/metrics.jsonl | sort -g | sed -n 6p)
common+=(--set optimizer.clip_grad_norm="$clip")

# twice WHAT RANKS OPTIONS...: with and without; both clip at some steps only.
twice() {
  local what=$1 n=$2
  shift 2
  rm -rf plain ahead
  ranks "$n" "${common[@]}" "$@" --set run.directory=plain
  ends_with "$what, plain" 0
  ranks "$n" "${common[@]}" "$@" "${ahead[@]}" --set run.directory=ahead
  ends_with "$what, ahead" 0
  same_run "$what" ahead 12 plain
  check_metrics ahead 12
  check "$what: some updates are taken back, others not" [ "$(undone ahead)" -gt 0 -a "$(undone ahead)" -lt 6 ]
  check "$what: nothing is taken back without" [ -z "$(undone plain)" ]
}
twice "one rank" 1
twice "1f1b" 2 --set parallel.pipeline=2
twice "zb-h1, bf16" 2 --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h1 --set precision.compute=bf16
twice "lion, averages, groups" 2 --set parallel.pipeline=2 --set optimizer.kind=lion --set optimizer.ema=0.9 \
  --set 'optimizer.groups=[{"match":"norm","lr_scale":0.5}]'
twice "schedule-free" 2 --set parallel.pipeline=2 --set optimizer.kind=schedule-free --set lr_schedule.warmup_steps=6
twice "muon, stage 1" 2 --set optimizer.kind=muon --set optimizer.ema=0.9 --set parallel.zero_stage=1
twice "adafactor" 2 --set parallel.pipeline=2 --set optimizer.kind=adafactor --set optimizer.lr=0.02
for stage in 0 1 2 3; do
  twice "two data ranks, stage $stage of ZeRO" 2 --set parallel.zero_stage="$stage"
done
twice "two data ranks, stage 2, bf16" 2 --set parallel.zero_stage=2 --set precision.compute=bf16
twice "tensor" 2 --set parallel.tensor=2 --set model.num_key_value_heads=2 --set run.check_collectives=true
twice "tied ends, masks that differ" 2 --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-v \
  --set model.num_hidden_layers=4 --set model.tie_word_embeddings=true --set data.mask_eod_loss=true \
  --set data.document_mask=true
twice "zb-h2, two data ranks, stage 3" 4 --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h2 \
  --set parallel.zero_stage=3

# Evaluations, saves by number and by the clock, a trace; the first step after a resume.
pipeline=("${common[@]}" --set parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h1 --set evaluation.interval_steps=4
  --set checkpoint.interval_steps=3)
ranks 2 "${pipeline[@]}" --set run.directory=whole
ends_with "with evaluations, plain" 0
rm -rf run
ranks 2 "${pipeline[@]}" "${ahead[@]}" --set run.exit_at_step=7 --set log.trace_steps=[2,6] --set checkpoint.async=false
ends_with "with evaluations, first part" 0
check "the trace is written" [ -s run/trace.json ]
ranks 2 "${pipeline[@]}" "${ahead[@]}" --set checkpoint.interval_minutes=1e-6 --set checkpoint.keep_last=0
ends_with "with evaluations, second part" 0
same_run "in two parts" run 12 whole
check "in two parts: evaluations agree" same "$(lines_of evaluation run)" "$(lines_of evaluation whole)"
check "saved behind every step" same "$(ls run/checkpoints | grep -c '^step-')" $((2 + 1 + 5))
check "what was saved while the next step was under way is the step's" same \
  "$(tensors_of "$(folder_of run 9)" | sort)" "$(tensors_of "$(folder_of whole 9)" | sort)"

# Steps that are not finite: the weights stay those of the step before.
huge=("${common[@]}" --set optimizer.lr=1e30 --set lr_schedule.warmup_steps=0 --set optimizer.clip_grad_norm=0
  --set parallel.pipeline=2)
for run in plain ahead; do
  options=()
  [ $run = ahead ] && options=("${ahead[@]}")
  rm -rf $run
  ranks 2 "${huge[@]}" "${options[@]}" --set run.directory=$run --set run.exit_at_step=5
  ends_with "not finite, $run" 0
done
same_run "not finite" ahead 5 plain
check "not finite: one update is taken back" same "$(undone ahead)" 1
check "not finite: the skips agree" same "$(lines_of skip ahead)" "$(lines_of skip plain)"
check "not finite: there are skips" [ "$(lines_of skip ahead | wc -l)" -ge 3 ]
ranks 2 "${huge[@]}" "${ahead[@]}" --set run.directory=ahead
check "ten in a row end the run" same "$code" 4

# A signal while steps run ahead.
long=("${common[@]}" --set run.steps=100000 --set optimizer.clip_grad_norm=0 --set parallel.pipeline=2)
rm -rf run plain
start job_log "$root/scripts/run.sh" -n 2 "${long[@]}" "${ahead[@]}"
until_true logged run/metrics.jsonl '"step":5,'
kill -TERM "$job"
wait "$job"
code=$?
check "a signal ends the run" same "$code" 75
check "a signal: on record" same "$(end_reason run)" signal
stopped=$(steps_of run | wc -l)
ranks 2 "${long[@]}" "${ahead[@]}" --set run.exit_at_step=$((stopped + 3))
ends_with "it goes on" 0
says "it goes on where it stopped" "resuming from step $stopped "
ranks 2 "${long[@]}" --set run.directory=plain --set run.exit_at_step=$((stopped + 3))
same_run "a signal" run $((stopped + 3)) plain
finish
