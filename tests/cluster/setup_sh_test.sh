#!/usr/bin/env bash
# scripts/setup.sh without touching the system: a fake dpkg-query, apt-get, id and sudo stand before the real ones.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
setup=$root/scripts/setup.sh

list=$("$setup" --list)
check "--list names apt packages" contains "$list" "apt: cmake ninja-build g++"
for package in libopenmpi-dev openmpi-bin libhdf5-dev nlohmann-json3-dev libdnnl-dev libxxhash-dev libspdlog-dev \
  libfmt-dev libcli11-dev libhwloc-dev libpcre2-dev libgtest-dev libbenchmark-dev bible-kjv bible-kjv-text; do
  check "--list names $package" contains "${list//$'\n'/ } " " $package "
done
for manager in dnf conda-forge spack; do check "--list knows $manager" contains "$list" "$manager: "; done
check "--list names Slurm's apart" contains "$list" "under Slurm: slurmctld slurmd"
check "which no ordinary setup installs" lacks "$(grep '^apt:' <<<"$list")" slurm
check "and the tools for style" contains "$list" "scripts/check_style.sh: clang-format-14 clang-tidy-14"
"$setup" --what 2>/dev/null
check "an unknown option is a usage error" [ $? = 2 ]

# Everything but what the script must not reach for real.
bin=$scratch/bin
mkdir "$bin"
for tool in bash env sleep cat true; do ln -s "$(type -P $tool)" "$bin/$tool"; done
fake() {
  printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$bin/$1"
  chmod +x "$bin/$1"
}
fake apt-get 'echo "apt-get $*" >>"$CALLS"; [ "${*: -1}" != "${FAIL-}" ]'
export CALLS=$scratch/calls
: >"$CALLS"

fake dpkg-query 'echo installed'
fake id 'echo 0'
PATH=$bin "$setup"
check "nothing missing: exit 0" [ $? = 0 ]
check "nothing missing: apt-get is not called" [ ! -s "$CALLS" ]

fake dpkg-query 'if [ "${*: -1}" = munge ]; then exit 1; else echo installed; fi'
PATH=$bin "$setup" --slurm 2>"$scratch/log"
check "--slurm installs Slurm's daemons, too" contains "$(tail -n 1 "$CALLS")" "install --no-install-recommends munge"
: >"$CALLS"

fake dpkg-query 'case ${*: -1} in clang-*) exit 1 ;; *) echo installed ;; esac'
PATH=$bin "$setup" --style 2>"$scratch/log"
check "--style installs clang's tools" contains "$(tail -n 1 "$CALLS")" "install --no-install-recommends clang-format-14 clang-tidy-14"

# Debian 13 has libpmix2 by another name.
: >"$CALLS"
fake dpkg-query 'if [ "${*: -1}" = libpmix2 ]; then exit 1; else echo installed; fi'
PATH=$bin "$setup" --slurm
check "a library that was renamed is not missing" [ ! -s "$CALLS" ]
fake dpkg-query 'case ${*: -1} in libpmix2*) exit 1 ;; *) echo installed ;; esac'
PATH=$bin "$setup" --slurm 2>"$scratch/log"
check "but one of neither name is" contains "$(tail -n 1 "$CALLS")" "install --no-install-recommends libpmix2"
: >"$CALLS"

fake dpkg-query 'if [ "${*: -1}" = libdnnl-dev ]; then exit 1; else echo installed; fi'
PATH=$bin "$setup" 2>"$scratch/log"
check "root installs: exit 0" [ $? = 0 ]
check "what is missing, and nothing else, without recommended extras" \
  contains "$(tail -n 1 "$CALLS")" "install --no-install-recommends libdnnl-dev"
check "it waits for the package lock" contains "$(tail -n 1 "$CALLS")" "DPkg::Lock::Timeout="
check "lists are refreshed first" contains "$(head -n 1 "$CALLS")" update

FAIL=libdnnl-dev PATH=$bin "$setup" 2>"$scratch/log"
check "a package that apt refuses: exit 3" [ $? = 3 ]

: >"$CALLS"
fake id 'echo 1000'
PATH=$bin "$setup" 2>"$scratch/log"
check "neither root nor sudo: exit 3" [ $? = 3 ]
check "and what to install" contains "$(cat "$scratch/log")" "apt-get install --no-install-recommends libdnnl-dev"
fake sudo 'exit 1'
PATH=$bin "$setup" 2>"$scratch/log"
check "sudo that wants a password: exit 3" [ $? = 3 ]
check "and nothing was called" [ ! -s "$CALLS" ]
fake sudo 'shift; exec "$@"'
PATH=$bin "$setup" 2>"$scratch/log"
check "sudo installs" contains "$(tail -n 1 "$CALLS")" "install --no-install-recommends libdnnl-dev"

rm "$bin/apt-get"
PATH=$bin "$setup" 2>"$scratch/log"
check "a system without apt: exit 3" [ $? = 3 ]
check "and where the names are" contains "$(cat "$scratch/log")" "--list"
finish
