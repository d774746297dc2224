#!/usr/bin/env bash
# Steps that are not finite are skipped by all ranks alike; ten in a row end the run.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Weights that grow past what squares of floats can hold.
huge=(base.json --set optimizer.lr=1e30 --set lr_schedule.warmup_steps=0 --set optimizer.clip_grad_norm=0)
diverged() {
  ends_with "$1" 4
  says_once "$1: the tensor is named" '^error: .*10 steps in a row'
  check "$1: on record" same "$(end_reason run)" diverged
  check_metrics run "$(steps_of run | wc -l)"
  check "$1: ten skips" [ "$(grep -c '"kind":"skip"' run/metrics.jsonl)" = 10 ]
  check "$1: skips name a tensor" [ "$(grep '"kind":"skip"' run/metrics.jsonl | grep -c '"rank":[0-9]*,"tensor":"[a-z_]')" = 10 ]
  check "$1: ten last steps have null" [ "$(steps_of run | tail -n 10 | grep -c '"loss":null\|"grad_norm":null')" = 10 ]
  check "$1: skipped steps advance" [ "$(steps_of run | tail -n 1 | grep -c '"consumed_samples":'$((4 * $(steps_of run | wc -l))),)" = 1 ]
  check "$1: no line says nan" [ "$(grep -ci '[:,]-\{0,1\}\(nan\|inf\)' run/metrics.jsonl)" = 0 ]
}
train "${huge[@]}"
diverged "one rank"
steps_of run >one
rm -rf run
ranks 3 "${huge[@]}" --set batch.micro=1 --set batch.global=6
code_of_three=$code
check "three ranks: exit 4" [ "$code_of_three" = 4 ]
check "three ranks: on record" same "$(end_reason run)" diverged
check "three ranks: one closing line" [ "$(grep -c '^train: exit' log)" = 1 ]
check "three ranks: the cause once" [ "$(grep -c '10 steps in a row' log)" = 1 ]
check "three ranks: ten skips" [ "$(grep -c '"kind":"skip"' run/metrics.jsonl)" = 10 ]

# A save that fails beside it does not hide it: whoever requeues on 74 would diverge again.
rm -rf run
train "${huge[@]}" --set checkpoint.interval_steps=2 --set checkpoint.min_free_bytes=9000000000000000
diverged "without room for a save"
says "without room for a save: that is told too" '^error: .*10 steps in a row.*The last save failed as well'
says "without room for a save: its cause stands above" 'was not saved: .*saving needs'
finish
