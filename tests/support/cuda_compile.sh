#!/usr/bin/env bash
# Compiles and links the CUDA backend, prints what each kernel takes of a multiprocessor, and starts the program where
# no GPU is.
#   cuda_compile.sh CMAKE BUILD_FOLDER
build=$2
"$1" --build "$build" --parallel "$(nproc)" --target train_cuda kernels_gpu_tests || exit 1
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/check.sh"
"$root/scripts/kernel_resources.sh" "$build"/cuda/*.log
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
  finish
  exit 0
fi
config=("$root/configs/tiny_llama.json" --set run.directory="$scratch/run" --set run.steps=2 --set data.train=synthetic
  --set evaluation.interval_steps=0 --set data.sequence_length=16)
text=$("$build/train_cuda" "${config[@]}" --set run.device=cuda 2>&1)
check "no driver: exit 3" [ $? = 3 ]
check "and the sentence" contains "$text" "this machine has no NVIDIA driver"
text=$(TRIREME_TRAIN=$build/train_cuda timeout 60 "$root/scripts/run.sh" -n 2 "${config[@]}" --set run.device=cuda 2>&1)
check "no driver, two ranks: exit 3" [ $? = 3 ]
check "said once" [ "$(grep -c '^error: ' <<<"$text")" = 1 ]
text=$("$build/train_cuda" "${config[@]}" 2>&1)
check "auto takes the CPU then" [ $? = 0 ]
finish
