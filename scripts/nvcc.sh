#!/usr/bin/env bash
# Compiles one .cu file; for the build (cmake/gpu.cmake).
#
#   scripts/nvcc.sh [--strict] NVCC OBJECT SOURCE [options of nvcc]
#
# Beside OBJECT stands what ptxas said (OBJECT.log): registers, shared memory, spills. Tensor-core kernels (gemm,
# attention) that spill or whose wgmmas ptxas serialises are named. With --strict they are refused, and so are warnings.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
strict=no errors=()
[ $# -ge 3 ] || { echo "nvcc.sh: see --help" >&2 && exit 2; }
if [ "$1" = --strict ]; then strict=yes errors=(-Werror all-warnings) && shift; fi
nvcc=$1 object=$2 source=$3
shift 3
mkdir -p "$(dirname "$object")"
log=$object.log
if ! "$nvcc" -std=c++20 -O3 -lineinfo -Xptxas -v "${errors[@]}" -Xcompiler -Wall,-Wextra "$@" \
  -MD -MF "$object.d" -MT "$object" -c "$source" -o "$object" 2>"$log"; then
  cat "$log" >&2
  exit 1
fi
grep -v '^ptxas info\|bytes stack frame\|^$' "$log" >&2 || true
case $(basename "$source") in
gemm* | grouped_gemm* | attention*)
  if grep -E '\(C75|[1-9][0-9]* bytes (stack frame|spill)' "$log" >&2; then
    echo "$source: a tensor-core kernel spills, or its wgmmas are serialised (the lines above)" >&2
    [ $strict = no ] || { rm -f "$object" && exit 1; }
  fi
  ;;
esac
