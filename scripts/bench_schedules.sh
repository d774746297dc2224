#!/usr/bin/env bash
# The real trainer under each pipeline schedule, in turns in one run: tokens/s beside 1F1B's, and the bubble that the
# executor measured beside the one that was simulated for the operations of each stage.
#
#   scripts/bench_schedules.sh [--train BINARY] [--ranks 2] [--rounds 2] [--steps 5] [--micro-batches 8]
#
# A Llama of 8 layers, hidden 256, MLP 704, vocabulary 2048, fp32; micro-batches of one sequence of 256 tokens, one thread
# a rank, synthetic data, nothing saved. A run's speed is the median of its steps but the first two; a schedule's ratio
# the median over rounds of the quotient with 1f1b's run of the same round, as what disturbs the machine for a minute
# falls on both. zb-auto may hold twice what 1F1B holds: with its default, as much as 1F1B, it can only equal zb-h1.
#
# Prints a table in Markdown. About 1 minute a round on two idle cores. Leave the machine alone meanwhile.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
train=build/cpu-release/train ranks=2 rounds=2 steps=5 micro_batches=8
while [ $# -gt 1 ]; do
  case $1 in
    --train) train=$2 ;;
    --ranks) ranks=$2 ;;
    --rounds) rounds=$2 ;;
    --steps) steps=$2 ;;
    --micro-batches) micro_batches=$2 ;;
    *) break ;;
  esac
  shift 2
done
[ $# = 0 ] || { echo "$0: $1: not known, or without a value" >&2; exit 2; }
schedules=(1f1b interleaved zb-h1 zb-h2 zb-auto zb-v v-half dualpipe-v)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat >"$scratch/config.json" <<EOC
{"run": {"steps": $((steps + 2)), "threads_per_rank": 1, "resume": "never"},
 "model": {"model_type": "llama", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704,
           "num_hidden_layers": 8, "num_attention_heads": 4, "max_position_embeddings": 256},
 "data": {"train": "synthetic", "sequence_length": 256},
 "batch": {"micro": 1, "accumulation": $micro_batches},
 "optimizer": {"lr": 1e-4},
 "checkpoint": {"interval_steps": 0, "interval_minutes": 0},
 "log": {"tensorboard": false},
 "parallel": {"pipeline": $ranks}}
EOC

median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.6g", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
value() { sed -n 's/.*"'"$1"'":\([-+.0-9eE]*\).*/\1/p'; }
for ((round = 1; round <= rounds; ++round)); do
  for schedule in "${schedules[@]}"; do
    run=$scratch/$schedule-$round
    extra=()
    [ "$schedule" = zb-auto ] && extra=(--set "parallel.pipeline_memory_limit=$((2 * ranks))")
    TRIREME_TRAIN=$train scripts/run.sh -n "$ranks" "$scratch/config.json" --set run.directory="$run" \
      --set parallel.pipeline_schedule="$schedule" "${extra[@]}" >"$run.log" 2>&1 || {
      cat "$run.log" >&2
      exit 1
    }
    grep '"kind":"step"' "$run/metrics.jsonl" | tail -n +3 | value tokens_per_second | median >>"$scratch/$schedule.speed"
    echo >>"$scratch/$schedule.speed"
    tail -n 1 "$run/metrics.jsonl" | value bubble_measured >>"$scratch/$schedule.measured"
    tail -n 1 "$run/metrics.jsonl" | value bubble_simulated >"$scratch/$schedule.simulated"
    rm -r "$run"
  done
done
echo "$("$train" --version 2>/dev/null | head -n 1), $ranks ranks, $micro_batches micro-batches, $rounds rounds of $steps steps"
echo
echo "| schedule | tokens/s | times 1f1b's | bubble measured | simulated |"
echo "|---|---|---|---|---|"
for schedule in "${schedules[@]}"; do
  printf '| %s | %.0f | %.3f | %.3f | %.3f |\n' "$schedule" "$(median <"$scratch/$schedule.speed")" \
    "$(paste "$scratch/$schedule.speed" "$scratch/1f1b.speed" | awk '{ print $1 / $2 }' | median)" \
    "$(median <"$scratch/$schedule.measured")" "$(cat "$scratch/$schedule.simulated")"
done
