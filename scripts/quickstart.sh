#!/usr/bin/env bash
# From nothing to a model that writes English: sets up, builds, tokenises, trains on two ranks, is interrupted and goes on,
# evaluates, generates, exports. About five minutes on two cores.
#
#   scripts/quickstart.sh [--text FILE] [--steps N] [--directory DIR]
#
# TRIREME_TRAIN: a binary that is there already; nothing is then set up or built.
set -euo pipefail
cd "$(dirname "$0")/.."

text= steps=480 directory=runs/quickstart
while [ $# -gt 0 ]; do
  case $1 in
    --text) text=$(realpath "$2"); shift 2 ;;
    --steps) steps=$2; shift 2 ;;
    --directory) directory=$2; shift 2 ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
say() { printf '\n\033[1m%s\033[0m\n' "== $*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "== $*"; }

if [ -z "${TRIREME_TRAIN:-}" ]; then
  say "Setting up"
  scripts/setup.sh
  say "Building train"
  log=$(mktemp)
  cmake --preset cpu-release -DTRIREME_TESTS=OFF >"$log" || { cat "$log" >&2; rm -f "$log"; exit 3; }
  rm -f "$log"
  cmake --build --preset cpu-release --target train
  TRIREME_TRAIN=$PWD/build/cpu-release/train
fi
export TRIREME_TRAIN
train=$TRIREME_TRAIN

say "Preparing the corpus"
rm -rf "$directory"
mkdir -p "$directory/data"
if [ -n "$text" ]; then
  cp "$text" "$directory/data/all.txt"
else
  # The King James Bible, 31,102 verses of plain text.
  PATH=$PATH:/usr/games bible -f 'Gen1:1-Rev22:21' >"$directory/data/all.txt"
fi
lines=$(wc -l <"$directory/data/all.txt")
validation=$((lines / 20))
head -n $((lines - validation)) "$directory/data/all.txt" >"$directory/data/train.txt"
tail -n $validation "$directory/data/all.txt" >"$directory/data/validation.txt"
"$train" tokenizer --vocab-size 2048 --output "$directory/data/tokenizer.json" "$directory/data/train.txt"
for part in train validation; do
  "$train" tokenize --tokenizer "$directory/data/tokenizer.json" --output "$directory/data/$part" --workers 2 \
    "$directory/data/$part.txt"
done

cat >"$directory/run.json" <<JSON
{
  "run": {"directory": "$directory/run", "steps": $steps},
  "model": {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 256,
    "tie_word_embeddings": true
  },
  "tokenizer": "$directory/data/tokenizer.json",
  "data": {"train": "$directory/data/train", "validation": "$directory/data/validation", "sequence_length": 128},
  "batch": {"micro": 8, "global": 16},
  "optimizer": {"lr": 2e-3},
  "lr_schedule": {"kind": "cosine", "warmup_steps": 50, "min_lr": 2e-4},
  "checkpoint": {"interval_steps": 100},
  "evaluation": {"interval_steps": 100}
}
JSON

say "What the run needs"
"$train" plan "$directory/run.json" --world 2
say "Training on two ranks; half-way it is interrupted as a cluster would"
scripts/run.sh -n 2 "$directory/run.json" &
job=$!
half=$((steps / 2))
while kill -0 $job 2>/dev/null && ! grep -q "\"step\":$half," "$directory/run/metrics.jsonl" 2>/dev/null; do sleep 0.3; done
kill -USR1 $job 2>/dev/null || true
code=0
wait $job || code=$?
case $code in
  75) say "Exit code 75: saved. The same command goes on where it stopped"
      scripts/run.sh -n 2 "$directory/run.json" ;;
  0) say "The run ended before it could be interrupted" ;;
  *) exit $code ;;
esac

say "Validation loss"
"$train" evaluate "$directory/run.json"
say "What it writes"
"$train" generate --checkpoint "$directory/run" --prompt "And the LORD said unto" --max-new-tokens 100 --temperature 0.7 --top-k 40
say "Exporting to Hugging Face format"
"$train" export --checkpoint "$directory/run" --output "$directory/huggingface"
say "Done"
echo "loss curve:     $directory/run/loss.svg"
echo "metrics:        $directory/run/metrics.jsonl, $directory/run/tensorboard"
echo "Hugging Face:   $directory/huggingface"
