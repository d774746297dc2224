#!/usr/bin/env bash
# Products in fp8 by cuBLASLt in a whole run, by what stands for it where GPUs are executed on the host: on GPUs of other
# capabilities than Hopper's, and beside this program's own kernels on one of those. What such a GPU lacks is refused.
#   cublaslt_host_test.sh TRAIN TRAIN_SIMT TRAIN_SIMT_CUBLASLT
simt=$(cd "$(dirname "$2")" && pwd)/$(basename "$2") library=$(cd "$(dirname "$3")" && pwd)/$(basename "$3")
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cpu=$binary
fp8=(base.json --set run.steps=5 --set evaluation.interval_steps=5 --set precision.compute=fp8 --set model.hidden_size=80 --set model.head_dim=16
  --set model.intermediate_size=144)
on_gpu() { # on_gpu CAPABILITY ARGUMENTS: with the library
  local capability=$1
  shift
  binary=$library TRIREME_SIMT_CAPABILITY=$capability train "$@" --set run.device=cuda-host
}
gpu() { on_gpu "$1" "${fp8[@]}" "${@:2}"; }
for recipe in tensor block; do
  train "${fp8[@]}" --set run.device=cpu --set precision.fp8.recipe=$recipe --set run.directory=cpu-$recipe
  ends_with "$recipe, cpu" 0
done
close_to_cpu() { # close_to_cpu WHAT RUN RECIPE
  close "$1: losses" "$2" "cpu-$3" 4e-3
  close "$1: gradient norms" "$2" "cpu-$3" 5e-2 grad_norm
}

# One scale a tensor: q, k and v, gate and up have scales of their own, in calls and sums of parts. A step is recorded. A
# block has no more shared memory than that GPU gives.
gpu 89 --set run.directory=ada
ends_with "Ada" 0
close_to_cpu "Ada" ada tensor
gpu 89 --set run.directory=ada-plain --set run.cuda_graph=off
same_run "Ada: the same bits without a CUDA graph" ada-plain 5 ada
TRIREME_SIMT_STREAMS=lazy gpu 89 --set run.directory=ada-lazy
same_run "Ada: the same bits by lazy streams" ada-lazy 5 ada
sed 's/"model": {.*/"model": {"model_type": "gpt2", "vocab_size": 257, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},/
  /"num_hidden_layers"/d' base.json >gpt2.json
gpt2=(gpt2.json --set run.steps=5 --set evaluation.interval_steps=5 --set precision.compute=fp8)
train "${gpt2[@]}" --set run.device=cpu --set run.directory=cpu-gpt2
on_gpu 89 "${gpt2[@]}" --set run.directory=ada-gpt2
ends_with "Ada, biases and weights that stand [in, out]" 0
close_to_cpu "Ada, biases and weights that stand [in, out]" ada-gpt2 gpt2
gpu 100 --set run.directory=blackwell
ends_with "Blackwell" 0
same_run "Blackwell: the bits of Ada, as the same stands for both" blackwell 5 ada

# On Hopper it is a rival of this program's own kernels.
for recipe in tensor block; do
  TRIREME_KERNEL_CHOICES=measure gpu 90 --set precision.fp8.recipe=$recipe --set run.directory=measured-$recipe
  ends_with "Hopper, $recipe, measured" 0
  close_to_cpu "Hopper, $recipe, measured" measured-$recipe $recipe
  of_fp8() { sed -n '/"fp8_products"/,/"attention"/ p' measured-$recipe/kernel_choices.json; }
  check "Hopper, $recipe: products by both" [ "$(of_fp8 | grep -c '"cublaslt": [0-9]')" -ge 4 ]
  sed 's/"kernel": "hopper"/"kernel": "cublaslt"/' measured-$recipe/kernel_choices.json >pinned.json
  TRIREME_KERNEL_CHOICES=pinned.json gpu 90 --set precision.fp8.recipe=$recipe --set run.directory=pinned-$recipe
  ends_with "Hopper, $recipe, by the library" 0
  close_to_cpu "Hopper, $recipe, by the library" pinned-$recipe $recipe
done

refused() { # refused WHAT SENTENCE
  ends_with "$1" 3
  says_once "$1: the sentence" "$2"
  check "$1: nothing was begun" [ ! -e refused/metrics.jsonl ]
}
gpu 89 --set precision.fp8.recipe=block --set run.directory=refused
refused "blocks on Ada" 'by the recipe "block", which host execution (compute capability 8.9) cannot do: products of blocks have kernels for compute capability 9.0 alone. Set precision.fp8.recipe "tensor"'
gpu 89 --set model.model_type=mixtral --set model.num_local_experts=3 --set run.directory=refused
refused "experts on Ada" 'products of experts in fp8 have kernels for compute capability 9.0 alone. Set precision.compute "bf16"'
gpu 80 --set run.directory=refused
refused "a GPU without fp8" 'its tensor cores have no fp8, which begins at compute capability 8.9. Set precision.compute "bf16"'
mkdir broken
for major in 12 13; do : >broken/libcublasLt.so.$major; done
LD_LIBRARY_PATH=$PWD/broken gpu 89 --set run.directory=refused
refused "Ada and a broken cuBLASLt" 'cuBLASLt, which multiplies there, cannot be used (.*libcublasLt.so.*LD_LIBRARY_PATH may name). Set precision.compute "bf16"'
binary=$simt TRIREME_SIMT_CAPABILITY=89 train "${fp8[@]}" --set run.device=cuda-host --set run.directory=refused
refused "Ada without cuBLASLt" 'this build has no cuBLASLt, which multiplies there. Set precision.compute "bf16"'
finish
