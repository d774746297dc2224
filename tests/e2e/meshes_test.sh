#!/usr/bin/env bash
# A run goes on over any mesh: pipelines have the bits of one rank, others agree; evaluation and schedule files too.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

deep=(--set model.num_hidden_layers=4 --set batch.micro=1 --set run.steps=8)
losses() { steps_of "$1" | sed 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\).*/\1 \2/'; }
train base.json "${deep[@]}" --set run.directory=one
ends_with "one rank" 0
for schedule in 1f1b interleaved zb-h1 zb-v dualpipe-v; do
  ranks 2 base.json "${deep[@]}" --set run.directory="$schedule" --set parallel.pipeline=2 \
    --set parallel.pipeline_schedule="$schedule"
  ends_with "two stages by $schedule" 0
  check "two stages by $schedule have the bits of one rank" same "$(losses "$schedule")" "$(losses one)"
done
check "the end says what the bubble was, and would be" grep -q '"bubble_measured":0\.[0-9]*,"bubble_simulated":0\.[0-9]*}' \
  <(tail -n 1 1f1b/metrics.jsonl)

# What the head computes is taken off the layers of its rank.
train plan base.json "${deep[@]}" --set parallel.pipeline=2 --set model.num_hidden_layers=7
ends_with "a plan of two stages" 0
check "the plan says how layers are dealt out" grep -q '^Layers of the virtual stages: 4, 3; the longest rank' out
train plan base.json "${deep[@]}" --set parallel.pipeline=2 --set model.vocab_size=1000 --json
check "a large vocabulary takes layers off the last stage" grep -q '"stage_layers":\[3,1\]' <(tr -d '\n ' <out)

# A plan as a file: what `train schedule` prints is what runs.
train schedule --kind gpipe --stages 2 --micro-batches 4 --json
cp out plan.json
ranks 2 base.json "${deep[@]}" --set run.directory=file --set parallel.pipeline=2 \
  --set parallel.pipeline_schedule=plan.json
ends_with "a plan from a file" 0
check "a plan from a file has the bits of one rank" same "$(losses file)" "$(losses one)"
ranks 2 base.json "${deep[@]}" --set run.directory=bad --set parallel.pipeline=2 \
  --set parallel.pipeline_schedule=plan.json --set batch.global=8
ends_with "a plan of other sizes" 2
cat >free.json <<'E2'
{"reproducible": false, "placement": [1, 0], "ranks": [
  [["F", 1, 2], ["B", 1, 2], ["F", 1, 0], ["BW", 1, 0], ["F", 1, 1], ["W", 1, 2], ["F", 1, 3], ["BW", 1, 3], ["BW", 1, 1]],
  [["F", 0, 2], ["F", 0, 0], ["F", 0, 1], ["BW", 0, 0], ["F", 0, 3], ["BW", 0, 2], ["BW", 0, 3], ["BW", 0, 1]]]}
E2
ranks 2 base.json "${deep[@]}" --set run.directory=free --set parallel.pipeline=2 \
  --set parallel.pipeline_schedule=free.json
ends_with "a plan of an order of its own, the first stage on the last rank" 0
says "it says that its bits are its own" 'free.json is not reproducible'
check "its checkpoint says so" grep -q '"reproducible": false' "$(folder_of free 8)/manifest.json"
check "other checkpoints say that they are" grep -q '"reproducible": true' "$(folder_of file 8)/manifest.json"
sed 's/\["W", 1, 2\]/["R", 1, 1], ["W", 1, 2]/' free.json >again.json
ranks 2 base.json "${deep[@]}" --set run.directory=bad --set parallel.pipeline=2 \
  --set parallel.pipeline_schedule=again.json
ends_with "a plan that makes activations again which F keeps" 2
says "the action is named" 'again.json: rank 0, position 5 (R1.1), rule recompute'
ranks 2 base.json "${deep[@]}" --set run.directory=again --set parallel.pipeline=2 \
  --set parallel.pipeline_schedule=again.json --set parallel.recompute=full
ends_with "the same where F does not keep them" 0
check "R changes no bits" same "$(losses again)" "$(losses free)"

# Every step or two on another mesh, from its checkpoint.
go_on() {
  local step=$1 n=$2
  shift 2
  if [ "$n" = 1 ]; then train base.json "${deep[@]}" --set run.directory=chain --set run.exit_at_step="$step" "$@"
  else ranks "$n" base.json "${deep[@]}" --set run.directory=chain --set run.exit_at_step="$step" "$@"; fi
  ends_with "to step $step: $n ranks $*" 0
}
go_on 1 2 --set parallel.pipeline=2
go_on 2 2 --set parallel.tensor=2
go_on 3 4 --set parallel.pipeline=2 --set parallel.zero_stage=3
go_on 4 2 --set parallel.context=2
go_on 5 4 --set parallel.tensor=2 --set parallel.zero_stage=2
go_on 6 4 --set parallel.pipeline=2 --set parallel.tensor=2 --set parallel.pipeline_schedule=zb-h2
go_on 7 2 --set parallel.zero_stage=1
go_on 8 1
check "every step of the chain stands once" [ "$(steps_of chain | wc -l)" = 8 ]
check "losses over eight meshes are those of one rank" awk 'NR == FNR { expected[FNR] = $1; next }
    { d = $1 - expected[FNR]; if (d < 0) d = -d; if (!(d <= 2e-6 * expected[FNR])) exit 1; ++n }
    END { exit n != 8 }' <(losses one) <(losses chain)

loss_of() { sed 's/.*"loss":\([^,]*\).*/\1/' out; }
train evaluate base.json "${deep[@]}" --checkpoint one --json
expected=$(loss_of)
ranks 2 evaluate base.json "${deep[@]}" --set parallel.pipeline=2 --checkpoint chain --json
ends_with "evaluation through two stages" 0
check "evaluation through two stages agrees" awk "BEGIN { d = $(loss_of) / $expected - 1; exit !(d < 1e-5 && d > -1e-5) }"
finish
