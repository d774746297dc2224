#!/usr/bin/env bash
# scripts/setup.sh           installs what building, testing and the quickstart need and is missing (apt)
# scripts/setup.sh --fuzz    the same and clang with libFuzzer, for scripts/fuzz.sh
# scripts/setup.sh --cuda    the same and a CUDA toolkit with cuDNN: installed ones are used, for what is missing NVIDIA's
#                            packages for pip are put into build/cuda, where CMake looks for them; also what checks
#                            kernels' machine code (cuobjdump) and barriers (spin)
# scripts/setup.sh --slurm   the same and Slurm's daemons, of which tests/cluster/slurm_test.sh makes a cluster of its own (apt alone)
# scripts/setup.sh --style   the same and clang-format and clang-tidy of version 14, for scripts/check_style.sh (apt alone)
# scripts/setup.sh --list    prints the package names for apt, dnf, conda-forge and Spack, installs nothing
#
# For Debian 12 and 13, Ubuntu 22.04 and 24.04; needs root, or sudo without a password. Asks nothing.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac

apt_packages=(
  cmake ninja-build g++
  libopenmpi-dev openmpi-bin
  libhdf5-dev
  nlohmann-json3-dev libspdlog-dev libfmt-dev libcli11-dev libxxhash-dev
  libdnnl-dev libhwloc-dev
  libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev
  libgtest-dev libbenchmark-dev
  bible-kjv bible-kjv-text # the quickstart's corpus
  xz-utils                 # scripts/bundle.sh
)
slurm_packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix2)
style_packages=(clang-format-14 clang-tidy-14)
dnf_packages=(
  cmake ninja-build gcc-c++ openmpi-devel hdf5-devel json-devel spdlog-devel fmt-devel cli11-devel xxhash-devel
  onednn-devel hwloc-devel pcre2-devel utf8proc-devel zlib-devel libzstd-devel gtest-devel google-benchmark-devel xz
)
conda_packages=(
  cmake ninja cxx-compiler openmpi hdf5 nlohmann_json spdlog fmt cli11 xxhash onednn libhwloc pcre2 libutf8proc zlib zstd
  gtest benchmark xz
)
spack_packages=(
  cmake ninja gcc openmpi hdf5~mpi nlohmann-json spdlog fmt cli11 xxhash onednn hwloc pcre2 utf8proc zlib zstd googletest
  benchmark xz
)

say() { echo "setup: $*" >&2; }

# CUDA 13.0: compiler, runtime, cuBLAS, NCCL, and NVRTC, by which cuDNN compiles. Pinned: the kernels' checks read what
# this ptxas says.
cuda_packages=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cublas==13.1.0.3 nvidia-nccl-cu13==2.28.9 nvidia-cuda-nvrtc==13.0.88
)
cudnn_packages=(nvidia-cudnn-cu13==9.19.0.56)
disassembler_packages=(nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37)

fuzz=false cuda=false slurm=false style=false
case "${1-}" in
--list)
  echo "apt: ${apt_packages[*]}"
  echo "apt, for tests under Slurm: ${slurm_packages[*]}"
  echo "apt, for scripts/check_style.sh: ${style_packages[*]}"
  echo "dnf: ${dnf_packages[*]}"
  echo "conda-forge: ${conda_packages[*]}"
  echo "spack: ${spack_packages[*]}"
  exit 0
  ;;
--fuzz) fuzz=true ;;
--cuda) cuda=true ;;
--slurm) slurm=true ;;
--style) style=true ;;
"") ;;
*)
  echo "usage: scripts/setup.sh [--list | --fuzz | --cuda | --slurm | --style]" >&2
  exit 2
  ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  say "this system has no apt. Install the packages that 'scripts/setup.sh --list' names with your package manager."
  exit 3
fi

missing=()
wanted=("${apt_packages[@]}")
if $slurm; then wanted+=("${slurm_packages[@]}"); fi
if $style; then wanted+=("${style_packages[@]}"); fi
is_installed() { [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
for package in "${wanted[@]}"; do
  if is_installed "$package"; then continue; fi
  # Since Debian 13 and Ubuntu 24.04 libraries may be named so; apt knows them by the old name, too.
  if [[ $package == lib*[0-9] ]] && is_installed "${package}t64"; then continue; fi
  missing+=("$package")
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
has_cudnn() {
  local folder
  for folder in "${CUDNN_ROOT:-/usr}" "${CUDA_HOME:-/usr/local/cuda}" /usr "$root"/build/cuda/lib/python3*/site-packages/nvidia/cudnn; do
    if [ -f "$folder/include/cudnn.h" ] || [ -f "$folder/include/x86_64-linux-gnu/cudnn.h" ]; then return 0; fi
  done
  return 1
}
# pip_install PACKAGE...: into build/cuda.
pip_install() {
  [ -x "$root/build/cuda/bin/pip" ] || python3 -m venv "$root/build/cuda"
  "$root/build/cuda/bin/pip" install --quiet --disable-pip-version-check --no-deps "$@" >&2
}
install_cudnn() {
  has_cudnn && return 0
  say "installing cuDNN 9.19 into build/cuda (0.5 GB)"
  pip_install "${cudnn_packages[@]}" ||
    say "cuDNN is not there: attention will run by this program's own kernels, which may be slower"
}
# What reads machine code (scripts/check_sass.py).
has_disassembler() {
  command -v cuobjdump >/dev/null || compgen -G "$root/build/cuda/lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump" >/dev/null
}
install_disassembler() {
  has_disassembler && return 0
  say "installing cuobjdump into build/cuda (6 MB)"
  pip_install "${disassembler_packages[@]}" || say "cuobjdump is not there: machine code is not looked at"
}
install_cuda() {
  has_cuda && return 0
  say "installing CUDA 13.0 into build/cuda (1.5 GB)"
  pip_install "${cuda_packages[@]}"
  local nvidia
  nvidia=$(echo "$root"/build/cuda/lib/python3*/site-packages/nvidia)
  # nvcc looks beside itself for nvvm and headers, and libraries have no names to link by.
  if [ -d "$nvidia/nccl" ]; then cp -rsn "$nvidia/nccl/include" "$nvidia/nccl/lib" "$nvidia/cu13/"; fi
  for library in "$nvidia"/cu13/lib/lib*.so.[0-9]*; do ln -sf "$(basename "$library")" "${library%.so.*}.so"; done
}
if $cuda && ! { has_cuda && has_cudnn && has_disassembler; }; then missing+=(python3-venv); fi
if $cuda && ! command -v spin >/dev/null; then missing+=(spin); fi
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
if $cuda; then install_cuda && install_cudnn && install_disassembler; fi
