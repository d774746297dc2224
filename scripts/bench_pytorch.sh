#!/usr/bin/env bash
# Trains the same Llama with `train` and with PyTorch, in turns in one run on the same cores, and compares.
#
#   scripts/bench_pytorch.sh [--sizes S,M,L] [--dtypes fp32,bf16] [--rounds 3] [--seconds 10] [--threads N]
#                            [--output DIR] [--train BINARY] [--python INTERPRETER] [--quick]
#
# Ours: one rank with all threads, and one rank for each thread. PyTorch: LlamaForCausalLM of transformers with sdpa and
# fused AdamW, eager and compiled, in one process with all threads and by DistributedDataParallel over gloo. At L
# PyTorch also trains one sequence at a time (the same update by accumulation, compiled), as one rank of ours does by
# itself there. Both clip the gradient, in bf16 both keep fp32 weights (PyTorch by autocast). First both take two updates
# from the same weights on the same samples, and must agree. Of each round the median step counts, of each row the best
# round.
#
# Writes DIR/README.md (tables, targets), data.json and speed.png; DIR is runs/bench_pytorch. About 75 minutes on two
# cores; --quick is one short round of S. Leave the machine alone meanwhile.
#
# Needs: Debian 12 or Ubuntu (or --train and what scripts/setup.sh --list names); Python 3.11 with venv, its headers
# and g++ (torch.compile); 8 GB of disk for PyTorch, which comes from the ordinary package index into
# build/pytorch-python; 16 GB of memory for size L. --python names an interpreter that has it all already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/pytorch/environment.sh
. scripts/pytorch/environment.sh
take_options "$@"
exec "$python" scripts/pytorch/bench.py --train "$train" "${rest[@]}"
