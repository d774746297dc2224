# shellcheck shell=bash
# Sourced by the recipes of data/: what they write into a folder. may_make OUTPUT TOKENIZER OVERWRITE puts the files into `made`
# (a tokenizer's too where TOKENIZER is "") and returns 2 where one exists and OVERWRITE is ""; make_room OUTPUT OVERWRITE makes the
# folder, empties it of them, and returns 74 where it cannot.
may_make() {
  local file
  made=("$1"/{train,validation}.{bin,idx,json})
  [ -n "$2" ] || made+=("$1/tokenizer.json")
  [ -z "$3" ] || return 0
  for file in "${made[@]}"; do
    [ -e "$file" ] || [ -L "$file" ] || continue
    echo "data/${0##*/}: $file exists, and nothing is overwritten without --overwrite. Name another --output." >&2
    return 2
  done
}
make_room() {
  mkdir -p "$1" || return 74
  [ -z "$2" ] || rm -f "${made[@]}" || return 74
}
