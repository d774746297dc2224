#!/usr/bin/env bash
# Ranks share a model out for generation: the tokens of one rank on every mesh, from a checkpoint of any other and from a
# Hugging Face directory; extents that are asked for, or refused; a signal ends all of them.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=(--set model.num_hidden_layers=3 --set model.num_attention_heads=4 --set model.num_key_value_heads=2)
ranks 4 base.json "${model[@]}" --set parallel.tensor=2 --set parallel.pipeline=2
ends_with "training on tensor 2 x pipeline 2" 0
ranks 2 export --checkpoint run --output hf
ends_with "export" 0

# Longer than a chunk of the prompt, which is 256 tokens.
prompt=$(for ((i = 0; i < 300; ++i)); do printf '%s,' $((97 + i * 7 % 26)); done)101
greedy=(--token-ids "$prompt" --temperature 0 --max-new-tokens 12)
sampled=(--prompt "stroke 7" --temperature 0.9 --top-k 20 --seed 3 --max-new-tokens 16)
for source in run hf; do
  train generate --checkpoint $source "${greedy[@]}"
  ends_with "$source, one rank" 0
  check "$source, one rank: nothing is said of shares" [ -z "$(grep '^generating' log)" ]
  check "$source, one rank: tokens" grep -qE "^$prompt(,[0-9]+){1,12}$" out
  cp out $source.ids
done
check "both sources have one model" same_file run.ids hf.ids
train generate --checkpoint run "${sampled[@]}"
cp out sampled.text
for n in 2 3 4; do
  for source in run hf; do
    ranks $n generate --checkpoint $source "${greedy[@]}"
    ends_with "$source, $n ranks" 0
    check "$source, $n ranks: the ids of one" same_file out run.ids
  done
  ranks $n generate --checkpoint run "${sampled[@]}"
  check "$n ranks: the sampled text of one" same_file out sampled.text
done

# mesh RANKS EXPECTED OPTIONS...
mesh() {
  local n=$1 expected=$2
  shift 2
  ranks "$n" generate --checkpoint run "${greedy[@]}" "$@"
  ends_with "$n ranks, $*" 0
  check "$n ranks, $*: the ids of one" same_file out run.ids
  says_once "$n ranks, $*: $expected" "^generating with $expected"
}
weights_of() { sed -n 's/^generating .* up to \([0-9.]*\) KiB of weights.*/\1/p' log; }
mesh 2 "pipeline 1 x tensor 2, up to [0-9.]* KiB of weights on a rank$"
two=$(weights_of)
mesh 4 "pipeline 1 x tensor 4, "
check "four ranks hold half as much each as two" awk "BEGIN { r = $(weights_of) / $two; exit !(r > 0.45 && r < 0.6) }"
mesh 3 "pipeline 3 x tensor 1, "
mesh 3 "pipeline 1 x tensor 2, .*; 1 of 3 ranks is idle$" --tensor 2
mesh 4 "pipeline 2 x tensor 1, .*; 2 of 4 ranks are idle$" --tensor 1 --pipeline 2
mesh 4 "pipeline 2 x tensor 2, " --pipeline 2

# Ranks meet between pieces of a long prompt.
long=(--token-ids "$(for ((i = 0; i < 4600; ++i)); do printf '%s,' $((97 + i * 11 % 26)); done)101" --temperature 0 --max-new-tokens 4)
train generate --checkpoint run "${long[@]}"
cp out long.ids
ranks 2 generate --checkpoint run "${long[@]}" --pipeline 2
ends_with "a long prompt" 0
check "a long prompt: the ids of one" same_file out long.ids
# Where every layer has a window nothing is in pages.
train base.json --set run.directory=windowed --set run.steps=2 --set model.model_type=mistral --set model.sliding_window=9
train generate --checkpoint windowed "${long[@]}"
ends_with "a long prompt with windows" 0
cp out long.ids
ranks 2 generate --checkpoint windowed "${long[@]}" --pipeline 2
check "a long prompt with windows: the ids of one" same_file out long.ids

# Other families from files of transformers: tied ends on one stage and on two, learned positions, norms of q and k of
# heads and of all, norms behind branches.
others=(--token-ids 17,203,5,99,42 --temperature 0 --max-new-tokens 12)
for name in gpt2 qwen2 qwen3_gqa smollm3 olmo2 olmo3 gemma3; do
  source=$root/tests/golden/model/$name
  train generate --checkpoint "$source" "${others[@]}"
  cp out $name.ids
  for n in 2 4; do
    ranks $n generate --checkpoint "$source" "${others[@]}"
    ends_with "$name, $n ranks" 0
    check "$name, $n ranks: the ids of one" same_file out $name.ids
  done
done

refused() { # WHAT SENTENCE RANKS OPTIONS...
  ranks "$3" generate --checkpoint run "${greedy[@]}" "${@:4}"
  ends_with "$1" 2
  says_once "$1: the sentence" "$2"
}
refused "an extent that does not divide" "--tensor: does not divide 4 attention heads.* Found 3; legal: 1, 2 or 4 for this model; nearest: 2" \
  3 --tensor 3
refused "more places than ranks" "--tensor: .* Found 4; legal: up to the 2 ranks; nearest: 2" 2 --tensor 4
refused "more stages than layers" "--pipeline: .* Found 4; legal: 1 to 3; nearest: 3" 4 --pipeline 4
refused "both together" "--pipeline: needs 2 x 2 = 4 ranks, and 3 were started. Found 2; legal: 1 beside tensor 2; nearest: 1" \
  3 --tensor 2 --pipeline 2

# Many prompts at once: each has the tokens that it has alone, in the order of the file.
sizes=(3 300 1 40 33 64)
for i in "${!sizes[@]}"; do
  for ((j = 1; j < sizes[i]; ++j)); do printf '%s,' $((97 + j * (i + 5) % 26)); done
  printf '%s\n' $((98 + i))
done >many.txt
drawn=(--temperature 0.8 --top-k 30 --seed 5 --max-new-tokens 24)
: >each.ids
while read -r one; do
  train generate --checkpoint run --token-ids "$one" "${drawn[@]}"
  cat out >>each.ids
done <many.txt
train generate --checkpoint run --token-ids-file many.txt "${drawn[@]}"
ends_with "prompts of a file" 0
check "prompts of a file: the ids of each alone" same_file out each.ids
says_once "prompts of a file: how fast" "^generated [0-9]* tokens of 6 sequences in .* tokens/s, the first after .* up to 6 sequences at once"
for n in 2 3 4; do
  ranks $n generate --checkpoint run --token-ids-file many.txt "${drawn[@]}"
  ends_with "prompts of a file, $n ranks" 0
  check "prompts of a file, $n ranks: the ids of one" same_file out each.ids
done
train generate --checkpoint run --token-ids-file many.txt "${drawn[@]}" --precision bf16
ends_with "in bf16" 0
cp out bf16.ids
train generate --checkpoint run --token-ids "$(sed -n 2p many.txt)" "${drawn[@]}" --precision bf16
check "in bf16: the second line is that of it alone" [ "$(cat out)" = "$(sed -n 2p bf16.ids)" ]

printf 'stroke 7\nline two\r\n' >texts.txt
train generate --checkpoint run --prompt-file texts.txt --num-samples 2 --seed 3 --max-new-tokens 8 --json
ends_with "samples as JSON" 0
cp out file.json
check "samples as JSON: two of each prompt" [ "$(grep -c '^{' out)" = 4 ]
check "samples as JSON: prompt, text, ids and how many are new" \
  [ "$(grep -cE '^\{"prompt":"(stroke 7|line two)","text":".*","token_ids":\[[0-9,]+\],"new_tokens":[1-8]\}$' out)" = 4 ]
check "samples as JSON: samples differ" [ "$(sort -u out | wc -l)" = 4 ]
"$binary" generate --checkpoint run --prompt-file - --num-samples 2 --seed 3 --max-new-tokens 8 --json <texts.txt >out 2>log
ends_with "standard input" 0
check "standard input: the answers of the file" same_file out file.json
train generate --checkpoint run --prompt "stroke 7" --seed 3 --max-new-tokens 8 --json
check "the first sample is that of the prompt alone" same_file out <(sed -n 1p file.json)

printf 'stroke \xff\xfe 7\nok\n' >bytes.txt
train generate --checkpoint run --prompt-file bytes.txt --temperature 0 --max-new-tokens 4
ends_with "bytes that are no UTF-8" 0
check "bytes that are no UTF-8: as they came" grep -qaF "$(printf 'stroke \xff\xfe 7')" out
ranks 2 generate --checkpoint run --prompt-file bytes.txt --temperature 0 --max-new-tokens 4 --json
ends_with "bytes that are no UTF-8, as JSON" 0

wrong() { # WHAT SENTENCE OPTIONS...
  train generate --checkpoint run "${@:3}"
  ends_with "$1" 2
  says_once "$1: the sentence" "$2"
}
printf '1,2\n\n3\n' >gap.txt
wrong "a line without ids" "gap.txt: line 2: the prompt has no tokens" --token-ids-file gap.txt
printf '1,2\n1,x\n' >letters.txt
wrong "a line that is no list" 'letters.txt: line 2: "1,x" is not a list of ids' --token-ids-file letters.txt
printf '9999\n' >large.txt
wrong "an id that the model does not have" "large.txt: line 1: token id 9999 of the prompt is outside" --token-ids-file large.txt
: >empty.txt
wrong "a file without a line" "empty.txt: has no line" --prompt-file empty.txt
train generate --checkpoint run --prompt-file absent.txt
ends_with "a file that is not there" 74
says_once "a file that is not there: the sentence" "absent.txt: "
wrong "two sources" "several sources of prompts" --prompt a --prompt-file texts.txt
wrong "no source" "there is nothing to continue"

# Weights that are no numbers say nothing, rather than anything.
train export --checkpoint run --output nans --dtype fp32
printf '\377\377\377\377' | dd of=nans/model.safetensors bs=1 seek=$(($(wc -c <nans/model.safetensors) - 4)) conv=notrunc 2>/dev/null
for n in 1 2; do
  ranks $n generate --checkpoint nans --token-ids 1,2 --max-new-tokens 3
  ends_with "weights that are no numbers, $n ranks" 74
  says_once "weights that are no numbers, $n ranks: the sentence" 'logits of the next token are not numbers'
done

# A signal in the middle, to a rank that computes and to one that is idle.
for rank in 0 2; do
  : >text
  "$root/scripts/run.sh" -n 3 generate --checkpoint run --prompt "stroke" --temperature 0 --max-new-tokens 100000 --tensor 2 >text 2>log &
  job=$!
  background+=("$job")
  until_true grep -q '^generating with' log # Open MPI 5 keeps text back until its line ends
  all_three() { mapfile -t pids < <(train_processes "$job") && [ ${#pids[@]} = 3 ]; }
  until_true all_three
  kill -TERM "${pids[$rank]}"
  wait "$job"
  code=$?
  ends_with "a signal to process $rank of 3" 75
done
finish
