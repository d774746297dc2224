#!/usr/bin/env bash
# FineWeb, English text of the web, tokenised as it is downloaded. NEEDS THE NETWORK and Python.
#
#   data/fineweb.sh --output DIR [--documents 200000] [options of data/huggingface.sh]
#
# 200,000 documents of the subset sample-10BT: about 0.4 GB of text, 90 million tokens. --config sample-100BT or
# CC-MAIN-2024-10 takes other parts; HuggingFaceFW/fineweb-edu is `data/huggingface.sh --dataset HuggingFaceFW/fineweb-edu`.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
exec "$(dirname "${BASH_SOURCE[0]}")/huggingface.sh" --dataset HuggingFaceFW/fineweb --config sample-10BT --documents 200000 "$@"
