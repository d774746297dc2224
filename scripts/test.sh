#!/usr/bin/env bash
# scripts/test.sh [ctest options]: sets up, builds the preset cpu-release and runs every test. No Python is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
cmake --preset cpu-release
cmake --build --preset cpu-release --parallel "$(nproc)"
exec ctest --preset cpu-release --output-on-failure "$@"
