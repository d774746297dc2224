#!/usr/bin/env bash
# Every script that a person runs says with --help what it does, and refuses an option that it does not know before it does
# anything.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
cd "$scratch" || exit 1
for script in "$root"/scripts/*.sh "$root"/data/*.sh; do
  [ -x "$script" ] || continue
  name=${script#"$root"/}
  said=$("$script" --help 2>log)
  code=$?
  check "$name --help: exit 0" [ $code = 0 ]
  check "$name --help: nothing else" [ ! -s log ]
  first=$(sed -n '2s/^# //p' "$script")
  check "$name --help: its header" contains "$said" "$first"
  check "$name --help: how it is used" contains "$said" "$name"
  check "$name --help: no code" lacks "$said" "set -"
  timeout 20 "$script" --no-such-option >out 2>log
  code=$?
  check "$name: an option that it does not know: exit 2" [ $code = 2 ]
  check "$name: it says something" [ -s log ]
done
check "they wrote nothing here" [ "$(ls | tr '\n' ' ')" = "log out " ]
finish
