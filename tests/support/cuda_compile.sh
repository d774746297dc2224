#!/usr/bin/env bash
# Compiles and links the CUDA backend, then prints what each kernel takes of a multiprocessor.
#   cuda_compile.sh CMAKE BUILD_FOLDER
set -euo pipefail
"$1" --build "$2" --parallel "$(nproc)" --target train_cuda kernels_gpu_tests
"$(dirname "${BASH_SOURCE[0]}")/../../scripts/kernel_resources.sh" "$2"/cuda/*.log
# Without a driver it must say so, and end with 3.
set +e
text=$("$2"/train_cuda "$(dirname "${BASH_SOURCE[0]}")/../../configs/tiny_llama.json" run.device=cuda 2>&1)
code=$?
set -e
echo "$text"
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then exit 0; fi
if [ $code != 3 ]; then
  echo "exit $code where 3 was due" >&2
  exit 1
fi
