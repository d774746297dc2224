#!/usr/bin/env bash
# Continues the same prompts greedily with `train generate` and with transformers, in turns in one run on the same cores.
#
#   scripts/bench_generation.sh [--sizes M,L] [--dtypes fp32,bf16] [--sequences 1,8,32,128] [--rounds 2] [--ranks]
#                               [--output DIR] [--train BINARY] [--python INTERPRETER]
#
# Llamas of 13 and 127 million parameters with random weights, prompts of 24 to 72 tokens, 64 new ones. transformers pads
# the prompts and runs them as one batch (sdpa, key/value cache); ours is one process with all threads and, at L or with
# --ranks, 2 and 4 ranks. Writes DIR/README.md and data.json; DIR is runs/bench_generation.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/pytorch/environment.sh
. scripts/pytorch/environment.sh
take_options "$@"
exec "$python" scripts/pytorch/generation.py --train "$train" "${rest[@]}"
