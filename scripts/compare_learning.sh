#!/usr/bin/env bash
# Trains one model on real text with `train` and with PyTorch, from the same weights, on the same samples in the same
# order, and compares the losses of every step. Exit 0 if the final losses agree within 0.5 %, else 1.
#
#   scripts/compare_learning.sh [--tokens 10M] [--size WIDTHxLAYERS] [--experts COUNT,CHOSEN,FFN] [--sequence T] [--batch N] [--lr X] [--text FILE]
#                               [--runs LIST] [--threads N] [--at-once N] [--output DIR] [--train BINARY]
#                               [--python INTERPRETER] [--keep] [--quick]
#
# Runs: trireme-fp32 and pytorch-fp32 (the reference), trireme-bf16, pytorch-bf16 (autocast). The text is the King James
# Bible as bytes, 5 % of it held out. Judged are the loss and gradient norm of the first step, the learning rates, and
# for our runs the mean loss of the last 100 steps and the loss of the held-out text.
#
# Writes DIR/README.md, data.json, steps.csv, evaluations.csv and learning.png; DIR is runs/compare_learning. About an
# hour on two cores; --quick trains on 100,000 tokens in a minute.
#
# Needs: Debian 12 or Ubuntu (or --train, --text and what scripts/setup.sh --list names); Python 3.11 with venv; 8 GB of
# disk for PyTorch, which comes from the ordinary package index into build/pytorch-python. --python names an interpreter
# that has it all already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/pytorch/environment.sh
. scripts/pytorch/environment.sh
take_options "$@"
exec "$python" scripts/pytorch/learn.py --train "$train" "${rest[@]}"
