#!/usr/bin/env bash
# data_test.sh TRAIN: the recipes of data/ that need no network: text and JSON lines of one's own, packed or not, the sample, and
# a data set of the hub where a stand-in for the package `datasets` serves it. What comes out is what a run reads.
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/check.sh"
binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
export TRIREME_TRAIN=$binary NO_COLOR=1
cd "$scratch" || exit 1
recipe() { # NAME ARGUMENTS...: `code`, out, log
  "$root/data/$1.sh" "${@:2}" >out 2>log
  code=$?
}
value() { sed -n 's/.*"'"$1"'": *\([0-9]*\).*/\1/p' "$2"; }
ends() { # WHAT CODE
  check "$1: exit $2" [ "$code" = "$2" ]
  [ "$code" = "$2" ] || sed 's/^/    /' log | tail -n 5
}
says() { check "$1" grep -q -e "$2" log; }

# 400 numbered lines: block b is line b.
seq -f 'line %03g of many, and some words' 400 >lines.txt
recipe text --output plain --tokenizer byte lines.txt
ends "text" 0
check "text: a twentieth is for validation" [ "$(value tokens plain/validation.json)" = $((20 * 33 + 1)) ]
check "text: the rest is for training" [ "$(value tokens plain/train.json)" = $((380 * 33 + 1)) ]
check "text: it says what a config says" grep -q '"train": "plain/train", "validation": "plain/validation"' out
check "text: nothing else is left" [ "$(ls plain | tr '\n' ' ')" = "train.bin train.idx train.json validation.bin validation.idx validation.json " ]
# uint16 tokens of bytes: every other byte of the file is the text.
text_of() { tr -d '\000' <"$1.bin" | tr -d '\001'; }
check "text: validation is spread over all of it" \
  [ "$(text_of plain/validation | cut -c 6-8 | tr '\n' ' ')" = "$(seq -s ' ' -f %03g 11 20 400) " ]
check "text: no line is in both" [ -z "$(comm -12 <(text_of plain/train | sort) <(text_of plain/validation | sort))" ]
check "text: no line is lost" [ "$(cat <(text_of plain/train) <(text_of plain/validation) | sort)" = "$(sort lines.txt)" ]
# 4,000 lines: ten to a block, which stay together.
seq -f 'line %04g of many, and some words' 4000 >more.txt
recipe text --output blocks --tokenizer byte more.txt
check "blocks: lines stay together" \
  [ "$(text_of blocks/validation | head -n 11 | cut -c 6-9 | tr '\n' ' ')" = "$(seq -s ' ' -f %04g 101 110) 0301 " ]

cp -r plain before
recipe text --output plain --tokenizer byte more.txt
ends "onto what is there" 2
says "onto what is there: what to do" 'plain/train.bin exists.*--overwrite'
check "onto what is there: it is untouched" diff -r plain before
recipe text --output plain --tokenizer byte --overwrite more.txt
ends "--overwrite" 0
check "--overwrite: the new text" [ "$(value tokens plain/train.json)" -gt 100000 ]
# A text that bears the name of what is made.
mkdir mine && cp lines.txt mine/train.txt
recipe text --output mine --tokenizer byte mine/train.txt
ends "a text in the same folder" 0
check "a text in the same folder: it is untouched" cmp -s mine/train.txt lines.txt

gzip -k lines.txt
recipe text --output packed --tokenizer byte lines.txt.gz
ends "gzip" 0
check "gzip: the same tokens" cmp -s packed/train.bin before/train.bin
if command -v zstd >/dev/null; then
  zstd -q lines.txt
  recipe text --output zstd --tokenizer byte lines.txt.zst
  ends "zstd" 0
  check "zstd: the same tokens" cmp -s zstd/train.bin before/train.bin
fi
"$root/data/text.sh" --output piped --tokenizer byte - <lines.txt >out 2>log
check "standard input: the same tokens" cmp -s piped/train.bin before/train.bin
head -n 5 lines.txt >five.txt
recipe text --output with_validation --tokenizer byte --validation five.txt lines.txt
ends "a validation file" 0
check "a validation file: all of the text is for training" [ "$(value tokens with_validation/train.json)" = $((400 * 33 + 1)) ]
check "a validation file: all of it" [ "$(value tokens with_validation/validation.json)" = $((5 * 33 + 1)) ]

recipe text --output tiny five.txt
ends "five lines" 2
says "five lines: said plainly" 'too small: 5 lines, 165 bytes'
check "five lines: nothing is left" [ -z "$(ls tiny)" ]
recipe text --output nothing absent.txt
ends "no such file" 74
recipe text --output nothing
ends "no file" 2
recipe text lines.txt
ends "no --output" 2
check "nothing was made" [ ! -e nothing ]

# JSON lines: a line is a document.
sed 's/.*/{"id": 1, "body": "&"}/' lines.txt >lines.jsonl
recipe text --output jsonl --tokenizer byte --jsonl body lines.jsonl
ends "JSON lines" 0
check "JSON lines: documents" [ "$(value documents jsonl/train.json) $(value documents jsonl/validation.json)" = "380 20" ]
recipe text --output untold lines.jsonl
ends "JSON lines without --jsonl" 2
says "JSON lines without --jsonl: what to say" '--jsonl text'

sed 's/.*/{"body": "&"}/' "$root/data/sample.txt" >sample.jsonl
recipe text --output jsonl_bpe --jsonl body sample.jsonl
ends "JSON lines, with a tokenizer of their own" 0
check "JSON lines, with a tokenizer of their own: it learned the text alone" \
  lacks "$(cat jsonl_bpe/tokenizer.json)" body
check "JSON lines, with a tokenizer of their own: documents" [ "$(value documents jsonl_bpe/train.json)" = 2606 ]

# The sample, with a tokenizer of its own, trained on.
recipe bible --sample --output sample
ends "the sample" 0
check "the sample: a vocabulary of 2,048" [ "$(value vocab_size sample/train.json)" = 2048 ]
check "the sample: tokens" [ "$(value tokens sample/train.json)" -gt 80000 ]
cat >config.json <<'JSON'
{"run": {"directory": "run", "steps": 2, "threads_per_rank": 1},
 "model": {"model_type": "llama", "vocab_size": 2048, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
           "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64},
 "tokenizer": "sample/tokenizer.json", "data": {"train": "sample/train", "validation": "sample/validation", "sequence_length": 64},
 "batch": {"micro": 2}, "optimizer": {"lr": 1e-3}, "log": {"tensorboard": false}}
JSON
"$binary" data config.json --count 1 >out 2>log
check "what came out can be looked at" grep -q 'the' out
"$binary" config.json >out 2>log
check "what came out trains" [ $? = 0 ]

# A data set of the hub, served by a stand-in: 1,000 documents, each 200th for validation.
if command -v python3 >/dev/null; then
  mkdir stand_in
  cat >stand_in/datasets.py <<'PYTHON'
def load_dataset(name, config, split, streaming):
    assert (name, config, split, streaming) == ("some/set", "part", "train", True)
    for number in range(1000):
        yield {"text": f"document {number}", "url": "x"}
PYTHON
  hub=(--python python3 --dataset some/set --config part --tokenizer byte)
  PYTHONPATH=$PWD/stand_in recipe huggingface --output hub "${hub[@]}"
  ends "the hub" 0
  check "the hub: documents" [ "$(value documents hub/train.json) $(value documents hub/validation.json)" = "995 5" ]
  check "the hub: nothing else is left" [ "$(ls hub | wc -l)" = 6 ]
  PYTHONPATH=$PWD/stand_in recipe huggingface --output part "${hub[@]}" --documents 100 --validation-every 10
  check "the hub: a part" [ "$(value documents part/train.json) $(value documents part/validation.json)" = "90 10" ]
  PYTHONPATH=$PWD/stand_in recipe huggingface --output key "${hub[@]}" --key body
  check "the hub: no such column: refused" [ "$code" != 0 ]
  says "the hub: no such column: those that there are" "'text', 'url'"
  check "the hub: no such column: nothing is left" [ -z "$(ls key)" ]
  PYTHONPATH=$PWD/stand_in recipe huggingface --output hub "${hub[@]}"
  ends "the hub, onto what is there" 2
fi
finish
