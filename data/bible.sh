#!/usr/bin/env bash
# The corpus of the quick start: the King James Bible, a verse on each line, 31,102 of them (4.1 MB), public domain.
#
#   data/bible.sh --output DIR [--sample] [options of data/text.sh]
#
#   --sample   Genesis and Exodus alone (data/sample.txt, in this repository), as where no program `bible` is installed
#
# The text comes from Debian's and Ubuntu's package bible-kjv, which scripts/setup.sh installs; nothing is downloaded here.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$PATH:/usr/games

sample='' options=()
for option; do
  if [ "$option" = --sample ]; then sample=yes; else options+=("$option"); fi
done
if [ -z "$sample" ] && ! command -v bible >/dev/null; then
  echo "data/bible.sh: no program bible here (scripts/setup.sh installs it): Genesis and Exodus from data/sample.txt serve" >&2
  sample=yes
fi
[ -z "$sample" ] || exec "$here/text.sh" "${options[@]}" "$here/sample.txt"
# Each verse without its place ("Ge1:1 ").
bible -f 'Gen1:1-Rev22:21' | sed 's/^[^ ]* //' | "$here/text.sh" "${options[@]}" -
