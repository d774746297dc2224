#!/usr/bin/env bash
# The other commands, on the results of a run.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
result() { check "$1: one valid JSON value" valid_json out; }

# A rank that has used half a second of processor time is in its loop.
benchmarking() {
  local process
  process=$(train_processes "$$" | tail -n 1)
  [ -n "$process" ] && [ "$(cut -d ' ' -f 14 "/proc/$process/stat" 2>/dev/null || echo 0)" -ge 50 ]
}

train base.json --set checkpoint.interval_steps=10 --set evaluation.interval_steps=10
ends_with "a run to look at" 0
run10=$(folder_of run 10)
run20=$(folder_of run 20)

# evaluate: the numbers of the run itself.
for step in 10 20; do
  train evaluate base.json --checkpoint "$(folder_of run $step)" --json
  ends_with "evaluate step $step" 0
  result "evaluate"
  check "evaluate: the line of the metrics" same "$(cat out)" "$(grep '"kind":"evaluation","step":'$step, run/metrics.jsonl)"
done
check "evaluate: the loss is finite and fell" awk -v a="$(number loss <(grep '"kind":"evaluation","step":10,' run/metrics.jsonl))" \
  -v b="$(number loss out)" 'BEGIN { exit !(b > 0 && b < a) }'
train evaluate base.json --json
check "evaluate: the newest of the run by default" same "$(number step out)" 20
ranks 2 evaluate base.json --set batch.micro=1 --json
ends_with "evaluate on two ranks" 0
check "evaluate on two ranks agrees" awk -v b="$(number loss out)" -v c="$(grep '"kind":"evaluation","step":20,' run/metrics.jsonl | sed 's/.*"loss":\([^,]*\).*/\1/')" \
  'BEGIN { d = b - c; if (d < 0) d = -d; exit !(b > 0 && d < 1e-5 * c) }'
train evaluate base.json --checkpoint absent --json
ends_with "evaluate what is not there" 74

# generate.
train generate --checkpoint run --prompt "stroke 1" --max-new-tokens 24 --temperature 0
ends_with "generate" 0
cp out text.out
check "generate: prompt and continuation" [ "$(head -c 8 out)" = "stroke 1" -a "$(wc -c <out)" -ge 10 ]
train generate --checkpoint "$run20" --prompt "stroke 1" --max-new-tokens 24 --temperature 0
check "generate: greedy twice the same" same_file out text.out
train generate --checkpoint run/checkpoints --token-ids 115,116,114 --max-new-tokens 8 --temperature 0
ends_with "generate from ids" 0
check "generate from ids: all ids by commas" grep -qE '^115,116,114(,[0-9]+){1,8}$' out
train generate --checkpoint run --prompt "stroke" --max-new-tokens 16 --temperature 0.8 --top-k 20 --top-p 0.9 --seed 5
cp out sampled.out
train generate --checkpoint run --prompt "stroke" --max-new-tokens 16 --temperature 0.8 --top-k 20 --top-p 0.9 --seed 5
check "generate: one seed, one text" same_file out sampled.out
train generate --checkpoint run --token-ids 9999
ends_with "generate: an id beyond the vocabulary" 2
train generate --checkpoint run
ends_with "generate: nothing to continue" 2

# plan.
train plan base.json --json
ends_with "plan" 0
result "plan"
check "plan: memory" [ "$(number memory_bytes_max out)" -gt 100000 ]
check "plan: no errors" grep -q '"errors": *\[\]' out
train plan base.json --world 4 --set batch.global=8 --json --memory 80GiB --mtbf-hours 10 --write-gbps 2
ends_with "plan for four ranks" 0
check "plan: four data ranks" same "$(number data_ranks out)" 4
check "plan: when to save" awk -v seconds="$(number checkpoint_interval_seconds out)" \
  -v bytes="$(number checkpoint_bytes out)" \
  'BEGIN { e = seconds / sqrt(2 * 36000 * bytes / 2e9) - 1; exit !(e < 1e-4 && e > -1e-4) }'
train plan base.json --world 4 --set batch.global=8 --cluster h100 --json
ends_with "plan on a cluster" 0
check "plan on a cluster: its device" grep -q '"device": *"cuda"' out
check "plan on a cluster: seconds" awk -v seconds="$(number step_seconds out)" 'BEGIN { exit !(seconds > 0 && seconds < 1) }'
train plan base.json --cluster h20 --json
ends_with "plan on no cluster" 2
check "plan on no cluster: the nearest" grep -q '"nearest": *"h200"' out
train plan base.json --cluster nowhere.json --json
ends_with "plan on a cluster that is not there" 74
train plan base.json --mtbf-hours 4
check "plan: when to save, in words" grep -q 'Save every .*failure comes every 4h00m.*Young, Daly' out
experts=(--world 2 --set 'model={"model_type":"olmoe","vocab_size":257,"hidden_size":32,"intermediate_size":16,
  "num_hidden_layers":2,"num_attention_heads":2,"num_experts":4,"num_experts_per_tok":2,"max_position_embeddings":64}'
  --set parallel.expert=2)
echo '{"load": [[4, 4, 1, 1], [2, 2, 2, 2]]}' >load.json
train plan base.json "${experts[@]}" --expert-load load.json --write text.txt
ends_with "plan: what the user wrote is not overwritten" 2
check "plan: what the user wrote is there" grep -q oars text.txt
train plan base.json "${experts[@]}" --expert-load load.json --write placement.json --json
ends_with "plan of experts" 0
check "plan of experts: the first layer" same "$(sed -n '/"layers"/,$p' out | tr -d ' \n' | grep -o '"neighbours":1.6,"placed":1.0' | wc -l)" 1
check "plan of experts: the placement" same "$(cat placement.json)" '{"placement":[[0,1,0,1],[0,0,1,1]]}'
train plan base.json "${experts[@]}" --expert-load load.json
check "plan of experts, in words" grep -qE '^ +all +1.300 +1.000 +23.1 %' out
train plan base.json "${experts[@]}" --set parallel.expert_placement=placement.json
ends_with "plan with a placement" 0
train plan base.json "${experts[@]}" --set parallel.expert_placement=load.json
ends_with "plan with another file as placement" 2
says "plan with another file as placement: why" 'parallel.expert_placement: load.json: has no list "placement"'
train plan base.json "${experts[@]}" --expert-load absent.json
ends_with "plan of experts: no load" 74
train plan base.json "${experts[@]}" --write placement.json
ends_with "plan: --write alone" 2
train plan base.json --world 3 --json
ends_with "plan with a fault" 2
result "plan with a fault"
check "plan: the fault is listed" grep -q '"path": *"batch' out
train plan base.json --memory 10KiB --json
ends_with "plan beyond the memory" 2
result "plan beyond the memory"
check "plan: memory is the fault" grep -q '"path": *"--memory"' out
says "plan beyond the memory: by item, with the sum" 'parameters .*B, gradients .*activations .*B: .* together'
train plan base.json --set nonsense=1 --set optimizer.lr=-1 --json
ends_with "plan with two faults" 2
result "plan with two faults"
check "plan: both faults" [ "$(grep -c '"path"' out)" -ge 2 -o "$(grep -o '"path"' out | wc -l)" -ge 2 ]

# Each layer is 82 TB: refused before anything is taken.
train base.json --set run.directory=vast --set model.hidden_size=65536 --set model.num_attention_heads=512 \
  --set model.intermediate_size=262144 --set model.num_hidden_layers=100
ends_with "a model larger than any host" 3
says "a model larger than any host: by item" 'has .*iB of memory, and the run would take .*parameters .*iB, .*: .* together'
says_once "a model larger than any host: what to change" 'what helps most first'
# Whoever sends most: the middle of three stages sends to both sides.
deep=(base.json --no-data --set model.num_hidden_layers=3 --set batch.micro=1 --set parallel.pipeline=3)
train plan "${deep[@]}" --json
middle=$(number activations <(grep -o '"pipeline": *{[^}]*}' <(tr -d '\n' <out) | tail -n 1))
train plan "${deep[@]}" --set parallel.pipeline=2 --set model.num_hidden_layers=2 --json
check "the traffic is of the rank that sends most" \
  [ "$middle" = $((2 * $(number activations <(grep -o '"pipeline": *{[^}]*}' <(tr -d '\n' <out) | tail -n 1)))) ]
train plan "${deep[@]}"
check "the text says so" grep -q '^Sent in a step by the rank that sends most: .* (activations, pipeline axis)' out
check "memory by stage" [ "$(grep -A 4 '^Memory by pipeline stage' out | wc -l)" = 5 ]
check "the bubble in parts" grep -qE '^Bubble [0-9.]+ %: [0-9.]+ % of the schedule, [+-][0-9.]+ % since' out
train plan "${deep[@]}" --set parallel.pipeline_schedule=zb-h1 --set parallel.recompute=full
says_once "zb-h1 that is 1f1b says so" 'zb-h1 is exactly 1f1b here'
train schedule "${deep[@]/--no-data/--json}" --set parallel.pipeline_schedule=zb-h1 --set parallel.recompute=full
says_once "so does the schedule" 'zb-h1 is exactly 1f1b here'

# benchmark, schema, data, version.
train benchmark base.json --steps 3 --warmup 1 --json
ends_with "benchmark" 0
result "benchmark"
check "benchmark: tokens a second" awk -v x="$(number tokens_per_second out)" 'BEGIN { exit !(x > 0) }'
check "benchmark: no checkpoint of its own" same "$(ls run/checkpoints)" "$(basename "$run10")
$(basename "$run20")"
ranks 2 benchmark base.json --steps 2 --warmup 1 --json
ends_with "benchmark on two ranks" 0
result "benchmark on two ranks"
check "benchmark on two ranks: threads of both" same "$(number threads out)" 2
check "benchmark on two ranks: a rate of the machine" awk -v x="$(number sgemm_gflops out)" 'BEGIN { exit !(x > 0) }'
check "benchmark on two ranks: least and most of an op" grep -q '"op":"adamw_update".*"seconds_minimum":' out
ranks 2 benchmark base.json --set parallel.pipeline=2 --set batch.micro=1 --steps 2 --warmup 1 --json --no-rates
ends_with "benchmark of a pipeline" 0
check "benchmark of a pipeline: what its axis sends" grep -q '"sent_bytes":{[^}]*"pipeline":[1-9]' out
check "benchmark of a pipeline: as planned" grep -q '"planned_sent_bytes":{[^}]*"pipeline":[1-9]' out
train schema
ends_with "schema" 0
result "schema"
check "schema: of draft 7" grep -q 'draft-07' out
train data base.json --count 3 --json
ends_with "data" 0
check "data: three lines" [ "$(wc -l <out)" = 3 ]
check "data: lines are JSON" same "$(reduced_json <out | sort -u)" V
check "data: T + 1 ids" [ "$(head -n 1 out | sed 's/.*"tokens":\[\([0-9,]*\)\].*/\1/' | tr ',' '\n' | wc -l)" = 33 ]
head -n 2 out | tail -n 1 >second
train data base.json --from 1 --count 1 --json
check "data: from a sample" same_file out second
train --version
ends_with "--version" 0
check "--version: on stdout" [ "$(wc -l <out)" -ge 3 ]
cp out version.out
OMP_PROC_BIND=true train --version
check "bound threads: as many cores" same_file out version.out
OMP_PROC_BIND=true OMP_PLACES=cores GOMP_SPINCOUNT=1000 train --version
check "bound threads: as many cores, in one process" same_file out version.out

# checkpoint.
train checkpoint list run
ends_with "checkpoint list" 0
check "checkpoint list: both" [ "$(grep -c 'step-000000[12]0' out)" = 2 ]
train checkpoint show "$run20"
ends_with "checkpoint show" 0
check "checkpoint show: a shape" grep -q 'parameters/model.embed_tokens.weight .*\[257, 32\]' out
train checkpoint verify run
ends_with "checkpoint verify" 0
cp -r run damaged
flip_a_bit() { # of the middle byte of a file
  local offset=$(($(wc -c <"$1") / 2)) byte
  byte=$(od -An -tu1 -j $offset -N 1 "$1")
  printf "\\$(printf %o $((byte ^ 1)))" | dd of="$1" bs=1 seek=$offset conv=notrunc 2>/dev/null
}
flip_a_bit "$(folder_of damaged 20)/rank-00000.h5"
train checkpoint verify damaged
ends_with "a flipped bit" 74
check "a flipped bit: the file and tensor are named" grep -q 'step-00000020.*damaged.*\(parameters\|optimizer\)/' out
train checkpoint verify "$(folder_of damaged 10)"
ends_with "the older one is good" 0
train base.json --set run.directory=damaged
ends_with "resume beside a damaged checkpoint" 0
says "the damaged one is named" 'step-00000020 is not used'
says "the older one is used" 'from step 10 '
same_run "resume beside a damaged checkpoint" damaged 20 run
# convert-config: what comes out is planned once the keys that it names are there.
conversions=$root/tests/config/convert
train convert-config "$conversions/megatron_mlperf_405b.txt"
ends_with "convert-config: Megatron-LM" 0
result "convert-config: Megatron-LM"
check "convert-config: Megatron-LM: nothing is to be added" [ "$(grep -c '^To be added' log)" = 0 ]
check "convert-config: Megatron-LM: what has no meaning is told" grep -q '^  --overlap-grad-reduce, ' log
cp out converted.json
train plan converted.json --world 1024 --set run.device=cuda --set run.directory=planned --set model.hidden_size=256 \
  --set model.head_dim=16 --set model.intermediate_size=512 --set model.vocab_size=1024 --set checkpoint.keep_last=1 # fits on any disk
ends_with "convert-config: the layout of 1,024 ranks is planned" 0
train convert-config - <"$conversions/megatron_core_70b.sh"
ends_with "convert-config: standard input" 0
check "convert-config: standard input: the committed config" same_file out "$conversions/megatron_core_70b.expected.json"
train convert-config "$conversions/deepspeed_zero3_auto.json"
ends_with "convert-config: DeepSpeed" 0
check "convert-config: DeepSpeed: what is to be added is named" grep -q '^  optimizer.lr: ' log
cp out converted.json
train plan base.json converted.json --world 2 --set run.device=cuda
ends_with "convert-config: DeepSpeed: planned" 0
printf -- '--lr "1e-3' >hostile.txt
train convert-config hostile.txt
ends_with "convert-config: a quote that is not closed" 2
check "convert-config: a fault leaves no config" [ ! -s out ]
train convert-config "$binary"
ends_with "convert-config: a program" 2
train convert-config absent.sh
ends_with "convert-config: a file that is not there" 2
train convert-config . --from deepspeed
ends_with "convert-config: a folder" 2
train convert-config base.json --from slurm
ends_with "convert-config: no such system" 2

# A run that is not finished finds it while it loads.
flip_a_bit "$(folder_of damaged 20)/rank-00000.h5"
ranks 2 base.json --set run.directory=damaged --set batch.micro=1 --set run.steps=23
ends_with "damage found while loading" 0
says_once "damage found while loading is named" 'step-00000020 is not used'
says "damage found while loading: the older one is used" 'from step 10 '
check_metrics damaged 23
for step in 10 23; do flip_a_bit "$(folder_of damaged $step)/rank-00000.h5"; done
cp damaged/metrics.jsonl before.jsonl
ranks 2 base.json --set run.directory=damaged --set batch.micro=1 --set run.steps=25
ends_with "all damaged, found while loading" 74
says "all damaged, found while loading: said so" 'no checkpoint of the run is good'
check "all damaged, found while loading: the metrics stay" same_file damaged/metrics.jsonl before.jsonl

rm -rf damaged
cp -r run damaged
for step in 10 20; do : >"$(folder_of damaged $step)/rank-00000.h5"; done
cp damaged/metrics.jsonl before.jsonl
train base.json --set run.directory=damaged
ends_with "no good checkpoint is left" 74
says "no good checkpoint: said so" 'no checkpoint of the run is good'
check "no good checkpoint: the metrics stay" same_file damaged/metrics.jsonl before.jsonl
train base.json --set run.directory=damaged --set run.resume=never --set run.exit_at_step=1
ends_with "no good checkpoint: begun anew when told to" 0

# export, and back.
train export --checkpoint "$run20" --output hf --dtype fp32
ends_with "export" 0
for file in config.json model.safetensors generation_config.json; do check "export: $file" [ -s "hf/$file" ]; done
check "export: config.json is JSON" valid_json hf/config.json
check "export: the format is named" grep -qa '"format":"pt"' hf/model.safetensors
train base.json --set run.directory=from_export --set init.weights=hf --set run.exit_at_step=1
ends_with "training from an export" 0
train base.json --set run.directory=from_checkpoint --set init.weights="$run20" --set run.exit_at_step=1
ends_with "training from a checkpoint's weights" 0
same_run "export and checkpoint" from_export 1 from_checkpoint
sed 's/^  "model":.*/  "init": {"weights": "hf"},/; /"num_hidden_layers"/d' base.json >no_model.json
train no_model.json --set run.directory=no_model --set run.exit_at_step=1
ends_with "the model taken from the weights" 0
check "its loss is that" same "$(steps_of no_model)" "$(steps_of from_export)"
train generate --checkpoint hf --token-ids 115,116,114 --max-new-tokens 8 --temperature 0
cp out hf.out
train generate --checkpoint run --token-ids 115,116,114 --max-new-tokens 8 --temperature 0
check "an export generates what its checkpoint does" same_file out hf.out
train export --checkpoint run --output hf16 --dtype bf16
ends_with "export in bf16" 0
check "bf16 is half" awk -v a="$(wc -c <hf/model.safetensors)" -v b="$(wc -c <hf16/model.safetensors)" 'BEGIN { exit !(b < 0.6 * a) }'

# Text in, text out with a tokenizer of our own.
train tokenizer --vocab-size 300 --output vocabulary.json text.txt
ends_with "tokenizer" 0
train tokenize --tokenizer vocabulary.json --output bpe text.txt
ends_with "tokenize" 0
bpe=(base.json --set tokenizer=vocabulary.json --set data.train=bpe --set data.validation=bpe --set model.vocab_size=304
  --set run.directory=bpe-run)
train "${bpe[@]}"
ends_with "a run on a tokenizer of our own" 0
mv vocabulary.json moved.json
train generate --checkpoint bpe-run --prompt "stroke" --max-new-tokens 4 --temperature 0
ends_with "the checkpoint holds its tokenizer" 0
check "text comes out" [ "$(head -c 6 out)" = stroke ]
train export --checkpoint bpe-run --output bpe-hf
check "export: the tokenizer" same_file bpe-hf/tokenizer.json moved.json
train "${bpe[@]}" --set tokenizer=byte --set data.train=toy --set data.validation=toy --set run.steps=30
ends_with "another tokenizer on resume" 2
# The file written anew, with other bytes, is the same tokenizer, whichever hash a checkpoint names.
tr -d '\n' <moved.json | sed 's/  */ /g' >vocabulary.json
differs() { ! cmp -s "$1" "$2"; }
check "other bytes" differs moved.json vocabulary.json
train "${bpe[@]}" --set run.steps=30
ends_with "a tokenizer that was saved again, on resume" 0
check "nothing is said of another tokenizer" [ -z "$(grep 'another tokenizer' log)" ]
manifest=$(echo bpe-run/checkpoints/step-*30/manifest.json)
hash=$(sed -n '/"tokenizer.json"/,/}/s/.*"xxh3_128": *"\([0-9a-f]*\)".*/\1/p' "$manifest")
check "the hash of the file" [ ${#hash} = 32 ]
sed -i -e "/\"tokenizer\": *{/,/}/s/\(\"hash\": *\"\)[0-9a-f]*/\1$hash/" "$manifest"
sed -i -e ':a;N;$!ba;s/,\n *"manifest_xxh3_128": *"[0-9a-f]*"//' "$manifest"
check "the manifest is an old one" grep -q "\"hash\": *\"$hash\"" "$manifest"
train "${bpe[@]}" --set run.steps=40
ends_with "a checkpoint that names the hash of a file" 0
cp moved.json vocabulary.json
train "${bpe[@]}" --set run.resume="$(dirname "$manifest")" --set run.steps=31 --set run.directory=bpe-fork
ends_with "and whose file was written anew since" 0

# What belongs to a tokenizer, and how to generate, goes the whole way.
cp -r bpe-hf pretrained
echo '{{ messages }}' >pretrained/chat_template.jinja
echo '{"eos_token_id": [0, 7], "temperature": 0.6, "transformers_version": "5.0"}' >pretrained/generation_config.json
echo '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}' >pretrained/tokenizer_config.json
train base.json --set model=pretrained/config.json --set init.weights=pretrained --set tokenizer=vocabulary.json \
  --set data.train=bpe --set data.validation=bpe --set run.directory=tuned --set run.steps=2
ends_with "fine-tuning" 0
rm -r vocabulary.json pretrained/tokenizer.json
train export --checkpoint tuned --output tuned-hf
ends_with "its export" 0
for file in chat_template.jinja generation_config.json tokenizer_config.json special_tokens_map.json; do
  check "export: $file" same_file pretrained/$file tuned-hf/$file
done
check "export: tokenizer.json" same_file moved.json tuned-hf/tokenizer.json

# Packed text, by its contents, from files and pipes.
gzip -c text.txt >packed.txt
train tokenize --tokenizer byte --output packed packed.txt
ends_with "gzip" 0
train tokenize --tokenizer byte --output piped - <packed.txt
ends_with "gzip on standard input" 0
train tokenize --tokenizer byte --output plain text.txt
check "the same tokens" same_file plain.bin packed.bin
check "the same tokens from a pipe" same_file plain.bin piped.bin
head -c 200 packed.txt >cut.txt
train tokenize --tokenizer byte --output cut cut.txt
ends_with "gzip that is cut off" 74
says "it is named" 'cut.txt: its gzip data end after 200 bytes'
check "nothing is left of it" [ ! -e cut.bin ]
train tokenize --tokenizer byte --output plain text.txt
ends_with "an output that is there" 2

# A long command that saves nothing ends at the first signal.
start log "$binary" benchmark base.json --steps 100000000 --warmup 0
until_true benchmarking
kill -TERM "$job"
wait "$job"
code=$?
ends_with "SIGTERM to a benchmark" 75
says "a stopped benchmark: nothing is saved" 'was stopped by signal'

for command in benchmark plan schema tokenizer tokenize data evaluate generate export checkpoint schedule; do
  train $command --help
  ends_with "$command --help" 0
  check "$command --help: names itself" grep -q "train $command" out
  cp out asked
  train help $command
  ends_with "help $command" 0
  check "help $command: the same" same_file out asked
done

# One stage has a schedule too.
train schedule base.json
ends_with "the schedule of a config" 0
check "a schedule is drawn" [ -s out ]
finish
