#!/usr/bin/env bash
# Trains size M (a Llama of 6 layers, hidden 384, T 256, a global batch of 16, fp32) on one and on two ranks of one
# thread by `train`, and on as many processes by PyTorch's DistributedDataParallel over gloo, in turns in one run.
#
#   scripts/bench_scaling.sh [--rounds 5] [--seconds 10] [--output DIR] [--train BINARY] [--python INTERPRETER] [--quick]
#
# Each round measures every row once, one after the other; a row's figure is the median of its rounds, a comparison the
# median of the rounds' own quotients, so that what disturbs the machine for minutes falls on both sides. Ours: data,
# with ZeRO, context and pipeline axes of two; tensor and Ulysses, which do not divide M's 3 key heads, with 2 of them.
# PyTorch: eager and compiled. Both clip; both do the same work as scripts/bench_pytorch.sh checks.
#
# Writes DIR/README.md and data.json; DIR is runs/bench_scaling. About 4 minutes a round on two cores; --quick is one
# short round of size S. Needs what scripts/bench_pytorch.sh needs. Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/pytorch/environment.sh
. scripts/pytorch/environment.sh
take_options "$@"
exec "$python" scripts/pytorch/scaling.py --train "$train" "${rest[@]}"
