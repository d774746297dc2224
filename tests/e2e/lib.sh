# shellcheck shell=bash
# Sourced with the binary as $1: the real `train` on tiny models, in a scratch folder of its own.
# `train ...` and `ranks N ...` set `code` and leave what was printed in $scratch/out and $scratch/log.
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/check.sh"
binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
export TRIREME_TRAIN=$binary OMPI_MCA_btl_vader_single_copy_mechanism=none NO_COLOR=1
# Open MPI frees little of what it allocates; leaks of our own show in the tests of one process.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
cd "$scratch" || exit 1
code=0
background=()
end_background() {
  local job
  for job in "${background[@]}"; do kill -KILL "$job" 2>/dev/null; done
  rm -rf "$scratch"
}
trap end_background EXIT

# 240 lines: 8 KB, some 250 windows of 32 bytes.
awk 'BEGIN { for (i = 0; i < 240; ++i) print "stroke", i, "of", i * 7919 % 1009, "oars" i % 7 ", the sea answers" }' \
  >text.txt
cat >base.json <<'E2'
{
  "run": {"directory": "run", "steps": 20, "threads_per_rank": 1},
  "model": {"model_type": "llama", "vocab_size": 257, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64},
  "tokenizer": "byte",
  "data": {"train": "toy", "validation": "toy", "sequence_length": 32},
  "batch": {"global": 4, "micro": 2},
  "optimizer": {"lr": 0.003},
  "lr_schedule": {"warmup_steps": 4},
  "evaluation": {"batches": 2},
  "checkpoint": {"interval_steps": 1000},
  "log": {"interval_steps": 1, "tensorboard": false}
}
E2

train() {
  "$binary" "$@" >out 2>log
  code=$?
}
ranks() {
  local n=$1
  shift
  "$root/scripts/run.sh" -n "$n" "$@" >out 2>log
  code=$?
}
# start LOG COMMAND...: in the background, its process in `job`.
start() {
  local log=$1
  shift
  : >"$log"
  "$@" >/dev/null 2>>"$log" &
  job=$!
  background+=("$job")
}
# until_true COMMAND...: polls, for as long as a machine may take that has other work; who waits in vain fails.
until_true() {
  local -i end=$((SECONDS + 180))
  while ((SECONDS < end)); do
    "$@" && return 0
    sleep 0.05
  done
  echo "FAILED: never true: $*"
  tail -n 20 log 2>/dev/null | sed "s/^/    /"
  exit 1
}
logged() { grep -q -e "$2" "$1" 2>/dev/null; }
gone() { ! kill -0 "$1" 2>/dev/null; }
# A signal sent to $1 has reached its handler.
taken() { grep -q "^ShdPnd:[[:space:]]*0*$" "/proc/$1/status"; }
# Processes of the binary whose parent is $1, or a child of it.
train_processes() {
  local child
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
    if [ "$(readlink "/proc/$child/exe")" = "$binary" ]; then echo "$child"; else train_processes "$child"; fi
  done
}

same() { [ "$1" = "$2" ]; }
same_file() { cmp -s "$1" "$2"; }
# What must be equal in two runs of equal bits: all of a step line but its times.
steps_of() {
  sed -n 's/^{"kind":"step",\("step":.*"consumed_tokens":[0-9]*\),.*/\1/p' "$1/metrics.jsonl"
}
tensors_of() { sed -n '/^ "tensors"/,$p' "$1/manifest.json" | grep -E '"((ema|optimizer|parameters)/|xxh3_128)|^   "shape"'; }
folder_of() { printf '%s/checkpoints/step-%08d' "$1" "$2"; }
# same_run WHAT RUN STEP EXPECTED_RUN: equal step lines to STEP and equal tensors in the checkpoint of STEP.
same_run() {
  check "$1: the steps are equal" same "$(steps_of "$2" | head -n "$3")" "$(steps_of "$4" | head -n "$3")"
  check "$1: there are $3 steps" [ "$(steps_of "$2" | wc -l)" -ge "$3" ]
  check "$1: the tensors are equal" same "$(tensors_of "$(folder_of "$2" "$3")")" "$(tensors_of "$(folder_of "$4" "$3")")"
  check "$1: there are tensors" [ "$(tensors_of "$(folder_of "$2" "$3")" | grep -c xxh3_128)" -gt 20 ]
}

# close WHAT RUN EXPECTED_RUN TOLERANCE [KEY]: so close are all steps' losses, or other figures.
close() {
  local key=${5-loss}
  check "$1" awk -v tolerance="$4" 'NR == FNR { expected[FNR] = $1; next }
    { d = $1 - expected[FNR]; if (d < 0) d = -d; if (!(d <= tolerance * expected[FNR])) { print FNR, $1, expected[FNR]; exit 1 } ++n }
    END { exit n < 3 }' <(steps_of "$3" | sed 's/.*"'"$key"'":\([^,]*\).*/\1/') <(steps_of "$2" | sed 's/.*"'"$key"'":\([^,]*\).*/\1/')
}

# Reduces valid JSON values of lines to "V": strings, numbers, then arrays and objects from the inside.
reduced_json() {
  sed -E -e 's/"([^"\\]|\\.)*"/S/g' -e 's/(true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)/V/g' \
    -e 's/[[:space:]]+//g' -e ':again' -e 's/\[([SV](,[SV])*)?\]/V/g' -e 's/\{(S:[SV](,S:[SV])*)?\}/V/g' -e 't again'
}
valid_json() { [ "$(tr '\n' ' ' <"$1" | reduced_json)" = V ]; }
# number KEY FILE: the first number under this key.
number() { sed -n 's/.*"'"$1"'": *\(-\{0,1\}[0-9][-+.0-9eE]*\).*/\1/p' "$2" | head -n 1; }

# check_metrics RUN STEPS: every line valid, every step once and in order, a start and an end.
check_metrics() {
  local file=$1/metrics.jsonl
  check "$file: every line is JSON" [ "$(reduced_json <"$file" | sort -u)" = V ]
  check "$file: each step once" same "$(steps_of "$1" | sed 's/"step":\([0-9]*\).*/\1/' | tr '\n' ' ')" \
    "$(seq "$2" | tr '\n' ' ')"
  check "$file: starts" [ "$(head -n 1 "$file" | cut -c 1-15)" = '{"kind":"start"' ]
  check "$file: ends" [ "$(tail -n 1 "$file" | cut -c 1-13)" = '{"kind":"end"' ]
}
end_reason() { tail -n 1 "$1/metrics.jsonl" | sed -n 's/.*"kind":"end".*"reason":"\([a-z_]*\)".*/\1/p'; }

# ends_with WHAT CODE: the exit code, and the closing line once; alone it is the last line.
ends_with() {
  check "$1: exit $2" same "$code" "$2"
  check "$1: one closing line" [ "$(grep -c '^train: exit' "${3-log}")" = 1 ]
  check "$1: it says $2" logged "${3-log}" "^train: exit $2 ("
  [ "$code" = "$2" ] || sed 's/^/    /' "${3-log}" | tail -n 12
}
says() { check "$1" logged log "$2"; logged log "$2" || sed 's/^/    /' log | tail -n 8; }
says_once() {
  check "$1" same "$(grep -c -e "$2" log)" 1
  [ "$(grep -c -e "$2" log)" = 1 ] || sed 's/^/    /' log | tail -n 12
}
last_line_is_closing() { check "$1: the closing line is last" [ "$(tail -n 1 log | cut -c 1-11)" = 'train: exit' ]; }

train tokenize --tokenizer byte --output toy text.txt
[ "$code" = 0 ] || { cat log; exit 1; }
