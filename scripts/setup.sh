#!/usr/bin/env bash
# scripts/setup.sh           installs what building, testing and the quickstart need and is missing (apt)
# scripts/setup.sh --fuzz    the same and clang with libFuzzer, for scripts/fuzz.sh
# scripts/setup.sh --list    prints the package names for apt, dnf, conda-forge and Spack, installs nothing
#
# For Debian 12, Ubuntu 22.04 and 24.04; needs root, or sudo without a password. Asks nothing.
set -euo pipefail

apt_packages=(
  cmake ninja-build g++
  libopenmpi-dev openmpi-bin
  libhdf5-dev
  nlohmann-json3-dev libspdlog-dev libfmt-dev libcli11-dev libxxhash-dev
  libdnnl-dev libhwloc-dev
  libpcre2-dev libutf8proc-dev
  libgtest-dev libbenchmark-dev
  bible-kjv bible-kjv-text # the quickstart's corpus
)
dnf_packages=(
  cmake ninja-build gcc-c++ openmpi-devel hdf5-devel json-devel spdlog-devel fmt-devel cli11-devel xxhash-devel
  onednn-devel hwloc-devel pcre2-devel utf8proc-devel gtest-devel google-benchmark-devel
)
conda_packages=(
  cmake ninja cxx-compiler openmpi hdf5 nlohmann_json spdlog fmt cli11 xxhash onednn libhwloc pcre2 libutf8proc
  gtest benchmark
)
spack_packages=(
  cmake ninja gcc openmpi hdf5~mpi nlohmann-json spdlog fmt cli11 xxhash onednn hwloc pcre2 utf8proc googletest
  benchmark
)

say() { echo "setup: $*" >&2; }

fuzz=false
case "${1-}" in
--list)
  echo "apt: ${apt_packages[*]}"
  echo "dnf: ${dnf_packages[*]}"
  echo "conda-forge: ${conda_packages[*]}"
  echo "spack: ${spack_packages[*]}"
  exit 0
  ;;
--fuzz) fuzz=true ;;
"") ;;
*)
  echo "usage: scripts/setup.sh [--list | --fuzz]" >&2
  exit 2
  ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  say "this system has no apt. Install the packages that 'scripts/setup.sh --list' names with your package manager."
  exit 3
fi

missing=()
for package in "${apt_packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
# Some systems ship libFuzzer in the compiler's package, others in libclang-rt-VERSION-dev, which is only recommended.
fuzz_packages() {
  local version
  version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
  echo clang
  [ "$version" ] || return 0
  if apt-cache show "libclang-rt-$version-dev" >/dev/null 2>&1; then echo "libclang-rt-$version-dev"; fi
}
if $fuzz && ! "$(dirname "${BASH_SOURCE[0]}")/fuzz.sh" --find-clang >/dev/null; then missing+=(clang); fi
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
    say "missing: ${missing[*]}"
    say "this needs root or sudo without a password. Ask for: apt-get install --no-install-recommends ${missing[*]}"
    exit 3
  fi
  as_root=(sudo -n)
fi
apt() {
  # Another apt may be at work (an unattended upgrade): wait for its lock.
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a apt-get -qq -y \
    -o DPkg::Lock::Timeout=900 -o Acquire::Retries=3 "$@" >&2
}

say "installing ${missing[*]}"
# The lock on the package lists knows no timeout.
for ((tries = 1; ; ++tries)); do
  if errors=$(apt update 2>&1); then break; fi
  if [[ $errors != *"/lists/lock"* ]] || ((tries == 90)); then
    say "apt-get update failed, trying with the lists that are there: $errors"
    break
  fi
  sleep 10
done
if [[ " ${missing[*]} " == *" clang "* ]]; then
  for package in $(fuzz_packages); do missing+=("$package"); done
fi
if ! apt install --no-install-recommends "${missing[@]}"; then
  say "apt-get could not install ${missing[*]} (on Ubuntu the component 'universe' holds some of them:"
  say "add-apt-repository universe)."
  exit 3
fi
