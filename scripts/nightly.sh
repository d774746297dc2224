#!/usr/bin/env bash
# Live comparisons with the systems whose numbers we promise: PyTorch, transformers, megatron-core.
# The committed golden files make the ordinary tests free of Python; this remakes and rechecks them.
#
# usage: scripts/nightly.sh [TRAIN]     TRAIN: the binary (build/cpu-release/train)
#
# RANDOM_CONFIGS, RANDOM_KILLS (of each number of ranks), RESTART_STEPS and SOAK_STEPS say how many (1000, 50, 500, 100000).
# MUTATIONS: edits of each CUDA op (60; some hours in all).
# Ends with an hour of fuzzing for each reader of foreign files (FUZZ_SECONDS), which needs scripts/setup.sh --fuzz.
# Makes its own virtual environment in build/nightly-python; PYTHON names the interpreter for it.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
cd "$(dirname "$0")/.."
case ${1-} in -*) echo "nightly: $1: not known (--help)" >&2 && exit 2 ;; esac
train=$(realpath -m "${1:-build/cpu-release/train}")
environment=$PWD/build/nightly-python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0

section() { printf '\n== %s\n' "$1"; }
check() { "$@" || { failed=1; printf 'nightly: FAILED: %s\n' "$*" >&2; }; }

section "Python"
requirements=(tests/golden/requirements.txt scripts/pytorch/requirements.txt)
if ! cat "${requirements[@]}" | cmp -s - "$environment/requirements.txt"; then
  rm -rf "$environment"
  "${PYTHON:-python3}" -m venv "$environment"
  "$environment/bin/pip" install --quiet "${requirements[@]/#/--requirement=}"
  cat "${requirements[@]}" > "$environment/requirements.txt"
fi
python=$environment/bin/python
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error PYTHONDONTWRITEBYTECODE=1

section "Golden files made afresh"
golden=tests/golden
check "$python" $golden/make_model_golden.py --output "$scratch/golden/model"
check "$python" $golden/make_training_golden.py --output "$scratch/golden"
check "$python" $golden/make_optimizers_golden.py --output "$scratch/golden/optimizers"
check "$python" $golden/make_fp8_golden.py --output "$scratch/golden"
check "$python" $golden/make_fp8_codes_golden.py --output "$scratch/golden"
check "$python" $golden/make_nf4_golden.py --output "$scratch/golden"
check "$python" $golden/make_moments_golden.py --output "$scratch/golden"
check "$python" $golden/make_generation_golden.py --output "$scratch/golden/generation"
check "$python" $golden/make_megatron_golden.py --output "$scratch/golden/megatron"
check "$python" $golden/make_experts_golden.py --output "$scratch/golden/experts"
check "$python" $golden/make_adapters_golden.py --output "$scratch/golden"
check "$python" $golden/make_dropout_golden.py --output "$scratch/golden/dropout_training"
check "$python" $golden/make_adapter_training_golden.py --output "$scratch/golden/adapter_training"
check "$python" $golden/make_tokenizer_golden.py --output "$scratch/golden/tokenizer"
check "$python" $golden/make_chat_golden.py --output "$scratch/golden/chat"
check "$python" $golden/make_checkpoint_golden.py --output "$scratch/golden/checkpoint"
check "$python" $golden/compare.py "$scratch/golden"

if [[ ! -x $train ]]; then
  printf 'nightly: no binary at %s; build it or name it\n' "$train" >&2
  exit 3
fi

section "Tokenizers equal Hugging Face's"
check "$python" scripts/compare_tokenizers.py "$train" --lines 100000 --seed "$(date +%j)"

section "Training equals PyTorch"
check "$python" scripts/check_training.py "$train"
check "$python" scripts/check_training.py "$train" --set batch.micro=1

section "Learning and speed beside PyTorch, in short"
check scripts/compare_learning.sh --quick --train "$train" --python "$python" --output "$scratch/learning"
check scripts/bench_pytorch.sh --quick --train "$train" --python "$python" --output "$scratch/speed"

section "Import, export, transformers"
# One update too small to move any weight: what is exported must be what was imported.
for model in $golden/model/*/; do
  name=$(basename "$model")
  printf -- '-- %s\n' "$name"
  cat > "$scratch/$name.json" <<JSON
{"run": {"directory": "$scratch/$name", "steps": 1},
 "init": {"weights": "$model"},
 "data": {"train": "$golden/training/gpt2/tokens", "sequence_length": 37, "order": "sequential"},
 "batch": {"global": 1},
 "optimizer": {"lr": 1e-30}}
JSON
  if ! "$train" "$scratch/$name.json" > "$scratch/$name.log" 2>&1; then
    failed=1
    tail -n 5 "$scratch/$name.log" >&2
    continue
  fi
  check "$train" export --checkpoint "$scratch/$name" --output "$scratch/$name-hf" --dtype fp32
  check "$python" scripts/check_export.py "$scratch/$name-hf" --source "$model" \
    --checkpoint "$(ls -d "$scratch/$name"/checkpoints/step-* | tail -n 1)" --train "$train"
done

section "Adapters of peft's merged, beside peft"
for adapter in $golden/adapters/*; do
  name=$(basename "$adapter")
  base=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["base_model_name_or_path"])' \
    "$adapter/adapter_config.json")
  check "$train" export --checkpoint "$adapter" --merge --output "$scratch/$name-merged"
  check "$python" scripts/check_adapter.py "$adapter" --base "$base" --merged "$scratch/$name-merged" --train "$train"
done

section "Random configs, random kills, long runs"
check "$(dirname "$train")/random_configs" --train "$train" --golden $golden --launcher scripts/run.sh \
  --count "${RANDOM_CONFIGS:-1000}" --seed "$(date +%j)" --mpi-every 2
check tests/e2e/random_kills_test.sh "$train" "${RANDOM_KILLS:-50}" "$RANDOM"
check tests/e2e/restarts_test.sh "$train" "${RESTART_STEPS:-500}" "$RANDOM"
check tests/e2e/soak_test.sh "$train" "${SOAK_STEPS:-100000}" 1000
check tests/e2e/soak_test.sh "$train" 20000 200 2

section "Checkpoints tortured"
check scripts/torture.sh --build "$(dirname "$train")" --output "$scratch/torture"
for folder in tests/golden/checkpoint/*/step-*; do check "$python" scripts/check_view.py "$folder"; done

section "The whole table of meshes, and edits that it must find"
meshes=$(dirname "$train")/train_mpi_tests
for ranks in 1 2 3 4 5 6 7 8; do
  check env TRIREME_MESH_TABLE=all tests/support/mpirun.sh "$ranks" "$meshes" --gtest_filter=Mesh.every_cell*
done
check tests/mutation/mutate_mesh.py --build "$(dirname "$train")"

section "Memory and traffic of random meshes beside their plans"
check "$python" scripts/check_memory.py "$train" --count 200 --seed "$(date +%j)"

section "Schedules: bubbles of real runs beside the simulated ones, speed of the simulator"
check cmake -S . -B build/nightly-bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_CUDA=OFF -DTRIREME_BENCHMARKS=ON
check cmake --build build/nightly-bench --target schedule_bench pipeline_bench
check build/nightly-bench/schedule_bench
for ranks in 2 3 4; do
  check tests/support/mpirun.sh "$ranks" build/nightly-bench/pipeline_bench
done

section "Edits of the CUDA kernels, which the tests must find"
check cmake -S . -B build/nightly-simt -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_CUDA=OFF
check cmake --build build/nightly-simt --target kernels_simt_tests model_simt_tests
check build/nightly-simt/model_simt_tests
check tests/mutation/mutate_kernels.py --build build/nightly-simt --count "${MUTATIONS:-60}" --seed "$(date +%j)"
check tests/mutation/mutate_kernels.py --build build/nightly-simt --planted

section "PTX of the kernels: sums of tensor cores, worst approximations, single edits; kernels of other projects"
if command -v nvcc >/dev/null || scripts/setup.sh --cuda; then
  simt=build/nightly-simt
  check cmake --build $simt --target kernels_simt_tests kernels_ptx_tests kernels_ptx_fmad_tests train train_ptx
  check ctest --test-dir $simt --output-on-failure --label-regex '^night$'
  check tests/e2e/cuda_host_test.sh $simt/train $simt/train_ptx
  check $simt/kernels_ptx_fmad_tests --gtest_filter=-Simd*:*OpWork*:*Product*
  check env TRIREME_PTX_SUMS=tensor-core TRIREME_TEST_ALIGNED=1 $simt/kernels_ptx_fmad_tests --gtest_filter=-Simd*:*OpWork*:*Product*
  # GELU may then be off by twice the bound of its tests, which is that of exact functions.
  check env TRIREME_PTX_APPROXIMATE=worst $simt/kernels_ptx_fmad_tests --gtest_filter=-Simd*:*OpWork*:*Product*:*Gelu.*
  check env TRIREME_TEST_ALIGNED=1 tests/mutation/mutate_ptx.py --count "${MUTATIONS:-60}" --seed "$(date +%j)" $simt/kernels_ptx_tests \
    --gtest_filter=*GemmOp*every_kernel*:*Norm*:*AttentionGradient*whole*:*AttentionGpu*over_several*
  check scripts/foreign_kernels.sh --build $simt --mutations 20
fi
check scripts/gpu_evidence.py --check

section "CUDA for every architecture"
if command -v nvcc >/dev/null || scripts/setup.sh --cuda; then
  check cmake -S . -B build/nightly-cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_TESTS=OFF -DTRIREME_CUDA=ON \
    "-DTRIREME_CUDA_ARCHITECTURES=80;86;89;90a;100"
  check cmake --build build/nightly-cuda --target train
  section "Registers, shared memory, spills and warps of each kernel"
  check scripts/kernel_resources.sh build/nightly-cuda/cuda/*.log
fi

section "Format, names"
check scripts/check_style.sh --all

section "Other compilers, Debian 13 as a newcomer finds it, the Dockerfile"
check scripts/check_compilers.sh
if [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then
  check scripts/check_distribution.sh quickstart
  check scripts/check_distribution.sh --again test --all
  check scripts/check_distribution.sh container
else
  echo "no root or no debootstrap: no Debian 13"
fi

section "Fuzzing"
check scripts/fuzz.sh --seconds "${FUZZ_SECONDS:-3600}"

exit "$failed"
