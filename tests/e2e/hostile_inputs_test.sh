#!/usr/bin/env bash
# Checkpoints, tokenizers, texts, outputs and configs that are damaged, foreign or hostile, through every command that reads
# or writes them: each ends in time with a code of the contract and one readable fault, and none takes them for good.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
corpus=$root/tests/fuzz/regressions

# What is quiet when it is right: some thousand checks.
quietly() { "${@:2}" || check "$@"; }
readable_log() { ! LC_ALL=C.UTF-8 grep -avqx '[[:print:]	]*' log; } # of UTF-8, without what moves a terminal
is_one_of() { contains "|$1|" "|$2|"; }
closes() { [ "$(tail -n 1 log | cut -c 1-13)" = 'train: exit '"${code:0:1}" ] && [ "$(grep -c '^train: exit' log)" = 1 ]; }
# hostile WHAT CODES ARGUMENTS...: ends with one of the codes, joined by |; a fault is told once.
tried=0
hostile() {
  tried=$((tried + 1))
  local what=$1 codes=$2 wrong=$failures
  shift 2
  timeout -k 5 60 "$binary" "$@" >out 2>log </dev/null
  code=$?
  quietly "$what: exit $codes, not $code" is_one_of "$codes" "$code"
  quietly "$what: the closing line" closes
  quietly "$what: readable" readable_log
  [ "$code" = 0 ] || quietly "$what: one fault" [ "$(grep -c '^error: ' log)" = 1 ]
  [ "$failures" = "$wrong" ] || { echo "    train $*" | cut -c 1-300; tail -n 4 log | cut -c 1-300; }
}

ranks 2 base.json --set run.directory=done --set run.exit_at_step=2 --set batch.micro=1
ends_with "a run of two ranks" 0
good=$(folder_of done 2)
check "two files" [ -s "$good/rank-00001.h5" ]

# Checkpoints. An old manifest says nothing of its own hash, so that what is changed in it must be found by what it means.
old_manifest() { sed -i -e ':a;N;$!ba;s/,\n *"manifest_xxh3_128": *"[0-9a-f]*"//' "$1/manifest.json"; }
damages=(torn_manifest empty_manifest manifest_of_nulls manifest_not_utf8 manifest_is_a_list manifest_is_a_folder
  manifest_of_a_device other_version other_hash file_missing file_empty file_cut file_is_a_folder tensor_absent tensor_wider
  model_wider model_deep model_without_a_size negative_step offset_beyond)
damage() {
  local at=$2
  local manifest=$at/manifest.json
  case $1 in
    torn_manifest) truncate -s $(($(wc -c <"$manifest") / 2)) "$manifest" ;;
    empty_manifest) : >"$manifest" ;;
    manifest_of_nulls) head -c 4096 /dev/zero >"$manifest" ;;
    manifest_not_utf8) printf '{"format_version": "\377\376"}' >"$manifest" ;;
    manifest_is_a_list) echo '[1, 2]' >"$manifest" ;;
    manifest_is_a_folder) rm "$manifest" && mkdir "$manifest" ;;
    manifest_of_a_device) ln -sf /dev/null "$manifest" ;;
    other_version) old_manifest "$at" && sed -i 's/"format_version": *[0-9]*/"format_version": 99/' "$manifest" ;;
    other_hash) sed -i 's/"manifest_xxh3_128": *"./"manifest_xxh3_128": "x/' "$manifest" ;;
    file_missing) rm "$at/rank-00001.h5" ;;
    file_empty) : >"$at/rank-00001.h5" ;;
    file_cut) truncate -s $(($(wc -c <"$at/rank-00001.h5") / 20)) "$at/rank-00001.h5" ;;
    file_is_a_folder) rm "$at/rank-00001.h5" && mkdir "$at/rank-00001.h5" ;;
    tensor_absent) old_manifest "$at" && sed -i 's,"parameters/lm_head.weight","parameters/head.weight",' "$manifest" ;;
    tensor_wider) old_manifest "$at" && sed -i '/"parameters.lm_head.weight"/,/"shards"/s/257/259/' "$manifest" ;;
    model_wider) old_manifest "$at" && sed -i 's/"intermediate_size": *64/"intermediate_size": 96/' "$manifest" ;;
    model_deep) old_manifest "$at" && sed -i 's/"num_hidden_layers": *2\b/"num_hidden_layers": 1000000/' "$manifest" ;;
    model_without_a_size) old_manifest "$at" && sed -i 's/"hidden_size": *32/"hidden_size": -32/' "$manifest" ;;
    negative_step) old_manifest "$at" && sed -i 's/^\( *"step":\) *2/\1 -2/' "$manifest" ;;
    offset_beyond) old_manifest "$at" && sed -i 's/"offset": *\[0/"offset": [9223372036854775807/' "$manifest" ;;
  esac
}
for name in "${damages[@]}"; do
  mkdir -p "bad/$name"
  step=bad/$name/step-00000002
  cp -r "$good" "$step"
  damage "$name" "$step"
  quietly "$name: is damaged" [ -n "$(diff -rq "$good" "$step" 2>&1)" ]
  refused="2|74"
  hostile "$name: generate" "$refused" generate --checkpoint "$step" --token-ids 1,2 --max-new-tokens 2
  hostile "$name: generate text of a folder's newest" "$refused" generate --checkpoint "bad/$name" --prompt x
  hostile "$name: export" "$refused" export --checkpoint "$step" --output "e-$name"
  quietly "$name: export leaves no weights" [ -z "$(ls e-"$name"/*.safetensors 2>/dev/null)" ]
  hostile "$name: evaluate" "$refused" evaluate base.json --checkpoint "$step"
  hostile "$name: evaluate without a config" "$refused" evaluate --checkpoint "$step" --data toy
  hostile "$name: average" "$refused" average "$step" "$good" --output "m-$name"
  hostile "$name: first weights" "$refused" base.json --set init.weights="$step" --set run.directory="w-$name"
  hostile "$name: resume" "$refused" base.json --set run.resume="$step" --set run.directory="r-$name"
  # Of an old manifest every hash may hold although it means nothing.
  case $name in tensor_* | model_* | negative_* | offset_*) refused="0|74" ;; *) refused=74 ;; esac
  hostile "$name: verify" "$refused" checkpoint verify "$step"
  hostile "$name: list" "0|74" checkpoint list "$step"
  hostile "$name: show" "0|2|74" checkpoint show "$step"
  case $name in *manifest* | other_*) quietly "$name: show says so" [ "$code" = 74 ] ;; esac
done

# Tokenizers.
train tokenizer --vocab-size 300 --output good.json text.txt
mkdir -p tokenizers/a_folder.json
head -c 2000 good.json >tokenizers/torn.json
: >tokenizers/empty.json
head -c 4096 /dev/zero >tokenizers/nulls.json
echo '[]' >tokenizers/list.json
echo '{}' >tokenizers/nothing.json
echo '{"model": null}' >tokenizers/null_model.json
echo '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": ["a"]}}' >tokenizers/negative_id.json
echo '{"model": {"type": "BPE", "vocab": {"a": 2147483647}, "merges": []}}' >tokenizers/vast_id.json
echo '{"model": {"type": "Unigram", "vocab": [["a", 0.1]]}}' >tokenizers/other_kind.json
sed 's/"merges"/"murges"/' good.json >tokenizers/without_merges.json
awk 'BEGIN { for (i = 0; i < 100000; ++i) printf "[" }' >tokenizers/deep.json
ln -s /dev/null tokenizers/device.json
ln -s /proc/self/mem tokenizers/unreadable.json
for file in "$corpus"/tokenizer/*; do cp "$file" "tokenizers/$(basename "$file").json"; done
train export --checkpoint done --output hf
for file in tokenizers/*.json; do
  name=$(basename "$file" .json)
  # The fuzzer's findings are a tokenizer and a text each; as a tokenizer they are no JSON, or have words that are none.
  hostile "$name: tokenize" "2|74" tokenize --tokenizer "$file" --no-eod --output "t-$name" text.txt
  quietly "$name: tokenize leaves nothing" [ ! -e "t-$name.bin" ]
  for command in "" evaluate; do
    hostile "$name: ${command:-train}" "2|74" $command base.json --set tokenizer="$file" --set run.directory="k-$name"
  done
  rm -rf hf/tokenizer.json && cp -r "$(readlink -f "$file")" hf/tokenizer.json 2>/dev/null || cp -d "$file" hf/tokenizer.json
  hostile "$name: generate" "2|74" generate --checkpoint hf --prompt stroke --max-new-tokens 2
  hostile "$name: generate ids" "0" generate --checkpoint hf --token-ids 1,2 --max-new-tokens 2
done
rm -rf hf/tokenizer.json

# Texts.
printf 'a\0b\0\0c' >nulls.txt
printf 'caf\303 \377\376 \355\240\200' >bytes.txt
: >empty.txt
head -c 5000000 /dev/zero | tr '\0' 'x' >long.txt
printf '{"text": "a"}\n{"text": ' >torn.jsonl
printf '{"text": "a\377"}\n' >bytes.jsonl
{ printf '{"text": "' && cat long.txt && printf '"}\n'; } >long.jsonl
printf '\0\0\0\n' >nulls.jsonl
mkdir -p folder
for text in nulls bytes long; do
  hostile "$text: tokenize" 0 tokenize --tokenizer byte --output "d-$text" $text.txt
  quietly "$text: every byte is a token" [ "$(wc -c <"d-$text.bin")" = $((2 * ($(wc -c <$text.txt) + 1))) ]
  hostile "$text: tokenizer" 0 tokenizer --vocab-size 258 --output "v-$text.json" $text.txt
done
hostile "long lines of JSON" 0 tokenize --tokenizer byte --output d-lines --jsonl text long.jsonl
for text in torn.jsonl bytes.jsonl nulls.jsonl text.txt; do
  hostile "$text as JSON lines: tokenize" 74 tokenize --tokenizer byte --output "d-$text" --jsonl text $text
  hostile "$text as JSON lines: tokenizer" 74 tokenizer --vocab-size 300 --output "d-$text.json" --jsonl text $text
  quietly "$text as JSON lines: nothing is left" [ ! -e "d-$text.bin" -a ! -e "d-$text.json" ]
done
for text in empty.txt /dev/null folder text.txt/within /proc/self/mem; do
  hostile "$text: tokenizer" 74 tokenizer --vocab-size 300 --output d.json $text
  hostile "$text: tokenize" "0|74" tokenize --tokenizer byte --output d-none $text
  [ "$code" = 0 ] && quietly "$text: has no tokens" [ ! -s d-none.bin ]
  rm -f d-none.*
done

# Outputs.
for output in missing/x folder text.txt/x /dev/full /proc/x ""; do
  hostile "to '$output': tokenizer" "2|74" tokenizer --vocab-size 300 --output "$output" text.txt
  case $output in folder | /dev/full) prefix=$output/x/y ;; *) prefix=$output ;; esac
  hostile "to '$prefix': tokenize" "2|74" tokenize --tokenizer byte --output "$prefix" text.txt
done
for output in text.txt text.txt/x /dev/full /proc/x ""; do
  hostile "to '$output': export" "2|74" export --checkpoint done --output "$output"
  hostile "to '$output': average" "2|74" average done --output "$output"
  [ "$output" = "" ] || hostile "to '$output': a run" "2|74" base.json --set run.directory="$output"
done
for output in missing/x.svg folder text.txt text.txt/x /dev/full/x ""; do
  hostile "to '$output': a drawing" "2|74" schedule --kind 1f1b --stages 2 --micro-batches 2 --svg "$output"
  hostile "to '$output': a comparison" "2|74" compare done done --svg "$output"
done

# Prompts.
for prompt in $'\377\376' $'a\303' $'\001\033[31m' "$(head -c 4000 long.txt)"; do
  hostile "a prompt" "0" generate --checkpoint done --prompt "$prompt" --max-new-tokens 2
done
for ids in "" , 1, ,1 -1 1,,2 1.5 257 99999999999999999999 nan; do
  hostile "ids '$ids'" 2 generate --checkpoint done --token-ids "$ids"
done
hostile "an empty prompt" 2 generate --checkpoint done --prompt ""

# The findings of the configs' fuzzer: two files, a model's config and overrides, divided by lines of "%%".
for file in "$corpus"/config/* "$corpus"/manifest/* "$binary" /dev/null; do
  name=$(basename "$file")
  rm -f part? && : >part0
  head -c 200000 "$file" | LC_ALL=C awk '/^%%$/ { ++n; next } n < 4 { print > ("part" n + 0) }'
  given=(part0)
  [ ! -s part1 ] || given+=(part1)
  [ ! -e part2 ] || cp part2 m.json
  if [ -e part3 ]; then
    while IFS= read -r line; do [ -z "$line" ] || given+=(--set "$line"); done < <(tr -d '\0' <part3)
  fi
  for command in "" plan "plan --json" data evaluate benchmark schedule; do
    # shellcheck disable=SC2086  # a command and its options
    hostile "config of $name: ${command:-train}" "2|74" $command "${given[@]}"
  done
  hostile "config of $name: sweep" "2|74" sweep "${given[0]}" --set optimizer.lr=1,2
  hostile "config of $name: convert-config" 2 convert-config part0
  hostile "config of $name: a model's" "2|74" plan base.json --set model=part0
  mkdir -p "f-$name" && cp part0 "f-$name/config.json"
  hostile "config of $name: a folder's" "2|74" generate --checkpoint "f-$name" --token-ids 1
  hostile "config of $name: compare" "0|2|74" compare "f-$name" "f-$name"
done
check "there were hostile inputs" [ "$tried" -gt 500 ]
finish
