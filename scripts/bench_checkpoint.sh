#!/usr/bin/env bash
# Saves and loads 3 GB of state (0.25 billion parameters and both moments, fp32) on two processes, beside dd with fsync and
# cat of as many bytes on the same disk, and beside torch.distributed.checkpoint on the same tensors. And how long a training
# step waits for the first save beside it and for later ones, beside a memcpy of the same bytes and DCP's async_save.
#
# usage: scripts/bench_checkpoint.sh [--bench PROGRAM] [--python PYTHON] [--directory DIR] [--output DIR]
#                                    [--rounds N] [--ranks N] [--layers N] [--pause SECONDS]
#   PROGRAM   build/cpu-release/checkpoint_io_bench, built with -DTRIREME_BENCHMARKS=ON
#   PYTHON    one with torch (python3); DIR  on the disk that is measured (.)
#
# All in turns, round by round, each a process of its own; of each the median and the best are told. "cold": the page cache
# was dropped before (root only, else left out). A pause before each writer lets a disk with a budget of bytes recover.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
cd "$(dirname "$0")/.."
bench=build/cpu-release/checkpoint_io_bench python=python3 directory=. output='' rounds=5 ranks=2 layers=16 pause=3
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || { echo "$1: not known, or without a value" >&2 && exit 2; }
  case $1 in
  --bench) bench=$2 ;; --python) python=$2 ;; --directory) directory=$2 ;; --output) output=$2 ;;
  --rounds) rounds=$2 ;; --ranks) ranks=$2 ;; --layers) layers=$2 ;; --pause) pause=$2 ;;
  *) echo "unknown option $1" >&2 && exit 2 ;;
  esac
  shift 2
done
[ -x "$bench" ] || { echo "no program at $bench: build checkpoint_io_bench or name it by --bench" >&2 && exit 3; }
scratch=$(mktemp -d "$directory/bench_checkpoint.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
figures=$scratch/figures
load_average() { cut -d ' ' -f 1 /proc/loadavg; }
drop_caches() { sync && [ "$(id -u)" = 0 ] && echo 1 >/proc/sys/vm/drop_caches 2>/dev/null; }
now() { date +%s.%N; }
# of WHAT SECONDS BYTES
of() { echo "$1 $2 $3 $(load_average)" >>"$figures"; }
# field KEY: of a line of JSON on standard input.
field() { sed -n 's/.*"'"$1"'": \([0-9.e+-]*\).*/\1/p' | tail -n 1; }
ours() { # WHAT MODE
  local line
  line=$(tests/support/mpirun.sh "$ranks" "$bench" "$2" "$scratch/ours" "$layers")
  bytes=$(field bytes <<<"$line")
  of "$1" "$(field seconds <<<"$line")" "$bytes"
}
theirs() { # WHAT MODE THREADS
  local line
  line=$("$python" scripts/pytorch/bench_dcp.py "$2" "$scratch/dcp" --ranks "$ranks" --layers "$layers" --threads "${3-1}" \
    2>/dev/null)
  of "$1" "$(field seconds <<<"$line")" "$(field bytes <<<"$line")"
}
# plain WHAT COMMAND...: on each process's file, at once.
plain() {
  local what=$1 begin i
  shift
  begin=$(now)
  for ((i = 0; i < ranks; ++i)); do "$@" "$scratch/plain$i" & done
  wait
  of "$what" "$(awk -v a="$begin" -v b="$(now)" 'BEGIN { print b - a }')" "$bytes"
}
dd_fsync() { dd if=/dev/zero of="$1" bs=8M count=$((bytes / ranks / 8388608)) conv=fsync status=none; }
cat_file() { cat "$1" >/dev/null; }
rest() { sync && sleep "$pause"; }

# stalls PREFIX COMMAND...: of three saves beside a step: the first, and the shorter of the others.
stalls() {
  local prefix=$1 lines
  shift
  lines=$("$@" 2>/dev/null)
  of "${prefix}first_stall" "$(sed -n 1p <<<"$lines" | field seconds)" "$bytes"
  of "${prefix}warm_stall" "$(sed 1d <<<"$lines" | sed -n 's/.*"seconds": \([0-9.e+-]*\).*/\1/p' | sort -g | head -n 1)" "$bytes"
  [ -n "$prefix" ] || of memcpy_of_stall "$(sed 1d <<<"$lines" | sed -n 's/.*"memcpy_seconds": \([0-9.e+-]*\).*/\1/p' |
    sort -g | head -n 1)" "$bytes"
}

bytes=0
ours warm_up save && ours memcpy memcpy
for ((round = 0; round < rounds; ++round)); do
  rm -rf "$scratch"/plain* && rest && plain dd dd_fsync
  rm -rf "$scratch/ours" && rest && ours save save
  rm -rf "$scratch/dcp" && rest && theirs dcp_save save
  rm -rf "$scratch/dcp" && rest && theirs dcp_save_2_threads save 2
  rm -rf "$scratch/beside" && rest && stalls "" tests/support/mpirun.sh "$ranks" "$bench" async "$scratch/beside" "$layers"
  rm -rf "$scratch/beside" && rest &&
    stalls dcp_ "$python" scripts/pytorch/bench_dcp.py async "$scratch/beside" --ranks "$ranks" --layers "$layers"
  rm -rf "$scratch/beside"
  if drop_caches; then
    plain cat_cold cat_file
    drop_caches && ours load_cold load
    drop_caches && theirs dcp_load_cold load
  fi
  plain cat_file_warm_up cat_file
  plain cat cat_file
  ours load_warm_up load && ours load load
  theirs dcp_load_warm_up load && theirs dcp_load load
  ours memcpy memcpy
done
report=${output:+$output/README.md}
[ -z "$output" ] || { mkdir -p "$output" && cp "$figures" "$output/figures.txt"; }
"$python" - "$figures" >"${report:-/dev/stdout}" <<E2
import collections, statistics, sys
rows = collections.OrderedDict()
for line in open(sys.argv[1]):
    what, seconds, size, load = line.split()
    rows.setdefault(what, []).append((float(seconds), int(size), float(load)))
print("# Checkpoints beside the disk and beside torch.distributed.checkpoint\n")
print("By \`scripts/bench_checkpoint.sh --rounds $rounds --ranks $ranks --layers $layers\`, commit $(git rev-parse --short HEAD), $(date +%F), "
      "$(nproc) CPUs ($(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)), torch $("$python" -c 'import torch; print(torch.__version__)'). "
      "%.2f GB on $ranks processes, ext4; GB/s of all processes, the load of the machine beside them.\n" % (rows["save"][0][1] / 1e9))
print("| what | median s | median GB/s | best GB/s | load average |\n|---|---|---|---|---|")
rate, best = {}, {}
for what, found in rows.items():
    if "warm_up" in what: continue
    rates = [size / seconds / 1e9 for seconds, size, _ in found]
    rate[what], best[what] = statistics.median(rates), max(rates)
    print("| %s | %.2f | %.2f | %.2f | %.1f |" % (what.replace("_", " "), statistics.median(s for s, _, _ in found), rate[what], best[what],
          statistics.median(l for _, _, l in found)))
print("\n| ratio | of medians | of the best | goal |\n|---|---|---|---|")
for a, b, goal in (("save", "dd", "0.85"), ("load_cold", "cat_cold", "0.85"), ("load", "cat", ""), ("save", "dcp_save", "1.5"),
                   ("save", "dcp_save_2_threads", "1.5"), ("warm_stall", "memcpy_of_stall", "0.77 (1.3 times a memcpy)"),
                   ("first_stall", "memcpy_of_stall", ""), ("first_stall", "dcp_first_stall", "5"), ("warm_stall", "dcp_warm_stall", ""), ("load_cold", "dcp_load_cold", "1.5"), ("load", "dcp_load", "1.5")):
    if a in rate and b in rate:
        print("| %s / %s | %.2f | %.2f | %s |" % (a.replace("_", " "), b.replace("_", " "), rate[a] / rate[b], best[a] / best[b], goal))
E2
[ -z "$report" ] || cat "$report"
