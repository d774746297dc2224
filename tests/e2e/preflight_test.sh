#!/usr/bin/env bash
# What is looked at before anything starts: every file that a config names, in every command that takes one; the disk; and
# what a user keeps where a run would write.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
result() { check "$1: one valid JSON value" valid_json out; }

# refused WHAT CODE PATTERN OPTIONS...: by every command, with one cause that says where it is.
refused() {
  local what=$1 expected=$2 pattern=$3 command
  shift 3
  for command in "" data evaluate schedule plan benchmark; do
    case " $what " in *" data "*) [ "$command" = benchmark ] && continue ;; esac
    # shellcheck disable=SC2086
    train $command base.json "$@"
    ends_with "$what: train $command" "$expected"
    says_once "$what: train $command says where" "$pattern"
  done
  train plan base.json --json "$@"
  ends_with "$what: plan --json" "$expected"
  result "$what: plan --json"
  check "$what: it lists errors" grep -q '"message"' out
  check "$what: nothing is written" [ ! -e run ]
}
refused "no tokenizer" 74 'tokenizer: .*absent.json' --set tokenizer=absent.json
printf '{"model": {}}' >bad.json
refused "no tokenizer inside" 74 'tokenizer: .*bad.json' --set tokenizer=bad.json
refused "missing data" 74 'data.train: .*absent' --set data.train=absent
refused "missing validation data" 74 'data.validation: .*absent' --set data.validation=absent
refused "missing weights" 74 'init.weights: .*absent' --set init.weights=absent
refused "missing weights and no model" 74 'init.weights: .*absent' --set init.weights=absent --set model=null
refused "a file of weights" 74 'init.weights: .*bad.json' --set init.weights=bad.json --set model=null
mkdir empty
refused "a folder without weights" 74 'init.weights: .*empty' --set init.weights=empty

# Several at once are told together; what is written wrong comes first.
train plan base.json --set tokenizer=absent.json --set data.train=gone --set init.weights=nowhere --json
ends_with "three missing files" 74
check "three missing files: all of them" [ "$(grep -o '"path": *"[a-z.]*"' out | sort -u | wc -l)" = 3 ]
train plan base.json --set tokenizer=absent.json --set optimizer.lr=-1 --json
ends_with "a missing file and a fault" 2
check "a missing file and a fault: both" [ "$(grep -o '"path"' out | wc -l)" = 2 ]
train plan absent.json --json
ends_with "no config" 74
result "no config"
check "no config: errors" grep -q '"errors"' out
train plan base.json --no-data --set data.train=absent --set data.validation=absent --json
ends_with "data that are elsewhere" 0
result "data that are elsewhere"
check "the device is named" grep -q '"device": *"cpu"' out
check "and the precision" grep -q '"precision": *"fp32"' out
train plan base.json --no-data --set data.train=absent --set run.steps=null --set run.epochs=2
ends_with "epochs of data that are elsewhere" 2
says "epochs of data that are elsewhere: why" 'run.epochs'
train plan base.json
check "the text names both" grep -q '^Assumed: device cpu .*precision fp32' out
check "and what the run computes" grep -q 'FLOP in all' out

# Ids are checked as the run would.
train plan base.json --set model.vocab_size=100
ends_with "ids outside the vocabulary" 74
says "ids outside the vocabulary: where" 'toy.bin: .*outside the vocabulary of 100'
train plan base.json --set data.sequence_length=20000 --set model.max_position_embeddings=20001
ends_with "data shorter than a window" 2

# Weights of another model: names and shapes first, then heads that shapes do not show.
train base.json --set run.directory=base --set run.steps=2
train export --checkpoint base --output hf
ends_with "an export" 0
for weights in base hf base/checkpoints/step-00000002; do
  train plan base.json --set init.weights=$weights
  ends_with "plan from $weights" 0
  train plan base.json --set init.weights=$weights --set model=null
  ends_with "plan from $weights with its model" 0
  train plan base.json --set init.weights=$weights --set model.hidden_size=64
  ends_with "wider than $weights" 74
  says "wider than $weights: the tensor" 'init.weights: .* is .*\[257, 32\], the model has \[257, 64\]'
  train plan base.json --set init.weights=$weights --set model.num_hidden_layers=3
  ends_with "deeper than $weights" 74
  says "deeper than $weights: the tensors" 'Missing: '
  train plan base.json --set init.weights=$weights --set model.num_attention_heads=4 --set model.num_key_value_heads=2 \
    --set model.head_dim=8
  ends_with "other heads than $weights" 2
  says "other heads than $weights: the key" 'init.weights: another model (model.num_attention_heads: 2 in .* 4 in'
done
head -c 100 hf/model.safetensors >cut && mv cut hf/model.safetensors
train plan base.json --set init.weights=hf
ends_with "torn weights" 74
says "torn weights: the file" 'hf/model.safetensors'

# The disk. A few kilobytes are too few for 200 KB of state.
if unshare --mount true 2>/dev/null; then
  mkdir small
  unshare --mount --propagation private bash -c 'mount -t tmpfs -o size=64k none small && exec "$@"' _ \
    "$binary" plan base.json --set checkpoint.directory=small/deeper --json >out 2>log
  code=$?
  ends_with "a full disk" 74
  result "a full disk"
  says "a full disk: how much" 'checkpoint.directory: .*small: .* free, saving needs '
  unshare --mount --propagation private bash -c 'mount -t tmpfs -o size=64k none small && exec "$@"' _ \
    "$binary" plan base.json --set checkpoint.directory=small --no-data >out 2>log
  code=$?
  ends_with "a full disk that is not the run's" 0
fi
train plan base.json --set run.directory=text.txt/run
ends_with "a file where the folder belongs" 74

# Nothing of a user's is overwritten, and the plan says so before the run does.
keeps() { # WHAT FILE OPTIONS...: refused, and the file is what it was
  local what=$1 file=$2
  shift 2
  cp "$file" kept
  train "$@"
  ends_with "$what" 2
  says "$what: it is named" "run.directory: .*$(basename "$file") is there and no run made it"
  check "$what: it stands" same_file "$file" kept
  train plan "$@"
  ends_with "$what: plan" 2
}
keeps "a model's folder" hf/config.json base.json --set run.directory=hf
mkdir here && cp base.json here/config.json && cp toy.* here
cd here || exit 1
keeps "the config's own folder" config.json config.json --set run.directory=.
cd ..
for name in metrics.jsonl loss.svg report.html kernel_choices.json; do
  mkdir "own-$name" && echo mine >"own-$name/$name"
  keeps "a $name" "own-$name/$name" base.json --set run.directory="own-$name"
done
mkdir -p full/tensorboard full/checkpoints && echo mine >full/notes
train base.json --set run.directory=full --set run.exit_at_step=2
ends_with "a folder with other files" 0
check "other files stand" same "$(cat full/notes)" mine
train base.json --set run.directory=full
ends_with "its own folder again" 0
mkdir -p steps/step-00000020 && echo mine >steps/step-00000020/thesis
train base.json --set checkpoint.directory=steps
ends_with "a step folder of a user's" 2
check "a step folder of a user's stands" same "$(cat steps/step-00000020/thesis)" mine

# A run that dies before its config stands begins again: whatever it leaves, no file of it is a stranger.
rm -rf run && mkdir run && : >run/metrics.jsonl
train base.json --set run.exit_at_step=2
ends_with "after a death between two files" 0

# Data replaced under their name are told, once, and an older checkpoint says nothing of them.
rm -rf run
cp toy.bin data.bin && cp toy.idx data.idx && cp toy.json data.json
train base.json --set data.train=data --set run.exit_at_step=5
head -n 200 text.txt >less.txt
train tokenize --tokenizer byte --output less less.txt
for kind in bin idx json; do cp less.$kind data.$kind; done
train base.json --set data.train=data --set run.exit_at_step=7
ends_with "other data" 0
says_once "other data are told" 'warning: data.bin: other data .*tokens [0-9]* -> [0-9]*'
train base.json --set data.train=data --set run.exit_at_step=9
check "the same data are not" lacks "$(cat log)" 'other data'

# A fork's plot begins where the fork does.
train base.json --set run.directory=fork --set run.resume=run --set run.exit_at_step=12
ends_with "a fork" 0
check "a fork's plot has no 0" lacks "$(cat fork/loss.svg)" '">0</text>'
check "an exit to come is not told" lacks "$(cat log)" 'is behind'
train base.json --set run.directory=fork --set run.exit_at_step=12
ends_with "an exit that is behind" 0
says_once "an exit that is behind is told" 'run.exit_at_step = 12 is behind'
finish
