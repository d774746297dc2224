#!/usr/bin/env bash
# Many tiny steps with saves, evaluations and all logs: memory, descriptors, threads and the checkpoints' folder stay as
# they were early in the run. metrics.jsonl and the TensorBoard file grow by a line for each step, and the loss plot keeps
# a point for each: 40 bytes a step of the memory are allowed to that.
#
# usage: soak_test.sh TRAIN [STEPS [SAVE_EVERY [RANKS]]]
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
steps=${2-2000}
interval=${3-100}
ranks=${4-1}
# Freed memory that AddressSanitizer holds back would look like a leak.
ASAN_OPTIONS="quarantine_size_mb=1:$ASAN_OPTIONS"

config=(base.json --set run.steps="$steps" --set model.hidden_size=8 --set model.intermediate_size=12
  --set data.sequence_length=8 --set batch.global=4 --set batch.micro=1 --set checkpoint.interval_steps="$interval"
  --set checkpoint.keep_last=2 --set evaluation.interval_steps=$((steps / 40)) --set log.interval_steps=$((steps / 400 + 1))
  --set log.tensorboard=true)
command=("$binary")
[ "$ranks" = 1 ] || command=("$root/scripts/run.sh" -n "$ranks")

of_status() { sed -n "s/^$2:[^0-9]*\([0-9]*\).*/\1/p" "/proc/$1/status" 2>/dev/null; }
# A line of step, memory in KiB, threads, descriptors, bytes and files of the whole checkpoints. Nothing once a rank has
# ended.
sample() {
  local process step memory=0 threads=0 descriptors=0 folders number
  for process in $processes; do
    number=$(of_status "$process" VmRSS)
    memory=$((memory + ${number:-0}))
    threads=$((threads + $(ls "/proc/$process/task" 2>/dev/null | wc -l)))
    descriptors=$((descriptors + $(ls "/proc/$process/fd" 2>/dev/null | wc -l)))
    [ -n "$number" ] || return
  done
  folders=$(compgen -G 'run/checkpoints/step-????????')
  [ -n "$folders" ] || return
  step=$(sed -n 's/^step *\([0-9]*\)\/.*tokens\/s.*/\1/p' log | tail -n 1)
  # shellcheck disable=SC2086
  number=$(find $folders -type f -printf '%s\n' 2>/dev/null | awk '{ bytes += $1 } END { print bytes + 0, NR }')
  echo "${step:-0} $memory $threads $descriptors $number" >>samples
}

: >samples
start log "${command[@]}" "${config[@]}"
until_true logged log '^step .*tokens/s'
processes=$job
check "the process bears the program's name" [ "$(cat "/proc/$job/comm")" = "$(basename "${command[0]}" | head -c 15)" ]
[ "$ranks" = 1 ] || processes=$(train_processes "$job")
while ! gone "$job"; do
  sample
  sleep 0.0"$((steps / 20000 % 10))"5
done
wait "$job"
code=$?
ends_with "$steps steps on $ranks ranks" 0
steps_once() {
  awk -v steps="$steps" '/^{"kind":"step"/ { split($0, part, /"step":/); if (part[2] + 0 != ++count) wrong = 1 }
    END { exit wrong || count != steps }' run/metrics.jsonl
}
check "each step once" steps_once

most() { # COLUMN FROM TO: the largest value over the samples of these shares of the steps, 0 where there are none
  awk -v column="$1" -v from="$2" -v to="$3" -v steps="$steps" \
    '$1 > from * steps && $1 <= to * steps && $column > most { most = $column } END { print most + 0 }' samples
}
# The first three tenths are enough for keep_last checkpoints and one under way. Within a save two more stand.
flat() { # WHAT COLUMN ALLOWED_GROWTH
  local first last
  first=$(most "$2" 0.1 0.4)
  last=$(most "$2" 0.8 1.0)
  echo "$1: $first early, $last late"
  check "$1: there are samples" [ "$first" -gt 0 -a "$last" -gt 0 ]
  check "$1: does not grow" [ "$last" -le $((first + $3)) ]
}
flat "memory in KiB" 2 $((ranks * 1024 + 40 * steps / 1024 + $(most 2 0.1 0.4) / 100))
flat "threads" 3 0
flat "open descriptors" 4 $((2 * ranks)) # a save beside the steps has a file or a folder open
flat "bytes of the checkpoints" 5 4096
flat "files of the checkpoints" 6 0
echo "$(wc -l <samples) samples; metrics.jsonl $(wc -c <run/metrics.jsonl) bytes, run folder $(du -sk run | cut -f 1) KiB"
[ -z "${TRIREME_SOAK_SAMPLES-}" ] || cp samples "$TRIREME_SOAK_SAMPLES"
finish
