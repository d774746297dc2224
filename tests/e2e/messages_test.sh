#!/usr/bin/env bash
# What people type wrong: each slip ends with the code of the contract, its cause is named, and the way out.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# slip WHAT CODE PATTERN ARGUMENTS...: ends so, and says it once.
slip() {
  local what=$1 expected=$2 pattern=$3
  shift 3
  timeout 60 "$binary" "$@" >out 2>log
  code=$?
  ends_with "$what" "$expected"
  says_once "$what: cause and way out" "$pattern"
  last_line_is_closing "$what"
}

train base.json --set run.exit_at_step=2 --set run.directory=done
ends_with "a run to go on from" 0

# Options.
slip "temperature below 0" 2 '--temperature: found "-1"; legal: a number of at least 0' \
  generate --checkpoint done --prompt x --temperature -1
slip "no ranks" 2 '--world: found "0"; legal: an integer from 1 to 1048576' plan base.json --world 0
slip "a sample before the first" 2 '--from: found "-1"; legal: an integer of at least 0' data base.json --from -1
slip "a count that is a word" 2 '--count: found "many"; legal: an integer' data base.json --count many
slip "a dtype of another system" 2 '--dtype: found "bf15"; legal: bf16, fp32; nearest: bf16' \
  export --checkpoint done --output hf --dtype bf15
slip "an option misspelt" 2 'Nearest: --checkpoint' generate --checkpont done --prompt x
slip "another system's option" 2 '`--set optimizer.lr=1e-3`' base.json --lr 1e-3
slip "another system's option with =" 2 '`--set batch.micro=4`' base.json --micro-batch-size=4
slip "--config" 2 'A config stands without an option: `train base.json`' --config base.json
slip "--config of a command" 2 '`train plan base.json`' plan --config base.json
slip "two overrides behind one --set" 2 'set by `--set run.seed=2`' base.json --set run.steps=1 run.seed=2
slip "an override alone" 2 'set by `--set run.seed=2`' base.json run.seed=2
slip "ranks as an option" 2 'scripts/run.sh -n 2' base.json -n 2
slip "no config" 2 'CONFIG is required' plan
for command in benchmark plan data evaluate generate export checkpoint schedule tokenize tokenizer schema; do
  slip "$command with an unknown option" 2 'nonsense' $command --nonsense
done

# The first word.
slip "a command misspelt" 2 'Nearest command: evaluate' evalute base.json
slip "a command of other systems" 2 'Nearest command: evaluate' eval base.json
slip "train train" 2 '`train CONFIG`' train base.json
slip "a word that is nothing" 2 'neither a command nor a file' xyzzy
slip "a config that is not there" 74 'absent.json: there is no such file.*A first config.*configs/tiny_llama.json' absent.json
slip "a config misspelt" 74 'bsae.json: there is no such file.*nearest: base.json' bsae.json
slip "a config without its extension" 74 './base: there is no such file.*nearest: base.json' ./base

# Configs that are none.
printf 'run:\n  directory: r\n' >config.yaml
printf '[run]\ndirectory = "r"\n' >config.toml
sed 's/"run": {/"run": {"seed": 1, /; s/"tensorboard": false}/"tensorboard": false,}/' base.json >comma.json
gzip -c base.json >base.json.gz
for command in "" plan data benchmark evaluate schedule; do
  slip "${command:-train}: YAML" 2 'config.yaml: is YAML, and a config is JSON' $command config.yaml
  slip "${command:-train}: TOML" 2 'config.toml: is TOML, and a config is JSON' $command config.toml
  slip "${command:-train}: a trailing comma" 2 'comma.json: line [0-9]*, column [0-9]*: a comma before }' $command comma.json
  slip "${command:-train}: compressed" 2 'base.json.gz: is compressed.*Unpack it' $command base.json.gz
  slip "${command:-train}: a folder that is no run's" 74 'is a folder without a config.json' $command "$scratch"
done

# A run's folder is its config.
train plan done --json
ends_with "plan of a run's folder" 0
train evaluate done --json
ends_with "evaluate of a run's folder" 0
train done
ends_with "a run's folder goes on" 0
check "a run's folder goes on to its end" [ -d "$(folder_of done 20)" ]

# Units.
train base.json --set run.directory=units --set run.exit_at_step=1 --set run.steps=0.02k --set data.scan_bytes=1MiB
ends_with "numbers with units" 0
check "the resolved config has plain numbers" grep -q '"steps": 20,' units/config.json
check "the resolved config has plain bytes" grep -q '"scan_bytes": 1048576' units/config.json
slip "a length with k" 2 'data.sequence_length: may be 4000 or 4096' base.json --set data.sequence_length=4k
slip "a number in quotes" 2 'run.steps: is a string where an integer belongs' base.json --set 'run.steps="10"'

# Values and files.
slip "gpu" 2 'run.device.*nearest: "cuda"' base.json --set run.device=gpu
slip "fp16" 2 'precision.compute.*nearest: "bf16"' base.json --set precision.compute=fp16
slip "swiglu" 2 'model.hidden_act.*nearest: silu' base.json --set model.hidden_act=swiglu
slip "Llama" 2 'model.model_type.*nearest: llama' base.json --set model.model_type=Llama
slip "a split as a list" 2 'data.split.*nearest: "90,5,5"' base.json --set data.validation=null --set 'data.split=[90,5,5]'
others=(plan data evaluate schedule)
for command in "" "${others[@]}"; do
  slip "${command:-train}: a prefix with .bin" 74 'data.train: toy.bin: .*without .bin: "toy"' $command base.json \
    --set data.train=toy.bin
  slip "${command:-train}: text in place of token files" 74 'data.train: text.txt: .*`train tokenize' $command base.json \
    --set data.train=text.txt
done
cp text.txt text.jsonl
slip "JSON lines in place of token files" 74 'tokenize .*--jsonl KEY text.jsonl' base.json --set data.train=text.jsonl
for command in "" "${others[@]}" benchmark; do
  slip "${command:-train}: a tokenizer by name" 74 'tokenizer: gpt2: .*nothing is downloaded.*hf download gpt2' \
    $command base.json --set tokenizer=gpt2
  slip "${command:-train}: a model by name" 74 'model: meta-llama/Llama-3.1-8B: .*hf download meta-llama' \
    $command base.json --set model=meta-llama/Llama-3.1-8B
  for weights in absent/step-00000010 toy.bin "$scratch/empty"; do
    mkdir -p empty
    slip "${command:-train}: init.weights=$weights" 74 'init.weights: .*Hugging Face directory' \
      $command base.json --set init.weights="$weights"
    slip "${command:-train}: model of init.weights=$weights" 74 'init.weights: .*Hugging Face directory' \
      $command base.json --set model=null --set init.weights="$weights"
  done
done
mkdir -p empty
slip "a model's folder without config.json" 74 'model: empty: is a folder without a config.json.*Give a Hugging Face' \
  base.json --set model=empty
slip "a checkpoint as the model" 74 'is a checkpoint. Give it as init.weights and leave "model" out' \
  base.json --set model="$(folder_of done 2)"
slip "a resume from nowhere" 74 'run.resume: absent: there is no such.*Give a step folder.*"auto"' \
  base.json --set run.resume=absent
slip "a resume from an empty folder" 74 'run.resume: empty: holds no checkpoint.*Give a step folder.*"auto"' \
  base.json --set run.resume=empty
slip "a resume that must be and cannot" 74 'no checkpoint to resume from.*Set run.directory .* or run.resume to "auto"' \
  base.json --set run.resume=must --set run.directory=unmade
slip "a step that was not saved" 74 'step-00000099 in it is not; nearest: step-000000.*train checkpoint list done' base.json --set run.directory=done --set run.resume=99
train export --checkpoint done --output wide
for weights in wide done; do
  slip "weights of another width ($weights)" 74 'model.hidden_size: 32 in init.weights, 64 in the config.*Leave "model" out' \
    base.json --set init.weights=$weights --set model.hidden_size=64
done
slip "tokens of a text that is not there" 74 'absent.txt: there is no such file.*Name files of text' \
  tokenize --tokenizer byte --output x absent.txt
slip "tokens of a text misspelt" 74 'nearest: text.txt' tokenize --tokenizer byte --output x txet.txt
slip "a vocabulary of a text that is not there" 74 'absent.txt: there is no such file.*Name files of text' \
  tokenizer --vocab-size 300 --output t.json absent.txt
for command in "generate --prompt x" "export --output e" "evaluate base.json" "evaluate --data toy"; do
  # shellcheck disable=SC2086  # a command and its options
  slip "$command --checkpoint absent" 74 'absent: there is no such file or folder.*Give a .*run.s folder' \
    $command --checkpoint absent
done
slip "the mean of what is not there" 74 'absent: there is no such file.*Give checkpoints' average absent --output mean
slip "tokenize with a name" 74 'nothing is downloaded' tokenize --tokenizer gpt2 --output x text.txt
slip "several faults of files are told together" 74 'tokenizer: .*absent.json' base.json --set tokenizer=absent.json \
  --set data.train=absent
says "several faults of files: the other too" 'data.train: absent.idx'

# Weights that moved away after the run began.
train export --checkpoint done --output hf
train base.json --set model=null --set init.weights=hf --set run.directory=tuned --set run.exit_at_step=2
ends_with "a fine-tuned run" 0
mv hf moved
train base.json --set model=null --set init.weights=hf --set run.directory=tuned --set run.steps=4
ends_with "resumed without its first weights" 0
says "that the model is the checkpoint's is told" 'init.weights: hf is not there; the model is that of tuned'
slip "begun anew without its first weights" 74 'init.weights: hf: there is no such file' base.json --set model=null \
  --set init.weights=hf --set run.directory=anew

# Several ranks.
slip "tensor 2 alone" 2 'scripts/run.sh -n 2 CONFIG' base.json --set parallel.tensor=2
slip "data 4 alone" 2 'scripts/run.sh -n 4 CONFIG' base.json --set parallel.data=4
RANK=0 WORLD_SIZE=4 train base.json --set run.directory=torchrun
ends_with "torchrun" 3
says "torchrun: what to type" 'WORLD_SIZE=4.*scripts/run.sh -n 4'
check "torchrun: nothing was trained" [ ! -e torchrun ]
# once WHAT CODE PATTERN ARGUMENTS...: told once for both ranks.
once() {
  local what=$1 expected=$2 pattern=$3
  shift 3
  ranks 2 "$@"
  ends_with "two ranks: $what" "$expected"
  says_once "two ranks: $what: told once" "$pattern"
}
once "no config" 2 'CONFIG is required' benchmark
once "another system's option" 2 '`--set optimizer.lr=1e-3`' base.json --lr 1e-3
once "an override alone" 2 'set by `--set run.seed=2`' base.json run.seed=2
once "a command misspelt" 2 'Nearest command: evaluate' evalute base.json
once "a config that is not there" 74 'absent.json: there is no such file' absent.json
once "a value out of range" 2 'optimizer.lr' base.json --set optimizer.lr=-1
once "an option of benchmark" 2 '--steps: found "0"' benchmark base.json --steps 0
once "an option of evaluate" 2 'give a CONFIG, or --checkpoint' evaluate --checkpoint done
once "an option of generate" 2 'there is nothing to continue. Give one of --prompt' generate --checkpoint done
once "an option of export" 2 'found "bf15"' export --checkpoint done --output e --dtype bf15
once "a command that is one process" 3 'Start it without one' average done --output mean
once "tokenize is one process" 3 'Start it without one' tokenize --tokenizer byte --output twice text.txt
once "tokenizer is one process" 3 'Start it without one' tokenizer --vocab-size 300 --output twice.json text.txt
check "and writes nothing" [ ! -e twice.bin -a ! -e twice.json ]

# Memory that is refused when it is taken: what was needed, by item, and the way out.
mkdir -p large
cat >large/config.json <<'E2'
{"model_type": "llama", "vocab_size": 257, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8,
 "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 1024}
E2
# refused WHAT PATTERN ARGUMENTS...: with 1.5 GB of addresses.
refused() {
  local what=$1 pattern=$2
  shift 2
  (ulimit -v 1500000 && timeout 60 "$binary" "$@" >out 2>log)
  code=$?
  ends_with "out of memory: $what" 3
  says_once "out of memory: $what: by item, and the way out" "out of memory on host .* The rank needs $pattern"
  last_line_is_closing "out of memory: $what"
}
if ! grep -qa __asan_init "$binary"; then # which reserves more than that
  large=(base.json --set model=large --set tokenizer=byte --set run.directory=large-run --set run.threads_per_rank=1)
  refused "train" 'parameters .*B, .* together.* Change, what helps most first: ' "${large[@]}"
  refused "benchmark" 'parameters .*B, .* together.* Change, what helps most first: ' benchmark "${large[@]}" --no-rates
  refused "evaluate" 'parameters .*B, .* together.* Change --sequence-length' evaluate --checkpoint large --data toy
  refused "generate" 'weights .*B, keys and values of 64 tokens .*B: .* together.*more ranks, .*run.sh -n 2 generate' \
    generate --checkpoint large --token-ids 1,2 --max-new-tokens 10
fi
many=$(($(nproc) + 1))
if [ "$many" -le 5 ]; then
  OMP_NUM_THREADS=1 ranks "$many" base.json --set run.directory=many --set batch.global="$many" --set batch.micro=1 \
    --set run.exit_at_step=1
  ends_with "more ranks than cores" 0
  says_once "more ranks than cores: a warning" "$many ranks share $(nproc) core"
fi

# Checkpoints that are none, and lists of one.
for command in "generate --prompt x --checkpoint" "export --output e --checkpoint" "checkpoint list" "checkpoint verify" \
  "checkpoint show" "evaluate base.json --checkpoint"; do
  for argument in absent text.txt empty base.json; do
    # shellcheck disable=SC2086  # a command and its options
    slip "$command $argument" 74 "$argument: " $command "$argument"
  done
done
train plan base.json
check "one rank is singular" grep -q '^1 rank: ' out
printf 'a line' >one.txt
train tokenize --tokenizer byte --output one one.txt
check "one document is singular" grep -q ': 1 document, ' out
# Streams that are closed, as a daemon starts its children: no file of the run has their number.
"$binary" base.json --set run.directory=closed <&- >&- 2>&-
code=$?
check "closed streams: exit 0" same "$code" 0
check_metrics closed 20
"$binary" checkpoint verify closed >out 2>log
code=$?
ends_with "closed streams: the checkpoints" 0
"$binary" plan base.json 2>log >&-
code=$?
ends_with "a result that nobody can get" 74
says_once "a result that nobody can get: why" 'standard output: cannot be written'
finish
