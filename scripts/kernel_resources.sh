#!/usr/bin/env bash
# scripts/kernel_resources.sh LOG...   prints what each CUDA kernel takes, from what ptxas said when it was compiled
# (BUILD/cuda/*.log): registers of a thread, static shared memory, stack and spills in bytes, and how many of a
# multiprocessor's 64 warps its registers leave room for (48 on sm_86 and sm_89).
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
[ $# -gt 0 ] && [[ $1 != -* ]] || { echo "kernel_resources: name logs of ptxas (--help)" >&2 && exit 2; }
awk '
  /Compiling entry function/ { split($0, part, "\x27"); name = part[2]; arch = part[4] }
  /bytes stack frame/ { stack = $1; spill = $5 + $9 }
  /Used [0-9]+ registers/ {
    if (name == "") next
    registers = $0; sub(/.*Used /, "", registers); sub(/ .*/, "", registers)
    shared = 0
    if (match($0, /[0-9]+ bytes smem/)) { shared = substr($0, RSTART, RLENGTH); sub(/ .*/, "", shared) }
    rounded = int((registers + 7) / 8) * 8 * 32
    warps = int(65536 / rounded)
    limit = (arch == "sm_86" || arch == "sm_89") ? 48 : 64
    if (warps > limit) warps = limit
    printf "%s\t%s\t%d\t%d\t%d\t%d\t%d\n", arch, name, registers, shared, stack, spill, warps
    name = ""
  }' "$@" | c++filt | sed -E 's/^([^\t]*\t)void /\1/; s/trireme::cuda::\(anonymous namespace\):://; s/trireme::cuda::\(anonymous namespace\):://g; s/trireme::cuda:://g; s/__nv_bfloat16/bf16/g; s/>\([^\t]*\t/>\t/; s/kernel\([^\t]*\t/kernel\t/' |
  sort -t $'\t' -k2,2 -k1,1 |
  awk -F '\t' 'BEGIN { printf "%-8s %-78s %9s %7s %6s %6s %6s\n", "arch", "kernel", "registers", "shared", "stack", "spills", "warps" }
       { printf "%-8s %-78s %9d %7d %6d %6d %6d\n", $1, substr($2, 1, 78), $3, $4, $5, $6, $7 }'
