#!/usr/bin/env bash
# The CUDA backend in a whole run, its kernels executed on the host: the losses of the CPU backend, its checkpoints, the
# same bits twice.
#   cuda_host_test.sh TRAIN TRAIN_SIMT        TRAIN_SIMT: train_simt, or train_ptx (nightly)
simt=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cpu=$binary
on() { # on cpu|cuda-host ARGUMENTS
  local device=$1
  shift
  if [ "$device" = cpu ]; then binary=$cpu; else binary=$simt; fi
  export TRIREME_TRAIN=$binary
  train "$@" --set run.device="$device"
}

short=(--set run.steps=5 --set evaluation.interval_steps=5)
llama=()
qwen3=(--set model.model_type=qwen3 --set model.head_dim=16)
qwen2=(--set model.model_type=qwen2 --set model.tie_word_embeddings=true)
gpt2=()
sed 's/"model": {.*/"model": {"model_type": "gpt2", "vocab_size": 257, "n_embd": 36, "n_layer": 2, "n_head": 3, "n_positions": 64},/
  /"num_hidden_layers"/d' base.json >gpt2.json
qwen2_moe=(--set model.model_type=qwen2_moe --set model.num_experts=6 --set model.num_experts_per_tok=2
  --set model.moe_intermediate_size=24 --set model.shared_expert_intermediate_size=40)
mixtral=(--set model.model_type=mixtral --set model.num_local_experts=5 --set model.output_router_logits=true --set moe.z_loss=0.001)
deepseek_v3=(--set model.model_type=deepseek_v3 --set model.num_key_value_heads=2 --set model.q_lora_rank=24 --set model.kv_lora_rank=16
  --set model.qk_nope_head_dim=8 --set model.qk_rope_head_dim=4 --set model.v_head_dim=8 --set model.n_routed_experts=6 --set model.n_group=2
  --set model.topk_group=1 --set model.num_experts_per_tok=2 --set model.moe_intermediate_size=24 --set model.first_k_dense_replace=1)
gpt_oss=(--set model.model_type=gpt_oss --set model.head_dim=16 --set model.num_local_experts=5 --set model.num_experts_per_tok=2
  --set model.intermediate_size=24 --set model.sliding_window=9 --set model.swiglu_limit=0.1 --set model.initializer_range=0.1)
for family in llama qwen2 qwen3 gpt2 qwen2_moe mixtral deepseek_v3 gpt_oss; do
  declare -n set=$family
  config=base.json
  [ $family != gpt2 ] || config=gpt2.json
  for compute in fp32 bf16; do
    tolerance=1e-5
    [ $compute = fp32 ] || tolerance=4e-3 # bf16 rounds at the same places, sums in another order
    options=("${short[@]}" --set precision.compute=$compute "${set[@]}")
    on cpu $config "${options[@]}" --set run.directory=cpu-$family-$compute
    ends_with "$family, $compute, cpu" 0
    on cuda-host $config "${options[@]}" --set run.directory=gpu-$family-$compute
    ends_with "$family, $compute, cuda-host" 0
    close "$family, $compute: losses" gpu-$family-$compute cpu-$family-$compute $tolerance
    close "$family, $compute: gradient norms" gpu-$family-$compute cpu-$family-$compute "$(awk "BEGIN { print 10 * $tolerance }")" grad_norm
  done
done
# An update that is looked at block by block is the same update, and what is seen is what a CPU sees.
blocks=("${short[@]}" "${qwen2[@]}" --set log.blocks=true)
on cuda-host base.json "${blocks[@]}" --set precision.compute=bf16 --set run.directory=gpu-blocks
same_run "norms of blocks change no bit" gpu-blocks 5 gpu-qwen2-bf16
for device in cpu cuda-host; do on $device base.json "${blocks[@]}" --set precision.compute=fp32 --set run.directory=$device-blocks; done
norms_of() { grep '"kind":"blocks"' "$1/metrics.jsonl" | grep -o '_norm":[^,]*' | cut -d: -f2; }
check "norms of blocks are a CPU's" awk 'NR == FNR { e[FNR] = $1; next } { d = $1 - e[FNR]; if (d * d > 1e-8 * e[FNR] ^ 2) exit 1; ++n } END { exit n != 60 }' \
  <(norms_of cpu-blocks) <(norms_of cuda-host-blocks)
# Where a token's experts are all here the step is recorded with them.
on cuda-host base.json "${short[@]}" --set precision.compute=bf16 "${qwen2_moe[@]}" --set run.cuda_graph=off --set run.directory=plain-experts
same_run "experts: the same bits without a CUDA graph" plain-experts 5 gpu-qwen2_moe-bf16

# What stability does, of which a recorded step holds the z-loss and the squares of the first micro-batch.
stable=("${short[@]}" --set precision.compute=bf16 --set batch.micro=1 --set stability.z_loss=0.05 --set stability.noise_scale=true
  --set "stability.skip_steps=[[4,4]]" --set run.steps=8)
on cpu base.json "${stable[@]}" --set run.directory=cpu-stable
for graph in auto off; do
  on cuda-host base.json "${stable[@]}" --set run.cuda_graph=$graph --set run.directory=gpu-stable-$graph
  ends_with "stability, CUDA graph $graph" 0
done
close "stability: losses" gpu-stable-auto cpu-stable 4e-3
close "stability: gradient norms" gpu-stable-auto cpu-stable 4e-2 grad_norm
same_run "stability: the same bits without a CUDA graph" gpu-stable-off 8 gpu-stable-auto
figure() { sed -n 's/.*"kind":"step".*"'"$2"'":\([^,}]*\).*/\1/p' "$1/metrics.jsonl"; }
for key in logit_z_loss noise_scale; do
  check "stability: $key without a CUDA graph" same "$(figure gpu-stable-off $key)" "$(figure gpu-stable-auto $key)"
  check "stability: $key" awk -v a="$(figure gpu-stable-auto $key | tail -n 1)" -v b="$(figure cpu-stable $key | tail -n 1)" \
    'BEGIN { exit !(a > 0 && a < 1.1 * b && b < 1.1 * a) }'
done
# Another optimizer, averages, parameters that stand still: the same step from equal gradients; the same bits twice.
optimizers=("${short[@]}" --set optimizer.kind=lion --set optimizer.state=8bit --set optimizer.lr=0.0003 --set optimizer.ema=0.9 --set precision.compute=bf16
  --set 'optimizer.groups=[{"match":"embed_tokens","trainable":false},{"match":"norm","trainable":false},{"match":"mlp","lr_scale":0.5}]')
beside_cpu() { # NAME FOLDER OPTION...
  local name=$1 folder=$2 directory
  shift 2
  on cpu base.json "$@" --set run.directory=cpu-$folder
  for directory in gpu-$folder gpu-$folder-again; do
    on cuda-host base.json "$@" --set run.directory=$directory
    ends_with "$name, cuda-host" 0
  done
  close "$name: losses" gpu-$folder cpu-$folder 4e-3
  same_run "$name: the same bits twice" gpu-$folder 5 gpu-$folder-again
}
beside_cpu "lion and groups" optimizers "${optimizers[@]}"
beside_cpu muon muon "${short[@]}" --set optimizer.kind=muon --set optimizer.matrix_lr=0.001 --set precision.compute=bf16
beside_cpu adafactor factored "${short[@]}" --set optimizer.kind=adafactor --set optimizer.lr=0.02 --set precision.compute=bf16
free=("${short[@]}" --set optimizer.kind=schedule-free --set evaluation.interval_steps=2 --set precision.compute=bf16)
on cpu base.json "${free[@]}" --set run.directory=cpu-free
for graph in auto off; do
  on cuda-host base.json "${free[@]}" --set run.cuda_graph=$graph --set run.directory=gpu-free-$graph
  ends_with "schedule-free, CUDA graph $graph" 0
done
close "schedule-free: losses" gpu-free-auto cpu-free 4e-3
same_run "schedule-free: the same bits without a CUDA graph" gpu-free-off 5 gpu-free-auto
binary=$cpu
train evaluate --checkpoint gpu-optimizers --data toy --sequence-length 32 --batches 2 --ema
ends_with "averages of a GPU's run" 0

# Moments in 8 bits whose blocks the ranks share: they join the magnitudes in the device's memory.
export TRIREME_TRAIN=$simt
for stage in 0 3; do
  TRIREME_SHARE_GPU=1 ranks 3 base.json "${short[@]}" --set optimizer.state=8bit --set batch.global=3 --set batch.micro=1 \
    --set run.device=cuda-host --set parallel.zero_stage=$stage --set run.directory=gpu-moments-$stage
  ends_with "moments in 8 bits, stage $stage, cuda-host" 0
done
check "moments in 8 bits: the steps are equal" same "$(steps_of gpu-moments-3)" "$(steps_of gpu-moments-0)"
check "moments in 8 bits: there are steps" [ "$(steps_of gpu-moments-3 | wc -l)" = 5 ]

# Products in fp8: a CPU has the same codes where bf16 values are the same. Sizes are no multiples of 128; a step is recorded.
# In one run their kernels are measured, which a host has two of where SwiGLU follows, and for inputs' gradients.
fp8=("${short[@]}" --set precision.compute=fp8 --set model.hidden_size=80 --set model.head_dim=16 --set model.intermediate_size=144)
for recipe in tensor block; do
  experts=("${fp8[@]}" --set precision.fp8.recipe=$recipe --set model.model_type=mixtral --set model.num_local_experts=3)
  on cpu base.json "${experts[@]}" --set run.directory=cpu-fp8-experts-$recipe
  on cuda-host base.json "${experts[@]}" --set run.directory=gpu-fp8-experts-$recipe
  ends_with "fp8, experts, $recipe, cuda-host" 0
  close "fp8, experts, $recipe: losses" gpu-fp8-experts-$recipe cpu-fp8-experts-$recipe 4e-3
  close "fp8, experts, $recipe: gradient norms" gpu-fp8-experts-$recipe cpu-fp8-experts-$recipe 5e-2 grad_norm
done
for recipe in tensor block; do
  on cpu base.json "${fp8[@]}" --set precision.fp8.recipe=$recipe --set run.directory=cpu-fp8-$recipe
  wish=
  [ $recipe = block ] || wish=measure
  TRIREME_KERNEL_CHOICES=$wish on cuda-host base.json "${fp8[@]}" --set precision.fp8.recipe=$recipe --set run.directory=gpu-fp8-$recipe
  ends_with "fp8, $recipe, cuda-host" 0
  close "fp8, $recipe: losses" gpu-fp8-$recipe cpu-fp8-$recipe 4e-3
  close "fp8, $recipe: gradient norms" gpu-fp8-$recipe cpu-fp8-$recipe 5e-2 grad_norm
done
chosen_fp8() { sed -n '/"fp8_products"/,/"attention"/ p' gpu-fp8-tensor/kernel_choices.json; }
check "fp8: SwiGLU and its gradient were measured within products and apart" [ "$(chosen_fp8 | grep -c '"unfused": [0-9]')" = 2 ]
check "fp8: inputs' gradients were, by two and by three warpgroups" [ "$(chosen_fp8 | grep -c '"hopper_3": [0-9]')" = 4 ]
check "fp8: of nothing else there are two" [ "$(chosen_fp8 | grep -c '"kernel"')" = 6 ]
on cuda-host base.json "${fp8[@]}" --set precision.fp8.recipe=block --set run.directory=plain-fp8 --set run.cuda_graph=off
same_run "fp8: the same bits without a CUDA graph" plain-fp8 5 gpu-fp8-block

# Dropout: of rows, and of probabilities by the kernels that know it; the same numbers as on the CPU, in a recorded step too.
dropped=("${short[@]}" --set model_backend.dropout=true)
for compute in fp32 bf16; do
  on cpu gpt2.json "${dropped[@]}" --set precision.compute=$compute --set run.directory=cpu-dropout-$compute
  on cuda-host gpt2.json "${dropped[@]}" --set precision.compute=$compute --set run.directory=gpu-dropout-$compute
  ends_with "dropout, $compute, cuda-host" 0
done
close "dropout, fp32: losses" gpu-dropout-fp32 cpu-dropout-fp32 1e-5
close "dropout, bf16: losses" gpu-dropout-bf16 cpu-dropout-bf16 4e-3
on cuda-host gpt2.json "${dropped[@]}" --set precision.compute=bf16 --set run.directory=plain-dropout --set run.cuda_graph=off
same_run "dropout: the same bits without a CUDA graph" plain-dropout 5 gpu-dropout-bf16

# A GPU that fails before the first step lacks something; later a restart helps, from the newest checkpoint.
export TRIREME_SIMT_BREAKS_AT=1
on cuda-host base.json "${short[@]}" --set run.directory=broken
ends_with "a GPU that fails at once" 3
export TRIREME_SIMT_BREAKS_AT=120
on cuda-host base.json --set run.steps=1000 --set evaluation.interval_steps=0 --set checkpoint.interval_steps=2 --set run.directory=broken
ends_with "a GPU that fails after some steps" 71
says "it says how far the run came" "started again, the run goes on at its newest checkpoint"
unset TRIREME_SIMT_BREAKS_AT
check "it had made steps" [ "$(steps_of broken | wc -l)" -ge 2 ]
on cuda-host base.json --set run.steps=4 --set evaluation.interval_steps=0 --set checkpoint.interval_steps=2 --set run.directory=broken
ends_with "the run goes on" 0

on cuda-host base.json "${short[@]}" --set run.directory=again --set precision.compute=bf16
same_run "the same bits twice" again 5 gpu-llama-bf16
on cuda-host base.json "${short[@]}" --set run.directory=plain --set precision.compute=bf16 --set run.cuda_graph=off
same_run "the same bits without a CUDA graph" plain 5 gpu-llama-bf16
# A ramp of the batch: a step of another size is another graph, in the memory of the largest. Three steps of each, so that
# each is recorded; one of the first size again.
ramp=(--set run.steps=10 --set batch.micro=1 --set precision.compute=bf16)
sizes='batch.global=[[0, 2], [192, 4], [576, 3], [864, 2]]'
on cpu base.json "${ramp[@]}" --set "$sizes" --set run.directory=cpu-ramp
on cuda-host base.json "${ramp[@]}" --set "$sizes" --set run.directory=gpu-ramp
ends_with "a ramp, cuda-host" 0
close "a ramp: losses" gpu-ramp cpu-ramp 4e-3
on cuda-host base.json "${ramp[@]}" --set "$sizes" --set run.directory=plain-ramp --set run.cuda_graph=off
same_run "a ramp: the same bits without a CUDA graph" plain-ramp 10 gpu-ramp
for part in "3 2" "6 4" "9 3" "10 2"; do
  on cuda-host base.json "${ramp[@]}" --set batch.global="${part#* }" --set run.exit_at_step="${part% *}" --set run.directory=parts-ramp
done
same_run "a ramp: the bits of a run for each size" parts-ramp 10 gpu-ramp
# Attention's backward pass in one, dq by atomics: the same numbers but for the order of sums.
# Of 400 keys up to four blocks add to a query, which shows in some elements once they are rounded to bf16.
long=("${short[@]}" --set precision.compute=bf16 --set data.sequence_length=400 --set model.max_position_embeddings=400 --set batch.micro=1)
on cuda-host base.json "${long[@]}" --set run.directory=without-atomics
on cuda-host base.json "${long[@]}" --set run.directory=atomics --set run.deterministic=false
ends_with "without determinism" 0
close "losses without determinism" atomics without-atomics 4e-3
check "without determinism there are other bits" [ "$(steps_of atomics)" != "$(steps_of without-atomics)" ]

# Kernels of products: measured when that is asked for (on a host time says nothing), kept beside the run and in its
# checkpoints, obeyed on resume; by a file that names them; anew on another GPU.
choices=(--set precision.compute=bf16 --set run.steps=5 --set checkpoint.interval_steps=2 --set evaluation.interval_steps=5)
check "nothing is chosen unless measured" [ ! -e gpu-llama-bf16/kernel_choices.json ]
TRIREME_KERNEL_CHOICES=measure on cuda-host base.json "${choices[@]}" --set run.directory=chosen --set run.exit_at_step=2
ends_with "kernels measured" 0
check "several products were measured" [ "$(grep -c '"kernel"' chosen/kernel_choices.json)" -ge 6 ]
timed() { sed -n '/"products"/,$ p' chosen/kernel_choices.json | grep -c "\"$1\": [0-9]"; } # timed KERNEL
check "both passes of attention were measured" [ "$(timed cudnn)" = 2 ]
check "products by each kernel" [ "$(timed hopper)" -ge 6 ]
check "and apart from what follows them" [ "$(timed unfused)" -ge 2 ]
check "the checkpoint has the file" same_file chosen/kernel_choices.json "$(folder_of chosen 2)/kernel_choices.json"
cp chosen/kernel_choices.json measured.json
cp -r chosen elsewhere
on cuda-host base.json "${choices[@]}" --set run.directory=chosen
ends_with "kernels of the checkpoint" 0
says_once "kernels of the checkpoint: the line" "kernels are those of $(folder_of chosen 2)/kernel_choices.json"
check "the file stays as it was" same_file chosen/kernel_choices.json measured.json
check "so do later checkpoints" same_file "$(folder_of chosen 5)/kernel_choices.json" measured.json
close "losses by measured kernels" chosen gpu-llama-bf16 4e-3
TRIREME_SIMT_GPU_NAME="another GPU" on cuda-host base.json "${choices[@]}" --set run.directory=elsewhere
ends_with "another GPU" 0
says_once "another GPU: the line" "was made on .host execution.*this is .another GPU.*kernels are chosen anew, and bits may differ"
# By products' kernels for Hopper and attention's own.
sed 's/"kernel": "[a-z]*"/"kernel": "hopper"/; /"attention"/,$ s/"kernel": "hopper"/"kernel": "own"/' measured.json >hopper.json
TRIREME_KERNEL_CHOICES=hopper.json on cuda-host base.json "${choices[@]}" --set run.directory=pinned
ends_with "kernels by a file" 0
check "kernels by a file: kept" same_file pinned/kernel_choices.json hopper.json
close "losses by Hopper's kernels" pinned gpu-llama-bf16 4e-3
export TRIREME_TRAIN=$simt
TRIREME_SHARE_GPU=1 TRIREME_KERNEL_CHOICES=measure ranks 2 base.json "${choices[@]}" --set batch.micro=1 --set run.directory=chosen-by-two --set run.device=cuda-host
ends_with "kernels measured by two ranks" 0
check "two ranks: the file" grep -q '"kernel"' chosen-by-two/kernel_choices.json
malformed() { # malformed WHAT SENTENCE: choices.json is refused
  TRIREME_KERNEL_CHOICES=choices.json on cuda-host base.json "${choices[@]}" --set run.directory=malformed
  ends_with "$1" 74
  says_once "$1: the sentence" "$2"
}
sed 's/"kernel": "hopper"/"kernel": "fastest"/' hopper.json >choices.json
malformed "an unknown kernel" 'choices.json: products\[0\].kernel is "fastest" (legal: own, hopper, cublaslt, unfused)'
head -c 300 hopper.json >choices.json
malformed "half a file" "choices.json: line [0-9]*, column"
echo '{"products": []}' >choices.json
malformed "no file of choices" 'choices.json: has no "device"'
rm choices.json
malformed "no file" "choices.json.*No such file"
TRIREME_KERNEL_CHOICES=choices.json on cpu base.json "${short[@]}" --set run.directory=cpu-chosen
ends_with "a CPU has nothing to choose" 0

TRIREME_KERNEL_CHOICES=measure on cuda-host base.json "${choices[@]}" --set run.directory=evaluated
on cuda-host evaluate base.json "${choices[@]}" --set run.directory=evaluated
ends_with "evaluate by the checkpoint's kernels" 0
says_once "evaluate: the line" "kernels are those of $(folder_of evaluated 5)/kernel_choices.json"
TRIREME_KERNEL_CHOICES=measure on cuda-host evaluate base.json "${choices[@]}" --set run.directory=evaluated
ends_with "evaluate measures" 0
TRIREME_KERNEL_CHOICES=measure on cuda-host benchmark base.json "${choices[@]}" --set run.directory=benchmarked --steps 1 --warmup 1 --no-rates
ends_with "benchmark measures" 0
check "and leaves no files" [ ! -e benchmarked ]

# Attention by a library: what stands for cuDNN here interprets the graph that cuDNN would get.
library=("${short[@]}" --set precision.compute=bf16 --set model_backend.attention=cudnn)
for family in llama qwen3; do
  declare -n set=$family
  on cuda-host base.json "${library[@]}" "${set[@]}" --set run.directory=library-$family
  ends_with "$family, attention by a library" 0
  close "$family, attention by a library: losses" library-$family gpu-$family-bf16 4e-3
  close "$family, attention by a library: gradient norms" library-$family gpu-$family-bf16 4e-2 grad_norm
done
check "it is another kernel: other bits" [ "$(steps_of library-llama)" != "$(steps_of gpu-llama-bf16)" ]
on cuda-host base.json "${library[@]}" --set run.directory=library-again
same_run "attention by a library: the same bits twice" library-again 5 library-llama
on cuda-host base.json "${library[@]}" --set run.directory=library-any-order --set run.deterministic=false
ends_with "attention by a library without determinism" 0
close "attention by a library without determinism: losses" library-any-order gpu-llama-bf16 4e-3
library_refuses() { # library_refuses WHAT CODE SENTENCE ARGUMENTS
  on cuda-host base.json "${library[@]}" --set run.directory=not-served "${@:4}"
  ends_with "$1" "$2"
  says_once "$1: the sentence" "$3"
}
library_refuses "a library's attention in fp32" 2 "model_backend.attention: computes in bf16 only, not in fp32" --set precision.compute=fp32
library_refuses "a library's attention and documents" 2 "model_backend.attention: knows no documents" --set data.document_mask=true
library_refuses "a library's attention of odd heads" 2 "does not serve heads of 12" --set model.head_dim=12
TRIREME_SIMT_CUDNN=none library_refuses "no such library" 3 'model_backend.attention is "cudnn", which cannot be used here: libcudnn.so.9: cannot open'
check "nothing was begun" [ ! -e not-served/metrics.jsonl ]
TRIREME_SIMT_CUDNN=none on cuda-host base.json "${short[@]}" --set precision.compute=bf16 --set run.directory=without-library
same_run "no such library, and none was asked for" without-library 5 gpu-llama-bf16
says_once "no such library: the line" "cuDNN is not used (libcudnn.so.9: cannot open.*: attention runs by this program's own kernels"
sed 's/"kernel": "[a-z]*"/"kernel": "own"/; /"attention"/,$ s/"kernel": "own"/"kernel": "cudnn"/' measured.json >library.json
TRIREME_KERNEL_CHOICES=library.json on cuda-host base.json "${short[@]}" --set precision.compute=bf16 --set run.directory=library-chosen
same_run "attention by a library that is chosen" library-chosen 5 library-llama
on cpu base.json "${library[@]}" --set run.directory=not-served
ends_with "a library's attention on the CPU" 2
says_once "a library's attention on the CPU: the sentence" "is a library of GPUs, and this run is on the CPU"

# Streams that do nothing until they are waited for, and then in any order that the events allow.
for streams in lazy random; do
  export TRIREME_SIMT_STREAMS=$streams
  on cuda-host base.json "${short[@]}" --set run.directory=$streams --set precision.compute=bf16
  same_run "the same bits by $streams streams" $streams 5 gpu-llama-bf16
done
unset TRIREME_SIMT_STREAMS
# Checkpoints of one device go on on the other.
part=(--set precision.compute=fp32 --set checkpoint.interval_steps=2 --set run.steps=5 --set evaluation.interval_steps=5)
on cuda-host base.json "${part[@]}" --set run.directory=mixed --set run.exit_at_step=2
on cpu base.json "${part[@]}" --set run.directory=mixed
ends_with "a checkpoint of the GPU goes on on the CPU" 0
close "losses after the change" mixed cpu-llama-fp32 1e-5
on cpu base.json "${part[@]}" --set run.directory=mixed2 --set run.exit_at_step=2
on cuda-host base.json "${part[@]}" --set run.directory=mixed2
ends_with "a checkpoint of the CPU goes on on the GPU" 0
close "losses after the other change" mixed2 cpu-llama-fp32 1e-5
# Weights of another run, the optimizer from its beginning.
for device in cpu cuda-host; do
  on $device base.json "${short[@]}" --set precision.compute=fp32 --set run.directory=tuned-$device --set init.weights=cpu-llama-fp32
  ends_with "weights of another run, $device" 0
done
close "losses from another run's weights" tuned-cuda-host tuned-cpu 1e-5
# Documents masked, two ranks, several micro-batches.
documents=("${part[@]}" --set data.document_mask=true --set data.mask_eod_loss=true --set batch.micro=1)
on cpu base.json "${documents[@]}" --set run.directory=masked-cpu
export TRIREME_TRAIN=$simt
TRIREME_SHARE_GPU=1 ranks 2 base.json "${documents[@]}" --set run.directory=masked-gpu --set run.device=cuda-host
ends_with "documents masked, two ranks" 0
close "documents masked, two ranks: losses" masked-gpu masked-cpu 1e-5

# Machines that will not do: every rank ends with 3, and one sentence is said.
refused() { # refused WHAT SENTENCE
  ends_with "$1" 3
  says_once "$1: the sentence" "$2"
}
pair=(base.json --set run.directory=refused --set run.device=cuda-host --set batch.micro=1)
ranks 2 "${pair[@]}"
refused "fewer GPUs than ranks" "2 ranks on .* ranks 0 and 1 have the same GPU, 0000:01:00.0 (1 visible.*every rank needs one of its own"
TRIREME_SIMT_GPUS=0 ranks 2 "${pair[@]}"
refused "no GPU" "no GPU is visible"
TRIREME_SIMT_GPUS=old ranks 2 "${pair[@]}"
refused "an old driver" "the NVIDIA driver serves CUDA .*Install a newer driver"
TRIREME_SIMT_CAPABILITY=75 ranks 2 "${pair[@]}"
refused "an older GPU" "this build has no code for host execution (7.5): it has 80, 90a, PTX for 80. Build with -DTRIREME_CUDA_ARCHITECTURES=75"
TRIREME_SIMT_CAPABILITY=100 TRIREME_SIMT_GPUS=2 ranks 2 "${pair[@]}" --set run.steps=2 --set run.directory=newer
ends_with "a newer GPU" 0
says_once "a newer GPU: the line" "host execution (10.0) runs what its driver makes of PTX"
# Libraries take the most of what so small a model needs, and no change of it helps; a larger one's does.
TRIREME_SIMT_GPUS=2 TRIREME_SIMT_MEMORY_BYTES=65536 ranks 2 "${pair[@]}"
refused "too little memory on the GPU" \
  "GPU [01] of .* has 64.* KiB of its 64.* KiB free, and the run needs there parameters .*activations .*libraries 228 MiB: 26[0-9].* MiB together. Fewer ranks"
TRIREME_SIMT_GPUS=2 TRIREME_SIMT_MEMORY_BYTES=65536 ranks 2 "${pair[@]}" --set model.hidden_size=1024 --set model.num_attention_heads=16 --set model.num_hidden_layers=24
refused "too little memory on the GPU for a large model" \
  "GPU [01] of .* the run needs there parameters .*activations .* together. Change, what helps most first: .*parallel.zero_stage 3"
check "nothing was trained" [ ! -s refused/metrics.jsonl ]
for command in "benchmark base.json" "evaluate --checkpoint gpu-llama-fp32 base.json"; do
  # shellcheck disable=SC2086
  TRIREME_SIMT_MEMORY_BYTES=16384 on cuda-host $command
  refused "too little memory: $command" "the run needs .*buffers 32.* MiB: .*MiB together"
done
cat >unlike.sh <<'SH'
export TRIREME_SIMT_GPU_NAME="GPU of rank $OMPI_COMM_WORLD_RANK"
exec "$UNLIKE" "$@"
SH
UNLIKE=$simt TRIREME_SIMT_GPUS=2 timeout 100 mpirun --allow-run-as-root --oversubscribe -n 2 -x UNLIKE sh unlike.sh "${pair[@]}" >out 2>log
code=$?
refused "GPUs of different types" "rank 0 has GPU of rank 0 .*rank 1 GPU of rank 1"
TRIREME_SIMT_GPUS=2 ranks 2 "${pair[@]}" --set run.steps=2
ends_with "a GPU for each rank" 0
# A launcher that shows GPUs $FIRST and on to rank 0 and 1.
cat >shown.sh <<'SH'
export TRIREME_SIMT_FIRST_GPU=$(echo "$FIRST" | cut -d " " -f $((OMPI_COMM_WORLD_RANK + 1)))
exec "$UNLIKE" "$@"
SH
shown() { # shown FIRST_OF_RANK_0 FIRST_OF_RANK_1 COUNT
  rm -rf refused
  UNLIKE=$simt FIRST="$1 $2" TRIREME_SIMT_GPUS=$3 timeout 100 mpirun --allow-run-as-root --oversubscribe -n 2 -x UNLIKE -x FIRST \
    sh shown.sh "${pair[@]}" --set run.steps=2 >out 2>log
  code=$?
}
# A machine whose first core is near GPU 1 and whose second near GPU 0.
cat >sockets.sh <<'SH'
export HWLOC_XMLFILE=$MACHINE
exec "$UNLIKE" "$@"
SH
if taskset -c 0,1 true 2>/dev/null; then
  rm -rf refused
  UNLIKE=$simt MACHINE=$root/tests/device/two_sockets.xml TRIREME_SIMT_GPUS=2 timeout 100 \
    mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 -x UNLIKE -x MACHINE sh sockets.sh "${pair[@]}" \
    --set run.steps=2 >out 2>log
  code=$?
  ends_with "ranks near their GPUs" 0
  says "rank 0 runs near GPU 0" "^ *0 .* 1 .* 1 .*(GPU 0)"
  says "rank 1 runs near GPU 1" "^ *1 .* 0 .* 1 .*(GPU 1)"
fi
if [[ $simt != *_ptx ]]; then # the interpreter of PTX stands for one GPU
  shown 2 1 1
  ends_with "one GPU shown to each rank" 0
  says_once "one GPU shown to each rank: the warning" "warning: each rank sees one GPU only"
  shown 1 0 2 # local rank 1 takes the second of GPUs 0 and 1, which is rank 0's first
  refused "GPUs shown in another order" "ranks 0 and 1 have the same GPU, 0000:02:00.0 (2 visible"
fi

binary=$simt
train evaluate --checkpoint gpu-llama-fp32 base.json --set run.device=cuda-host
ends_with "evaluate" 0
gpu_loss=$(sed 's/validation loss \([0-9.]*\).*/\1/' out)
binary=$cpu
train evaluate --checkpoint gpu-llama-fp32 base.json
check "evaluate: $gpu_loss" awk -v a="$gpu_loss" -v b="$(sed 's/validation loss \([0-9.]*\).*/\1/' out)" \
  'BEGIN { d = a - b; exit !(d < 1e-4 && d > -1e-4) }'
train base.json --set run.device=cuda-host
check "only a test build has cuda-host" same $code 3
finish
