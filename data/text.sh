#!/usr/bin/env bash
# Text or JSON lines of your own, made ready for training: a tokenizer, token files to train on and to validate with.
#
#   data/text.sh --output DIR [--jsonl KEY] [--tokenizer byte|FILE] [--vocab-size N] [--validation FILE] [--workers N]
#                [--overwrite] FILE...
#
#   FILE            plain text, or with --jsonl a JSON object on each line whose text stands under KEY; .gz and .zst are
#                   unpacked; - is standard input. Several are taken one behind the other
#   --tokenizer     one that exists: byte, a tokenizer.json, a folder with one. Else a byte-level BPE is trained on the
#                   training part: DIR/tokenizer.json
#   --vocab-size    of that BPE (by the size of the text: 2,048 below 10 MB, less below 40 KB, up to 32,768 above 1 GB)
#   --validation    a file to validate with, in place of a twentieth of FILE
#   --workers       threads that encode (all)
#   --overwrite     replace what an earlier call left in DIR
#
# Writes DIR/train.bin, .idx, .json and DIR/validation.bin, .idx, .json, and prints what a config says to use them. Text is
# cut into 400 blocks of whole lines; the eleventh of each twenty is for validation. So validation is drawn from all of the
# text, where its last twentieth might be another book; and a block has neighbours in training at its two ends alone, where
# single lines drawn here and there would each stand beside what was learned.
#
# TRIREME_TRAIN: the binary, where it is neither build/cpu-release/train nor installed nor on the PATH.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

refuse() { # CODE TEXT
  echo "data/text.sh: $2" >&2
  exit "$1"
}
output='' key='' tokenizer='' vocabulary='' validation='' workers=$(nproc) overwrite='' files=()
while [ $# -gt 0 ]; do
  case $1 in
  --output | --jsonl | --tokenizer | --vocab-size | --validation | --workers)
    [ $# -gt 1 ] || refuse 2 "$1 needs a value (--help)"
    case $1 in
    --output) output=$2 ;; --jsonl) key=$2 ;; --tokenizer) tokenizer=$2 ;; --vocab-size) vocabulary=$2 ;;
    --validation) validation=$2 ;; --workers) workers=$2 ;;
    esac
    shift
    ;;
  --overwrite) overwrite=yes ;;
  -?*) refuse 2 "$1: not known (--help)" ;;
  *) files+=("$1") ;;
  esac
  shift
done
[ -n "$output" ] || refuse 2 "--output DIR says where the token files go (--help)"
[ ${#files[@]} -gt 0 ] || refuse 2 "no file was named (--help)"
for file in "${files[@]}" ${validation:+"$validation"}; do
  [ "$file" = - ] || [ -f "$file" ] || refuse 74 "$file: there is no such file"
done
. "$root/scripts/find_train.sh"
. "$root/scripts/token_files.sh"
train=$(find_train "$root/scripts") || exit 3

may_make "$output" "$tokenizer" "$overwrite" || exit
make_room "$output" "$overwrite" || exit
# Beside the result, since it is as large as the text.
parts=$(mktemp -d "$output/parts.XXXXXX") || exit 74
trap 'rm -rf "$parts"' EXIT

unpacked() { # FILE: and a last line ends, too
  case $1 in
  *.gz) gzip -dc -- "$1" ;;
  *.zst)
    command -v zstd >/dev/null || refuse 3 "$1: zstd is not installed (Debian: apt-get install zstd)"
    zstd -dcq -- "$1"
    ;;
  -) cat ;;
  *) cat -- "$1" ;;
  esac | sed -e '$a\'
}
for file in "${files[@]}"; do unpacked "$file"; done >"$parts/all"
lines=$(wc -l <"$parts/all") bytes=$(wc -c <"$parts/all")
suffix=txt options=()
if [ -n "$key" ]; then
  suffix=jsonl options=(--jsonl "$key")
elif head -n 5 "$parts/all" | grep -qE '^\{"[^"]*" *:'; then
  refuse 2 "${files[0]} looks like JSON lines: say under which key its text stands, as in --jsonl text"
fi
if [ -n "$validation" ]; then
  mv "$parts/all" "$parts/train.$suffix"
  unpacked "$validation" >"$parts/validation.$suffix"
else
  [ "$lines" -ge 20 ] || refuse 2 "too small: $lines lines, $bytes bytes. A twentieth of the lines is set aside for validation,
so there must be 20 at least. Break the text into lines, give more of it, or name a --validation FILE."
  LC_ALL=C awk -v lines="$lines" -v to="$parts" -v suffix="$suffix" '
    BEGIN { block = int((lines + 399) / 400) }
    { print > (to "/" (int((NR - 1) / block) % 20 == 10 ? "validation." : "train.") suffix) }' "$parts/all"
  rm "$parts/all"
fi
if [ -z "$tokenizer" ]; then
  tokenizer=$output/tokenizer.json
  if [ -z "$vocabulary" ]; then
    vocabulary=2048
    if ((bytes < 40960)); then vocabulary=$((bytes / 20 > 300 ? bytes / 20 : 300)); fi
    if ((bytes > 10000000)); then vocabulary=8192; fi
    if ((bytes > 1000000000)); then vocabulary=32768; fi
  fi
  "$train" tokenizer --vocab-size "$vocabulary" --output "$tokenizer" "${options[@]}" "$parts/train.$suffix"
fi
for part in train validation; do
  "$train" tokenize --tokenizer "$tokenizer" --output "$output/$part" --workers "$workers" "${options[@]}" "$parts/$part.$suffix"
done
cat <<TEXT
In a config:
  "tokenizer": "$tokenizer",
  "data": {"train": "$output/train", "validation": "$output/validation", ...}
and "vocab_size": $(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$output/train.json") or more in a model of your own.
TEXT
