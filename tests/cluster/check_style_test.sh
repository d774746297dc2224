#!/usr/bin/env bash
# scripts/check_style.sh in a tree of two sources, with a clang-format, a clang-tidy and a cmake that only note what they are
# asked.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
tree=$scratch/tree bin=$scratch/bin
mkdir -p "$tree/scripts" "$tree/src/a" "$bin"
cp "$root/scripts/check_style.sh" "$tree/scripts"
cd "$tree" || exit 1
printf '#include "a/x.h"\n' >src/a/x.cc
printf '#pragma once\n' >src/a/x.h
printf '#include "a/x.h"\n' >src/a/y.cc
git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm first || exit 1
for tool in bash env cat cut dirname git grep head mktemp nproc rm sed sort tr wc xargs; do ln -s "$(type -P $tool)" "$bin/$tool"; done
fake() {
  printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$bin/$1"
  chmod +x "$bin/$1"
}
export CALLS=$scratch/calls
style() {
  : >"$CALLS"
  PATH=$bin STYLE_JOBS=1 scripts/check_style.sh "$@" >"$scratch/out" 2>"$scratch/log"
  code=$?
  calls=$(cat "$CALLS") log=$(cat "$scratch/log")
}
version='case $1 in --version) echo "tool version $VERSION.0.6" && exit ;; esac'

style
check "no clang-format: exit 3" [ $code = 3 ]
check "no clang-format: which, and what installs it" contains "$log" "no clang-format of version 14 here (scripts/setup.sh --style"
fake clang-format "${version/\$VERSION/15}"
style
check "another version: exit 3" [ $code = 3 ]

fake clang-format "${version/\$VERSION/14}"'; echo "format $*" >>"$CALLS"; case $* in *y.cc*) exit "${FORMAT-0}" ;; esac'
style
check "well formatted: exit 0" [ $code = 0 ]
check "every source was looked at" contains "$calls" "format --dry-run --Werror src/a/x.cc src/a/x.h src/a/y.cc"
FORMAT=1 style
check "one that is not: exit 1" [ $code = 1 ]

style --since HEAD
check "no clang-tidy: exit 3" [ $code = 3 ]
fake clang-tidy "${version/\$VERSION/14}"'; echo "tidy ${*: -1}" >>"$CALLS"
if [ "${TIDY-}" ]; then echo "$PWD/src/a/x.h:1:1: error: bad name"; exit 1; fi'
fake cmake 'mkdir() { command -p mkdir "$@"; }; mkdir -p build/style
printf "  \"file\": \"%s\",\n" "$PWD/src/a/x.cc" "$PWD/src/a/y.cc" >build/style/compile_commands.json'
style --since HEAD
check "nothing differs: exit 0" [ $code = 0 ]
check "nothing differs: nothing is looked at" lacks "$calls" tidy
echo >>src/a/x.h
style --since HEAD
check "a header: by its own source" [ "$(grep tidy "$CALLS")" = "tidy $tree/src/a/x.cc" ]
echo >>src/a/y.cc
style --since HEAD
check "a source, too" [ "$(grep -c tidy "$CALLS")" = 2 ]
STYLE_SOURCES_MAX=1 style --since HEAD
check "one at most: one" [ "$(grep -c tidy "$CALLS")" = 1 ]
check "one at most: it says so" contains "$log" "2 sources to look at: only 1"
git checkout -q .
TIDY=1 style --all
check "all: exit 1" [ $code = 1 ]
check "all: both" [ "$(grep -c tidy "$CALLS")" = 2 ]
check "all: a header's fault once" [ "$(grep -c 'bad name' "$scratch/log")" = 1 ]
style --since
check "--since without a commit: exit 2" [ $code = 2 ]
finish
