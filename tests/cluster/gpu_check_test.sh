#!/usr/bin/env bash
# scripts/gpu_check.sh without a GPU: programs that pass, fail, crash and hang stand for the real ones.
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
cd "$scratch" || exit 1
fake() {
  printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$1"
  chmod +x "$1"
}
fake train 'case $* in
*--version*) echo "train 0.0" ;;
benchmark*) echo "{}" ;;
*)
  for word in "$@"; do case $word in run.directory=*) folder=${word#*=} ;; esac; done
  mkdir -p "$folder"
  for step in 1 2 3; do echo "{\"kind\":\"step\",\"step\":$step,\"loss\":4.5,\"grad_norm\":1}"; done >"$folder/metrics.jsonl"
  ;;
esac'
fake kernels_gpu_tests 'case $* in
*--gtest_list_tests*) printf "Running main() from gtest_main.cc\nIsas/Norm.\n  one/avx2  # GetParam() = 1\nIsas/Gemm.\n  two/avx2\nIsas/Rope.\n  three/avx2\n" ;;
*Isas/Gemm*) kill -SEGV $$ ;;
*) echo "$*" >>"$CALLS"; echo "[  PASSED  ] 7 tests." ;;
esac'
fake ops_bench_gpu 'echo figures'
fake mpirun 'while [ "$1" != sh ]; do shift; done; OMPI_COMM_WORLD_RANK=0 exec "$@"'
fake nvidia-smi 'case $* in *compute_cap*) echo 9.0 ;; *) echo "NVIDIA Fake" ;; esac'
fake python3 'exit 1'
export CALLS=$scratch/calls PATH=$scratch:$PATH
check_gpu() { "$root/scripts/gpu_check.sh" --train "$scratch/train" --tests "$scratch/kernels_gpu_tests" --output out "$@" >said 2>&1; }

check_gpu kernels
check "a suite that crashes fails its stage" [ $? = 1 ]
check "and stands in the table" grep -q '^kernels *failed .* 28 ok, 2 failed' out/table.txt
check "with what to suspect first" grep -q 'suspect first: .*f32 results added' out/table.txt
check "it is named" grep -q '^FAILED: Isas/Gemm\. (exit 139)' out/kernels.log
check "the suites after it have run, beside products and all else" [ "$(grep -c 'Isas/Rope' calls)" = 2 ]
check "and nothing that is no suite" [ "$(grep -c 'gtest_filter=' calls)" = 4 ]
check "its object" grep -q '"stage": "kernels", "result": "failed", "exit": 1, .*"passed": 28, "failed": 2, .*"gpu": "NVIDIA Fake", "program": "train 0.0"' out/kernels.json
check_gpu train ranks times pytorch memcheck
check "runs that pass" [ $? = 0 ]
check "losses were compared" grep -q '^ok: 4 ranks, transfers recorded: the same bits' out/ranks.log
check "what is missing is skipped" grep -q 'has no torch with CUDA: skipped' out/pytorch.log
check "the table has them all" [ "$(grep -c ' passed ' out/table.txt)" = 5 ]
check "figures of the benchmark" [ -s out/times-124m.json ]
sed -i 's/loss\\":4.5/&$RANDOM/' train
check_gpu train
check "losses that differ fail" [ $? = 1 ]
check "and are shown" grep -q '^FAILED: tiny, fp32: the same bits twice' out/train.log
check "the table says what that refutes" grep -q '^train .*refutes: a GPU trains as the CPU does' out/table.txt
check "and what was not tried" grep -q '^pytorch .*says nothing of: ' out/table.txt
check_gpu --dry-run
check "a dry run of everything" [ $? = 0 ]
check "tells the commands" grep -q 'would run, at most 70 s: .*mpirun --allow-run-as-root --oversubscribe -n 4' said
check_gpu what
check "an unknown stage is a usage error" [ $? = 2 ]
finish
