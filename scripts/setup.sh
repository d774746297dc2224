#!/usr/bin/env bash
# scripts/setup.sh           installs what building, testing and the quickstart need and is missing (apt)
# scripts/setup.sh --fuzz    the same and clang with libFuzzer, for scripts/fuzz.sh
# scripts/setup.sh --cuda    the same and a CUDA toolkit: an installed one is used, else NVIDIA's packages for pip are put into
#                            build/cuda, where CMake looks for them
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

# CUDA 13.0: compiler, runtime, cuBLAS, cuDNN, NCCL. Pinned: the kernels' checks read what this ptxas says.
cuda_packages=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9
)

fuzz=false cuda=false
case "${1-}" in
--list)
  echo "apt: ${apt_packages[*]}"
  echo "dnf: ${dnf_packages[*]}"
  echo "conda-forge: ${conda_packages[*]}"
  echo "spack: ${spack_packages[*]}"
  exit 0
  ;;
--fuzz) fuzz=true ;;
--cuda) cuda=true ;;
"") ;;
*)
  echo "usage: scripts/setup.sh [--list | --fuzz | --cuda]" >&2
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
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
has_cuda() {
  nvcc --version >/dev/null 2>&1 || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ] || compgen -G "$root/build/cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc" >/dev/null ||
    compgen -G "/opt/nvidia/hpc_sdk/Linux_x86_64/*/cuda/bin/nvcc" >/dev/null
}
install_cuda() {
  has_cuda && return 0
  say "installing CUDA 13.0 into build/cuda (1.5 GB)"
  python3 -m venv "$root/build/cuda" &&
    "$root/build/cuda/bin/pip" install --quiet --disable-pip-version-check --no-deps "${cuda_packages[@]}" >&2
  local nvidia
  nvidia=$(echo "$root"/build/cuda/lib/python3*/site-packages/nvidia)
  # nvcc looks beside itself for nvvm and headers, and libraries have no names to link by.
  for folder in cudnn nccl; do
    if [ -d "$nvidia/$folder" ]; then cp -rsn "$nvidia/$folder/include" "$nvidia/$folder/lib" "$nvidia/cu13/"; fi
  done
  for library in "$nvidia"/cu13/lib/lib*.so.[0-9]*; do ln -sf "$(basename "$library")" "${library%.so.*}.so"; done
}
if $cuda && ! has_cuda; then missing+=(python3-venv); fi
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

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
if $cuda; then install_cuda; fi
