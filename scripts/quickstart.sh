#!/usr/bin/env bash
# From nothing to a model that writes English: sets up, builds, tokenises, trains on two ranks, is interrupted and goes on,
# evaluates, generates, exports. About five minutes on two cores.
#
#   scripts/quickstart.sh [--text FILE] [--steps N] [--directory DIR]
#
#   --text       your own text in place of the King James Bible: 30 KB at least, plain, .gz or .zst
#   --steps      updates (480); 2,048 tokens each
#   --directory  where everything goes; must be empty or absent, as nothing that exists is touched (runs/quickstart, or the
#                first of runs/quickstart-2, -3, ... that is free)
#
# Where a GPU and a CUDA toolkit (nvcc) are found, train is built for the GPU, and trains on one or two of them.
# TRIREME_TRAIN: a binary that is there already; nothing is then set up or built.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
refuse() { # CODE TEXT
  echo "scripts/quickstart.sh: $2" >&2
  exit "$1"
}
text='' steps=480 directory=''
while [ $# -gt 0 ]; do
  case $1 in --text | --steps | --directory) ;; *) refuse 2 "$1: not known (--help)" ;; esac
  [ $# -gt 1 ] || refuse 2 "$1 needs a value (--help)"
  case $1 in --text) text=$(realpath -m "$2") ;; --steps) steps=$2 ;; --directory) directory=$(realpath -m "$2") ;; esac
  shift 2
done
[[ $steps =~ ^[1-9][0-9]{0,8}$ ]] || refuse 2 "--steps $steps: a positive number"
[ -z "${TRIREME_TRAIN:-}" ] || TRIREME_TRAIN=$(realpath -m "$TRIREME_TRAIN")
[ -z "$text" ] || [ -f "$text" ] || refuse 74 "$text: there is no such file"
cd "$(dirname "$0")/.."
is_free() { [ ! -e "$1" ] || [ -z "$(ls -A "$1")" ]; }
if [ -n "$directory" ]; then
  is_free "$directory" || refuse 2 "$directory is not empty, and nothing in it would be touched. Name another --directory."
else
  directory=runs/quickstart
  for ((number = 2; number < 1000; ++number)); do
    is_free "$directory" && break
    directory=runs/quickstart-$number
  done
fi
case $directory in *[\"\\]*) refuse 2 "--directory $directory: choose a name without quotes and backslashes" ;; esac
say() { printf '\n\033[1m%s\033[0m\n' "== $*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "== $*"; }

if [ -z "${TRIREME_TRAIN:-}" ]; then
  preset=cpu-release with=()
  if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    if command -v nvcc /usr/local/cuda/bin/nvcc build/cuda/bin/nvcc >/dev/null; then
      preset=cuda-release with=(--cuda)
      echo "A GPU and a CUDA toolkit are here: train is built for the GPU."
    else
      echo "A GPU is here, but no CUDA toolkit: train is built for the CPU. (scripts/setup.sh --cuda installs one.)"
    fi
  fi
  say "Setting up"
  scripts/setup.sh "${with[@]}"
  say "Building train"
  log=$(mktemp)
  cmake --preset $preset -DTRIREME_TESTS=OFF >"$log" || { cat "$log" >&2; rm -f "$log"; exit 3; }
  rm -f "$log"
  cmake --build --preset $preset --target train
  TRIREME_TRAIN=$PWD/build/$preset/train
fi
export TRIREME_TRAIN
train=$TRIREME_TRAIN
# A rank needs a GPU of its own, where there are any.
gpus=$("$train" --version | sed -n 's/^ *GPUs  *//p')
ranks=2 where="two ranks"
case $gpus in
"" | none*) ;;
*,*) where="two GPUs: $gpus" ;;
*) ranks=1 where="a GPU: $gpus" ;;
esac

say "Preparing the corpus in $directory"
mkdir -p "$directory"
if [ -n "$text" ]; then
  data/text.sh --output "$directory/data" --workers 2 "$text"
else
  data/bible.sh --output "$directory/data" --workers 2
fi
in_json() { sed -n 's/.*"'"$1"'": *\([0-9]*\).*/\1/p' "$2"; }
vocabulary=$(in_json vocab_size "$directory/data/train.json")
for part in train validation; do
  tokens=$(in_json tokens "$directory/data/$part.json")
  ((tokens > 128)) || refuse 2 "$text is too small: its $part part has $tokens tokens, and a sample of this run has 129. Give 30 KB at least."
done

cat >"$directory/run.json" <<JSON
{
  "run": {"directory": "$directory/run", "steps": $steps},
  "model": {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": $vocabulary, "max_position_embeddings": 256,
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
"$train" plan "$directory/run.json" --world $ranks
say "Training on $where; half-way it is interrupted as a cluster would"
scripts/run.sh -n $ranks "$directory/run.json" &
job=$!
half=$((steps / 2))
while kill -0 $job 2>/dev/null && ! grep -q "\"step\":$half," "$directory/run/metrics.jsonl" 2>/dev/null; do sleep 0.3; done
kill -USR1 $job 2>/dev/null || true
code=0
wait $job || code=$?
case $code in
  75) say "Exit code 75: saved. The same command goes on where it stopped"
      scripts/run.sh -n $ranks "$directory/run.json" ;;
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
