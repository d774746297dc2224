#!/usr/bin/env bash
# A data set of the Hugging Face hub, streamed into token files: nothing but these is stored. NEEDS THE NETWORK and Python.
#
#   data/huggingface.sh --output DIR --dataset NAME [--config NAME] [--split train] [--key text] [--documents N]
#                       [--validation-every 200] [--tokenizer byte|FILE] [--vocab-size 32768] [--tokenizer-documents 20000]
#                       [--python INTERPRETER] [--overwrite]
#
#   --documents   how many (all of them: FineWeb's sample-10BT has 15 million, 28 GB of text)
#   --key         the column that holds the text
#   --tokenizer   one that exists, such as that of the model you fine-tune. Else a BPE is trained on the first documents:
#                 DIR/tokenizer.json
#   --python      one that has the package `datasets`; else a virtual environment with it is made in build/data-python (installed: ~/.cache/trireme)
#
# Each 200th document is for validation. Writes DIR/train.bin, .idx, .json, DIR/validation.bin, .idx, .json.
# TRIREME_TRAIN: the binary, where it is neither build/cpu-release/train nor installed nor on the PATH.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
refuse() { # CODE TEXT
  echo "data/huggingface.sh: $2" >&2
  exit "$1"
}

output='' tokenizer='' vocabulary=32768 first=20000 python='' overwrite='' source=() every=200 documents=() dataset=''
while [ $# -gt 0 ]; do
  if [ "$1" = --overwrite ]; then overwrite=yes && shift && continue; fi
  case $1 in
  --output | --tokenizer | --vocab-size | --tokenizer-documents | --python | --dataset | --config | --split | --key | --documents | --validation-every) ;;
  *) refuse 2 "$1: not known (--help)" ;;
  esac
  [ $# -gt 1 ] || refuse 2 "$1 needs a value (--help)"
  case $1 in
  --output) output=$2 ;; --tokenizer) tokenizer=$2 ;; --vocab-size) vocabulary=$2 ;; --tokenizer-documents) first=$2 ;;
  --python) python=$2 ;; --validation-every) every=$2 ;; --documents) documents=("$1" "$2") ;;
  --dataset) dataset=$2 source+=("$1" "$2") ;;
  *) source+=("$1" "$2") ;;
  esac
  shift 2
done
[ -n "$output" ] && [ -n "$dataset" ] || refuse 2 "--output DIR and --dataset NAME are needed (--help)"
. "$root/scripts/find_train.sh"
. "$root/scripts/token_files.sh"
train=$(find_train "$root/scripts") || exit 3
may_make "$output" "$tokenizer" "$overwrite" || exit

if [ -z "$python" ]; then
  place=$root/build/data-python
  [ -e "$root/CMakeLists.txt" ] || place=${XDG_CACHE_HOME:-$HOME/.cache}/trireme/data-python # installed
  if [ ! -x "$place/bin/python" ] || ! "$place/bin/python" -c 'import datasets' 2>/dev/null; then
    echo "making a virtual environment with the package datasets in $place (once)" >&2
    python3 -m venv "$place" || refuse 3 "python3 cannot make a virtual environment (Debian: apt-get install python3-venv)"
    "$place/bin/pip" install --quiet --disable-pip-version-check datasets || refuse 3 "pip could not install datasets: is there a network?"
  fi
  python=$place/bin/python
fi
make_room "$output" "$overwrite" || exit
validation=$(mktemp "$output/validation.XXXXXX") || exit 74
trap 'rm -f "$validation"' EXIT

if [ -z "$tokenizer" ]; then
  tokenizer=$output/tokenizer.json
  "$python" "$here/huggingface.py" "${source[@]}" --documents "$first" |
    "$train" tokenizer --vocab-size "$vocabulary" --output "$tokenizer" --jsonl text -
fi
"$python" "$here/huggingface.py" "${source[@]}" "${documents[@]}" --validation "$validation" --validation-every "$every" |
  "$train" tokenize --tokenizer "$tokenizer" --jsonl text --output "$output/train" -
"$train" tokenize --tokenizer "$tokenizer" --jsonl text --output "$output/validation" "$validation"
