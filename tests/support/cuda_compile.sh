#!/usr/bin/env bash
# Compiles and links the CUDA backend, prints what each kernel takes of a multiprocessor, and starts the program where
# no GPU is.
#   cuda_compile.sh CMAKE BUILD_FOLDER
build=$2
"$1" --build "$build" --parallel "$(nproc)" --target train_cuda kernels_gpu_tests || exit 1
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/check.sh"
"$root/scripts/kernel_resources.sh" "$build"/cuda/*.log

# What ptxas made of the kernels, and that each rule finds the kernel that breaks it.
sass() { # ARGUMENTS: scripts/check_sass.py; $code, $text
  text=$(python3 "$root/scripts/check_sass.py" "$@" 2>&1)
  code=$?
}
sass --objects "$build/cuda"
if [ $code = 77 ]; then
  echo "machine code is not looked at: $text"
else
  check "the machine code is as recorded and keeps the rules" [ $code = 0 ] || echo "$text"
  nvcc=$(sed -n 's/^TRIREME_NVCC:[A-Z]*=//p' "$build/CMakeCache.txt")
  "$root/scripts/nvcc.sh" "$nvcc" "$scratch/broken.o" "$root/tests/sass/broken_kernels.cu" -gencode arch=compute_90a,code=sm_90a 2>"$scratch/log"
  sass --rules "$scratch/broken.o"
  check "kernels that break the rules are refused" [ $code = 1 ]
  for fault in "split_stores<8>: 8 stores of less than 4 bytes" "fence_in_a_loop: [0-9]* fences" "local_memory_in_a_loop: [0-9]* accesses of local memory in a main loop" "local_memory_in_a_loop: [0-9]* accesses of local memory outside"; do
    check "found: $fault" grep -q "$fault" <<<"$text"
  done
  # ptxas keeps to the registers that are left, so that no source breaks the last rule: a change of the machine code does.
  objdump=$(python3 "$root/scripts/check_sass.py" --find)
  printf '#!/bin/sh\n"%s" "$@" | sed "s/, R1[0-9],/, R93,/"\n' "$objdump" >"$scratch/planted"
  chmod +x "$scratch/planted"
  sass --cuobjdump "$scratch/planted" --rules "$scratch/broken.o"
  check "found: a register that was given back" grep -q "registers_that_are_gone: R93 is named behind" <<<"$text"
  sed 's/"small_stores": 0/"small_stores": 1/' "$root/tests/golden/sass_sm90a.json" >"$scratch/table.json"
  mkdir "$scratch/few" && cp "$build"/cuda/grad_norm*.o "$scratch/few"
  sass --objects "$scratch/few" --table "$scratch/table.json"
  check "found: another count than the recorded one" grep -q "0 stores of less than 4 bytes, 1 recorded\|rules alone" <<<"$text"
fi
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
