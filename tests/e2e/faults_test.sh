#!/usr/bin/env bash
# Bad input ends before step 0 with the code of the contract and a sentence that names the place, once, in every
# command that reads it.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# refused WHAT CODE PATTERN ARGUMENTS...: by `train`, with `both` set on two ranks too, and by each command of `others`.
both=
with_data=(plan "plan --json" data evaluate schedule)
without_data=("benchmark --steps 1 --no-rates")
everywhere=("${with_data[@]}" "${without_data[@]}")
others=("${everywhere[@]}")
refused() {
  local what=$1 expected=$2 pattern=$3
  shift 3
  rm -rf run
  train "$@"
  ends_with "$what" "$expected"
  says "$what: the place is named" "$pattern"
  last_line_is_closing "$what"
  check "$what: no step was made" [ ! -e run/checkpoints ]
  local command
  for command in "${others[@]}"; do
    # shellcheck disable=SC2086  # a command and its options
    timeout 60 "$binary" $command "$@" >out 2>log
    code=$?
    ends_with "$command: $what" "$expected"
    says "$command: $what: the place is named" "$pattern"
    last_line_is_closing "$command: $what"
  done
  [ -n "$both" ] || return
  ranks 2 "$@"
  ends_with "$what, two ranks" "$expected"
  says_once "$what, two ranks: told once" "$pattern"
}
little_endian() { # VALUE BYTES: as the octal escapes of printf
  local value=$1 bytes=$2 i
  for ((i = 0; i < bytes; ++i)); do printf '\\%03o' $((value >> 8 * i & 255)); done
}
# token_files PREFIX DTYPE_CODE LENGTH: an index of one document of that many tokens; 4 is int32, 8 is uint16.
token_files() {
  {
    printf 'MMIDIDX\0\0'
    printf "$(little_endian 1 8)$(little_endian "$2" 1)$(little_endian 1 8)$(little_endian 2 8)"
    printf "$(little_endian "$3" 4)$(little_endian 0 8)$(little_endian 0 8)$(little_endian 1 8)"
  } >"$1.idx"
}

# The config and the command line: 2.
both=yes
cp base.json unknown.json
sed -i 's/"lr": 0.003/"lr": 0.003, "learning_rat": 1, "weight_decai": 0/' unknown.json
refused "unknown key" 2 "optimizer.weight_decai: unknown key.*nearest: optimizer.weight_decay" unknown.json
says "several faults at once" 'optimizer.learning_rat'
refused "another system's key" 2 'batch.micro' base.json --set train_micro_batch_size_per_gpu=1
both=
sed 's/"run":/"run": {}, "run":/' base.json >twice.json
refused "key twice" 2 'run' twice.json
refused "wrong types" 2 'data.sequence_length' base.json --set data.sequence_length=3.7 --set run.steps='"x"'
says "wrong types: all of them" 'run.steps'
refused "out of range" 2 'optimizer.lr' base.json --set optimizer.lr=-1
refused "contradiction" 2 'batch' base.json --set batch.global=7 --set batch.micro=2 --set batch.accumulation=3
refused "no steps" 2 'run.steps' base.json --set run.steps=null
printf '{"run": {' >broken.json
refused "cut config" 2 'broken.json' broken.json
refused "a model we lack" 2 'not in this version\|model_type' base.json --set model.model_type=mamba
refused "expert axis without experts" 2 'parallel.expert: is of experts' base.json --set parallel.expert=2
others=() # a plan may be of two ranks
refused "tensor axis on one rank" 2 'tensor 2 .*does not divide the number of ranks' base.json --set parallel.tensor=2
others=("${everywhere[@]}")
refused "sizes that fp8 does not take" 2 'precision.compute.*16' base.json --set precision.compute=fp8 --set model.intermediate_size=40
refused "unknown option" 2 'nonsense' base.json --nonsense
both=yes
others=() # what is planned may run elsewhere
refused "cuda in a build without" 3 'run.device\|cuda' base.json --set run.device=cuda
both=
train
ends_with "no arguments" 2
says "no arguments: help on stderr" 'train CONFIG'
check "no arguments: nothing on stdout" [ ! -s out ]
train --help
ends_with "--help" 0
check "--help is a result" grep -q 'train CONFIG' out

# Data.
both=yes
others=("${everywhere[@]}")
refused "no config" 74 'absent.json' absent.json
others=("${with_data[@]}")
refused "missing data" 74 'absent.*idx\|absent.*bin' base.json --set data.train=absent
printf 'a few' >five.txt
train tokenize --tokenizer byte --output five five.txt
refused "corpus shorter than a window" 2 'data.train\|five' base.json --set data.train=five
both=
cp toy.bin cut.bin
head -c 50 toy.idx >cut.idx
refused "cut index" 74 'cut.idx' base.json --set data.train=cut
cp toy.idx surplus.idx && printf 'xxxx' >>surplus.idx && cp toy.bin surplus.bin
refused "surplus bytes" 74 'surplus.idx' base.json --set data.train=surplus
cp toy.idx short_bin.idx && head -c 100 toy.bin >short_bin.bin
refused "index past the end of the data" 74 'short_bin' base.json --set data.train=short_bin
printf 'hello' >text.idx && printf 'hello' >text.bin
refused "no index at all" 74 'text.idx' base.json --set data.train=text
: >empty.txt
train tokenize --tokenizer byte --output empty empty.txt
ends_with "an empty text" 74
printf "MMIDIDX\0\0$(little_endian 1 8)$(little_endian 8 1)$(little_endian 0 8)$(little_endian 1 8)$(little_endian 0 8)" >empty.idx
: >empty.bin
refused "empty corpus" 2 'data.train\|empty' base.json --set data.train=empty
cp toy.bin high.bin && cp toy.idx high.idx
printf '\377\377' | dd of=high.bin bs=1 seek=3000 conv=notrunc 2>/dev/null
both=yes
others=(plan "plan --json" data schedule) # evaluate looks for its weights first
refused "token beyond the vocabulary" 74 'high.*65535\|65535.*high' base.json --set data.train=high
both=
refused "vocabulary smaller than the data's" 74 'toy.bin.*vocabulary of 100' base.json --set model.vocab_size=100
others=("${with_data[@]}")
refused "no validation data" 74 'absent' base.json --set data.validation=absent
token_files odd_type 99 1000 && cp toy.bin odd_type.bin
refused "wrong dtype code" 74 'odd_type.idx' base.json --set data.train=odd_type
token_files negative 8 -5 && cp toy.bin negative.bin
refused "negative length" 74 'negative.idx' base.json --set data.train=negative
token_files good 8 2000 && cp toy.bin good.bin
train base.json --set data.train=good --set run.directory=good-run --set run.steps=1
ends_with "an index made by hand" 0

# A tokenizer.
others=("${everywhere[@]}")
printf '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "a' >cut_tokenizer.json
printf '{"version": "1.0", "model": {"type": "Unigram", "vocab": []}}' >unigram.json
both=yes
refused "cut tokenizer" 74 'cut_tokenizer.json' base.json --set tokenizer=cut_tokenizer.json
both=
refused "a tokenizer of another kind" 74 'unigram.json' base.json --set tokenizer=unigram.json
refused "no tokenizer" 74 'absent_tokenizer.json' base.json --set tokenizer=absent_tokenizer.json

# Weights.
train base.json --set run.directory=donor --set run.steps=1
train export --checkpoint donor --output exported
ends_with "an export to damage" 0
weights() { # NAME: a directory with the exported config and no weights
  rm -rf "$1"
  mkdir "$1"
  cp exported/config.json "$1"
}
both=yes
refused "no such weights" 74 'absent_weights' base.json --set init.weights=absent_weights
weights bare
refused "a directory without weights" 74 'bare' base.json --set init.weights=bare
weights long_header
printf '\377\377\377\377\377\377\377\177{}' >long_header/model.safetensors
refused "header past the end" 74 'long_header/model.safetensors' base.json --set init.weights=long_header
both=
weights cut_weights
head -c 9000 exported/model.safetensors >cut_weights/model.safetensors
refused "cut weights" 74 'cut_weights/model.safetensors' base.json --set init.weights=cut_weights
weights no_header
head -c 5 exported/model.safetensors >no_header/model.safetensors
refused "five bytes" 74 'no_header/model.safetensors' base.json --set init.weights=no_header
# safetensors DIRECTORY HEADER BYTES: this header and so many zeros.
safetensors() {
  weights "$1"
  { printf "$(little_endian ${#2} 8)"; printf '%s' "$2"; head -c "$3" /dev/zero; } >"$1/model.safetensors"
}
embedding=model.embed_tokens.weight
safetensors one_tensor "{\"$embedding\":{\"dtype\":\"F32\",\"shape\":[257,32],\"data_offsets\":[0,32896]}}" 32896
refused "missing tensors" 74 'one_tensor.*model\.\|model\..*one_tensor' base.json --set init.weights=one_tensor
safetensors overlapping \
  "{\"$embedding\":{\"dtype\":\"F32\",\"shape\":[257,32],\"data_offsets\":[0,32896]},\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[257,32],\"data_offsets\":[16,32912]}}" 32912
refused "overlapping offsets" 74 'overlapping/model.safetensors' base.json --set init.weights=overlapping
safetensors outside "{\"$embedding\":{\"dtype\":\"F32\",\"shape\":[257,32],\"data_offsets\":[0,32896]}}" 100
refused "offsets past the end" 74 'outside/model.safetensors' base.json --set init.weights=outside
safetensors wrong_shape "{\"$embedding\":{\"dtype\":\"F32\",\"shape\":[32,257],\"data_offsets\":[0,32896]}}" 32896
refused "wrong shape" 74 'wrong_shape' base.json --set init.weights=wrong_shape
train base.json --set init.weights=exported --set model.hidden_size=64
check "weights of another model are refused" [ "$code" = 74 -o "$code" = 2 ]
finish
