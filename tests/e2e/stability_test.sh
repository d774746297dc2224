#!/usr/bin/env bash
# The section stability: steps that are passed over, spikes that are skipped, a z-loss and the gradient noise scale, on
# meshes, over a resume, and with steps that run ahead.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

skips_of() { sed -n 's/^{"kind":"skip","step":\([0-9]*\),"reason":"\([a-z_]*\)".*/\1 \2/p' "$1/metrics.jsonl"; }
figures_of() { sed -n 's/.*"kind":"step".*"'"$2"'":\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
updates_of() { sed -n 's/.*"applied_updates": *\([0-9]*\).*/\1/p' "$(folder_of "$1" "$2")/manifest.json"; }
every_step=(--set checkpoint.interval_steps=1 --set checkpoint.keep_last=0)
# near WHAT RUN EXPECTED_RUN KEY TOLERANCE
near() {
  check "$1" awk -v tolerance="$5" 'NR == FNR { expected[FNR] = $1; next }
    { d = $1 - expected[FNR]; if (d < 0) d = -d; e = expected[FNR] < 0 ? -expected[FNR] : expected[FNR]
      if (!(d <= tolerance * e) || ($1 == "null") != (expected[FNR] == "null")) { print FNR, $1, expected[FNR]; exit 1 } n += $1 != "null" }
    END { exit n < 3 }' <(figures_of "$3" "$4") <(figures_of "$2" "$4")
}

# Steps whose data are passed over.
over=(base.json --set run.steps=10 --set "stability.skip_steps=[[3,4],[7,7],[30,40]]")
train "${over[@]}" "${every_step[@]}"
ends_with "passed over" 0
check_metrics run 10
check "passed over: the skips" same "$(skips_of run)" "$(printf '%s skip_steps\n' 3 4 7)"
check "passed over: samples advance" same "$(steps_of run | sed 's/.*"consumed_samples":\([0-9]*\).*/\1/' | tr '\n' ' ')" \
  "$(seq 4 4 40 | tr '\n' ' ')"
check "passed over: nothing is computed" same "$(steps_of run | grep '"loss":null,"grad_norm":null' | sed 's/"step":\([0-9]*\).*/\1/' | tr '\n' ' ')" "3 4 7 "
check "passed over: updates" same "$(updates_of run 10)" 7
check "passed over: the state stands" same "$(tensors_of "$(folder_of run 4)")" "$(tensors_of "$(folder_of run 2)")"
check "passed over: and moves on" [ "$(tensors_of "$(folder_of run 5)")" != "$(tensors_of "$(folder_of run 4)")" ]
mv run whole
train "${over[@]}" --set run.exit_at_step=3
train "${over[@]}" --set checkpoint.interval_steps=1
same_run "passed over, in two parts" run 10 whole
rm -rf run whole
over+=(--set optimizer.clip_grad_norm=0)
train "${over[@]}" --set run.directory=whole
train "${over[@]}" --set parallel.speculative_step=true
same_run "passed over, with steps ahead" run 10 whole
check "passed over, with steps ahead: the same skips" same "$(skips_of run)" "$(skips_of whole)"
rm -rf run
train base.json --set run.steps=20 --set "stability.skip_steps=[[2,18]]"
ends_with "many in a row are no divergence" 0
rm -rf run

# Spikes: the rule replayed on what was recorded. SIGMA WINDOW RUN
replayed() {
  sed -n 's/^{"kind":"step","step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$3/metrics.jsonl" |
    awk -v sigma="$1" -v window="$2" -v n=0 '
      function stands_out(x, latest, first, i, mean, squares) {
        for (i = first; i < n; ++i) mean += x[i] / (n - first)
        for (i = first; i < n; ++i) squares += (x[i] - mean) ^ 2
        return latest - mean > sigma * sqrt(squares / (n - first - 1))
      }
      $2 != "null" {
        first = n > window ? n - window : 0
        if (n >= 2 && n - first + 1 >= int(window / 2)) {
          if (stands_out(losses, $2, first)) print $1, "loss_spike"
          else if (stands_out(norms, $3, first)) print $1, "grad_norm_spike"
        }
        losses[n] = $2; norms[n] = $3; ++n
      }'
}
spikes=(base.json --set run.steps=24 --set optimizer.lr=0.05 --set batch.micro=1 --set batch.global=2
  --set 'stability.skip_spikes={"sigma":0.5,"window":6}')
train "${spikes[@]}" --set run.directory=plain
ends_with "spikes" 0
check_metrics plain 24
check "spikes: as the rule says" same "$(skips_of plain)" "$(replayed 0.5 6 plain)"
check "spikes: of both kinds, and not everywhere" \
  [ "$(skips_of plain | grep -c loss)" -gt 1 -a "$(skips_of plain | grep -c norm)" -gt 1 -a "$(skips_of plain | wc -l)" -lt 18 ]
check "spikes: updates" same "$(updates_of plain 24)" $((24 - $(skips_of plain | wc -l)))
train "${spikes[@]}" --set run.exit_at_step=11
train "${spikes[@]}" --set run.exit_at_step=13
train "${spikes[@]}"
same_run "spikes, in three parts" run 24 plain
check "spikes, in three parts: the same skips" same "$(skips_of run)" "$(skips_of plain)"
rm -rf run
train "${spikes[@]}" --set parallel.speculative_step=true
same_run "spikes, with steps ahead" run 24 plain
check "spikes, with steps ahead: the same skips" same "$(skips_of run)" "$(skips_of plain)"
for mesh in "parallel.zero_stage=0" "parallel.zero_stage=2" "parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h1"; do
  rm -rf run
  # shellcheck disable=SC2086 # several options
  ranks 2 "${spikes[@]}" --set $mesh
  ends_with "spikes, $mesh" 0
  check "spikes, $mesh: as the rule says" same "$(skips_of run)" "$(replayed 0.5 6 run)"
  check "spikes, $mesh: some" [ "$(skips_of run | wc -l)" -gt 2 ]
done
rm -rf run

# A z-loss, beside the loss and not in it.
z=(base.json --set run.steps=8 --set stability.z_loss=0.1)
train base.json --set run.steps=8 --set run.directory=without
train "${z[@]}" --set run.directory=z
ends_with "z-loss" 0
check "z-loss: the first loss is the same" same "$(figures_of z loss | head -n 1)" "$(figures_of without loss | head -n 1)"
check "z-loss: the gradient is not" [ "$(figures_of z grad_norm | head -n 1)" != "$(figures_of without grad_norm | head -n 1)" ]
check "z-loss: told at each step" [ "$(figures_of z logit_z_loss | grep -c '^[0-9]')" = 8 ]
check "z-loss: not without" [ "$(figures_of without logit_z_loss | wc -l)" = 0 ]
# Logits begin near 0: the first is that of a vocabulary of 257, and pressed down from there.
check "z-loss: 0.1 log(257)^2 at first" awk -v z="$(figures_of z logit_z_loss | head -n 1)" 'BEGIN { exit !(z > 3 && z < 3.2) }'
check "z-loss: falls" awk -v a="$(figures_of z logit_z_loss | head -n 1)" -v b="$(figures_of z logit_z_loss | tail -n 1)" 'BEGIN { exit !(b < a) }'
z_mesh() { # MESH OPTIONS...
  local mesh=$1
  shift
  rm -rf run one
  ranks 2 "${z[@]}" "$@" --set "$mesh"
  ends_with "z-loss, $mesh" 0
  train "${z[@]}" "$@" --set run.directory=one
  near "z-loss, $mesh: its figure" run one logit_z_loss 1e-5
  near "z-loss, $mesh: the losses" run one loss 1e-5
}
z_mesh parallel.tensor=2 --set model.num_key_value_heads=2
z_mesh parallel.pipeline=2
z_mesh parallel.zero_stage=3
z_mesh parallel.context=2
rm -rf run one

# The noise scale: of ZeRO's stages, of schedules and of the tensor axis the same; saved.
noise=(base.json --set run.steps=12 --set batch.micro=1 --set batch.global=8 --set model.num_key_value_heads=2 --set stability.noise_scale=true)
train "${noise[@]}" --set run.directory=noise
ends_with "noise scale" 0
check "noise scale: told at each step" [ "$(figures_of noise noise_scale | wc -l)" = 12 ]
check "noise scale: a number of samples" [ "$(figures_of noise noise_scale | grep -c '^[0-9.]*$')" -gt 8 ]
train "${noise[@]}" --set run.exit_at_step=5
train "${noise[@]}"
same_run "noise scale, in two parts" run 12 noise
check "noise scale, in two parts: its figures" same "$(figures_of run noise_scale)" "$(figures_of noise noise_scale)"
for mesh in "parallel.tensor=2" "parallel.tensor=2 --set parallel.sequence_parallel=false" "parallel.pipeline=2" \
  "parallel.pipeline=2 --set parallel.pipeline_schedule=zb-h1 --set parallel.zero_stage=1"; do
  rm -rf run
  # shellcheck disable=SC2086 # several options
  ranks 2 "${noise[@]}" --set $mesh
  ends_with "noise scale, $mesh" 0
  near "noise scale, $mesh: as on one rank" run noise noise_scale 1e-3
done
rm -rf stage
ranks 2 "${noise[@]}" --set run.directory=stage
for stage in 1 2 3; do
  rm -rf run
  ranks 2 "${noise[@]}" --set parallel.zero_stage=$stage --set parallel.speculative_step=true
  near "noise scale, stage $stage of ZeRO: as without" run stage noise_scale 1e-4
done
train base.json --set run.steps=2 --set batch.micro=4 --set stability.noise_scale=true --set run.directory=refused
ends_with "noise scale of one micro-batch" 2
says "noise scale of one micro-batch: why" 'stability.noise_scale.*micro-batch'
finish
