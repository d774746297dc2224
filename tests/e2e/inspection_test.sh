#!/usr/bin/env bash
# `train preflight`: all ranks are looked at, the slow or odd one is named with 3, and nothing is left behind.
#   inspection_test.sh TRAIN ODD_CLOCK [TRAIN_SIMT]: ODD_CLOCK is a library that makes one rank's time pass faster
odd_clock=$(realpath "$2") simt=${3:+$(realpath "$3")}
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# left_alone WHAT: nothing is in the folder that was not there before.
here() { find . -mindepth 1 | sort | grep -vE '^\./(out|log|other.*)$'; }
before=$(here)
left_alone() { check "$1: nothing stays behind" same "$(here)" "$before"; }
# status_of CHECK: of the report in `out`, JSON indented by two.
status_of() { grep -F -A 1 "\"name\": \"$1\"" out | sed -n 's/.*"status": "\(.*\)".*/\1/p'; }
ranks_of() { grep -F -A 8 "\"name\": \"$1\"" out | tr -d ' \n' | sed -n 's/.*"ranks":\[\([0-9,]*\)\].*/\1/p'; }
# well WHAT COMMAND...: a rank that other work of this machine holds up is named by right: again.
well() {
  local what=$1 try
  shift
  for try in {1..6}; do
    "$@"
    [ "$code" != 3 ] && break
    echo "$what, try $try: $(tail -n 1 log)"
  done
  ends_with "$what" 0
  left_alone "$what"
}

# Alone: what one rank can say.
well "alone" train preflight
check "alone: a table" grep -q '^ *products (fp32) *\(ok\|note\) ' out
check "alone: nothing is said of links" [ "$(grep -c 'pairs' out)" = 0 ]
well "alone, as JSON" train preflight --json
check "alone: it is JSON" valid_json out
check "alone: it is well" grep -q '"ok": true' out

# With a config: what the plan needs, its folders and data; no folder of the run is made.
well "two ranks with a config" ranks 2 preflight base.json --json --set checkpoint.directory=run/elsewhere
check "two ranks: it is JSON" valid_json out
for name in program hosts libraries config CPU clocks run.directory data "free memory" bits "all-reduce, data" pairs; do
  check "two ranks: $name is well" same "$(status_of "$name")" ok
done
check "two ranks: each rank's products are told" [ "$(grep -c '"flops_per_second": [1-9]' out)" = 2 ]
says "two ranks: progress is told" '^preflight: links'

# More ranks than cores: said, and nobody is slow for it. Each axis of a mesh is looked at.
well "four ranks" ranks 4 preflight base.json --json --set parallel.tensor=2
for name in "all-reduce, data" "all-reduce, tensor" pairs; do
  check "four ranks: $name is well" same "$(status_of "$name")" ok
done
check "four ranks: each was measured" [ "$(grep -c '"flops_per_second": [1-9]' out)" = 4 ]
case $(status_of cores) in
note) check "four ranks: links are not compared" grep -q '(not compared: ranks share cores)' out ;;
ok) ;;
*) check "four ranks: cores are shared by all alike" false ;;
esac

# A slow rank, by a clock that passes four times as fast: named, with its figure and the median.
export TRIREME_CLOCK_RANK=1
slow() { LD_PRELOAD=$odd_clock TRIREME_CLOCK_RATE=4 ranks "$@"; }
slow 2 preflight --json
ends_with "a slow rank" 3
check "a slow rank: its products" same "$(status_of 'products (fp32)') $(ranks_of 'products (fp32)')" 'slow 1'
check "a slow rank: its copies" same "$(status_of copies) $(ranks_of copies)" 'slow 1'
check "a slow rank: figure and median" grep -q '"expected": "median .* [GM]FLOP/s"' out
says "a slow rank: the last line names it" '^train: exit 3 (products (fp32): rank 1 on .* (median .*FLOP/s)'
check "a slow rank: it is not well" grep -q '"ok": false' out
left_alone "a slow rank"

# On GPUs, executed on the host: their memory and copies too, links by what stands for NCCL.
if [ "$simt" ]; then
  cpu=$binary binary=$simt
  export TRIREME_TRAIN=$simt TRIREME_SIMT_GPUS=2
  slow 2 preflight base.json --json --set run.device=cuda-host
  ends_with "a slow GPU" 3
  check "a slow GPU: its products" same "$(status_of 'products (bf16)') $(ranks_of 'products (bf16)')" 'slow 1'
  check "a slow GPU: its copies to the host" same "$(status_of 'copies to the host') $(ranks_of 'copies to the host')" 'slow 1'
  for name in device bits "GPU memory" "GPU health" "all-reduce, data" pairs; do
    check "a slow GPU: $name is well" same "$(status_of "$name")" ok
  done
  TRIREME_SIMT_GPUS=1 ranks 2 preflight base.json --json --set run.device=cuda-host
  ends_with "one GPU for two ranks" 3
  check "one GPU for two ranks: told" same "$(status_of device)" odd
  left_alone "GPUs"
  binary=$cpu
  export TRIREME_TRAIN=$cpu
fi

# Other words, another config, another program on one rank.
both() { mpirun --oversubscribe --bind-to none "$@" >out 2>log; code=$?; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
sed 's/0.003/0.004/' base.json >other.json
cp "$binary" other_train && printf 'x' >>other_train
both -n 1 "$binary" preflight base.json --json : -n 1 "$binary" preflight other.json
ends_with "another config" 3
check "another config: named" same "$(status_of config) $(ranks_of config)" 'odd 1'
both -n 1 "$binary" preflight --json : -n 1 ./other_train preflight
ends_with "another program" 3
check "another program: named" same "$(status_of program) $(ranks_of program)" 'odd 1'
check "another program: nothing else is asked" [ "$(grep -c '"name"' out)" = 1 ]
left_alone "another program"

# Disks: no room for two checkpoints, and writing refused half-way.
train preflight base.json --json --set checkpoint.min_free_bytes=1000TB
ends_with "no room" 3
check "no room: told" same "$(status_of 'run.directory space')" odd
(ulimit -f 4096 && exec "$binary" preflight --json >out 2>log)
code=$?
ends_with "a disk that fills up" 3
check "a disk that fills up: told" same "$(status_of 'working folder')" odd
check "a disk that fills up: why" grep -q 'cannot write: File too large' out
left_alone "disks"

# Memory: less is free than the plan needs, of which nothing is taken.
train preflight base.json --json --set model.hidden_size=16384 --set model.head_dim=128 --set model.intermediate_size=65536 \
  --set model.num_hidden_layers=96 --set checkpoint.async=false
ends_with "too large a model" 3
check "too large a model: told" same "$(status_of 'free memory') $(ranks_of 'free memory')" 'odd 0'
check "too large a model: what is needed" grep -q '"expected": "[0-9.]* TiB for the run"' out

# What is wrong otherwise has its own codes; a folder of others is refused as by a run.
train preflight base.json --set optimizer.lr=-1
ends_with "a wrong config" 2
ranks 2 preflight base.json --set data.train=absent
ends_with "missing data" 74
train preflight absent.json
ends_with "a missing config" 74
train preflight --set run.steps=3
ends_with "an override of nothing" 2
train preflight base.json --hang-timeout 3
ends_with "a time that the config has" 2
left_alone "faults"

# A signal: nothing stays. A rank that is stopped: the watchdog ends all.
for signal in TERM USR1; do
  start log env TRIREME_TRAIN="$binary" "$root/scripts/run.sh" -n 2 preflight
  until_true logged log '^preflight: products'
  kill -$signal "$job"
  wait "$job"
  code=$?
  check "SIG$signal: ends with 75, or was done" [ "$code" = 75 -o "$code" = 0 -o "$code" = 3 ]
  left_alone "SIG$signal"
done
start log "$root/scripts/run.sh" -n 2 preflight --hang-timeout 1
until_true logged log '^preflight: products'
victim=$(train_processes "$job" | tail -n 1)
kill -STOP "$victim"
wait "$job"
code=$?
check "a stopped rank: exit 124" same "$code" 124
says "a stopped rank: it is named" '^train: exit 124 (.*rank [01] (.*stopped'
left_alone "a stopped rank"
finish
