#!/usr/bin/env bash
# Whether a change of the sources leaves every bit of training alone: a record of tiny runs of every model family, mesh,
# precision, recomputation and device, made with one commit's binaries and compared with another's on the same machine.
#
#   scripts/record_bits.sh record FILE [PATTERN]     runs all, or those whose name matches the regular expression
#   scripts/record_bits.sh compare FILE [PATTERN]    runs them again; names the runs that differ, and their first such value
#   scripts/record_bits.sh list [PATTERN]            their names and options
#
# A record is text: what the machine is (instruction set and versions, on which bits depend), then a line for each run
# and value: loss and gradient norm of every step, the losses of evaluations, sampled tokens, and the hash of every
# shard of parameters and moments that the last checkpoint has. Compare ends with 0 for the same bits, 1 for others, and
# 3 on a machine that is not the record's.
#
# Runs `train` and, for the CUDA backend executed on the host, `train_simt` beside it, both of build/cpu-release or of
# the folder of TRIREME_TRAIN. About 4 minutes on two idle cores.
set -uo pipefail
case ${1-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
usage() { echo "$0: $1; --help says how it is used" >&2 && exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command=${1-} file=${2-} pattern=${3-}
case $command in
record | compare) ((2 <= $# && $# <= 3)) || usage "$command takes a FILE and at most a PATTERN" ;;
list)
  [ $# -le 2 ] || usage "list takes a PATTERN alone"
  pattern=$file
  ;;
*) usage "record, compare or list, not '$command'" ;;
esac

# NAME RANKS DEVICE MODEL OPTIONS: everything that is run, an option `key=value` without --set.
models=(llama llama-tied mistral qwen2 qwen2-tied qwen3 gpt2 gpt2-untied)
recomputes=(none selective full)
turn=0
# on DEVICE MODEL PRECISION MESH RANKS OPTIONS...; recomputation takes turns over all runs but where it is given.
on() {
  local recompute=${recomputes[turn++ % 3]}
  [[ "$*" == *parallel.recompute=* ]] && recompute=''
  echo "$1.$2.$3.$4${recompute:+.$recompute} $5 $1 $2 precision.compute=$3 ${*:6}${recompute:+ parallel.recompute=$recompute}"
}
on_one_rank() { # DEVICE MODEL PRECISION
  for recompute in none selective full; do on "$1" "$2" "$3" "one.$recompute" 1 parallel.recompute=$recompute; done
}
meshes_of_all() { # DEVICE MODEL PRECISION
  local schedule method stage
  on "$@" tensor2 2 parallel.tensor=2
  on "$@" tensor2-whole 2 parallel.tensor=2 parallel.sequence_parallel=false
  for method in ring allgather ulysses; do
    on "$@" context2-$method 2 parallel.context=2 parallel.context_method=$method
  done
  for stage in 0 1 2 3; do on "$@" data2-zero$stage 2 parallel.zero_stage=$stage; done
  for schedule in 1f1b interleaved zb-h1 zb-v; do
    on "$@" pipeline2-$schedule 2 parallel.pipeline=2 parallel.pipeline_schedule=$schedule
  done
  on "$@" pipeline2-zb-h1-zero2 4 parallel.pipeline=2 parallel.pipeline_schedule=zb-h1 parallel.zero_stage=2 batch.global=8
  on "$@" tensor2-pipeline2 4 parallel.tensor=2 parallel.pipeline=2
}
meshes_of_some() { # DEVICE MODEL PRECISION
  local schedule
  on "$@" tensor3 3 parallel.tensor=3
  on "$@" data3-zero0 3 batch.global=6
  on "$@" data3-zero3 3 batch.global=6 parallel.zero_stage=3
  on "$@" data4-groups-of-2 4 parallel.zero_stage=2 parallel.zero_group=2
  on "$@" context2-tensor2 4 parallel.context=2 parallel.tensor=2
  on "$@" data2-context2-zero3 4 parallel.context=2 parallel.zero_stage=3
  for schedule in gpipe zb-h2 zb-auto v-half v-min dualpipe-v; do
    on "$@" pipeline2-$schedule 2 parallel.pipeline=2 parallel.pipeline_schedule=$schedule
  done
  on "$@" pipeline3-uneven 3 parallel.pipeline=3 'parallel.pipeline_layers=[1,3,1]'
  on "$@" pipeline2-speculative 2 parallel.pipeline=2 parallel.pipeline_schedule=zb-h2 parallel.speculative_step=true
  on "$@" library-sums 2 parallel.reduction_order=library
}
other_options() { # DEVICE MODEL PRECISION
  on "$@" documents 1 data.document_mask=true data.mask_eod_loss=true
  on "$@" documents-context2 2 data.document_mask=true parallel.context=2
  on "$@" threads2 1 run.threads_per_rank=2
  on "$@" threads3-tensor2 2 run.threads_per_rank=3 parallel.tensor=2
  on "$@" unclipped 1 optimizer.clip_grad_norm=0
  on "$@" one-large-batch 1 batch.global=12 batch.micro=12
}
runs() {
  local model precision
  for precision in fp32 bf16; do
    for model in "${models[@]}"; do
      on_one_rank cpu "$model" $precision
      meshes_of_all cpu "$model" $precision
    done
    for model in llama-tied qwen3; do
      meshes_of_some cpu $model $precision
      other_options cpu $model $precision
    done
    for model in "${models[@]}"; do on cuda-host "$model" $precision one 1; done
    on cuda-host llama $precision tensor2 2 parallel.tensor=2
    on cuda-host qwen3 $precision tensor2 2 parallel.tensor=2
    on cuda-host gpt2 $precision tensor2-whole 2 parallel.tensor=2 parallel.sequence_parallel=false
    on cuda-host mistral $precision context2-ring 2 parallel.context=2
    on cuda-host qwen2 $precision context2-ulysses 2 parallel.context=2 parallel.context_method=ulysses
    on cuda-host llama-tied $precision data2-zero0 2
    on cuda-host gpt2-untied $precision data2-zero2 2 parallel.zero_stage=2
    on cuda-host qwen3 $precision data2-zero3 2 parallel.zero_stage=3
    on cuda-host gpt2 $precision pipeline2-1f1b 2 parallel.pipeline=2
    on cuda-host qwen2-tied $precision pipeline2-zb-v 2 parallel.pipeline=2 parallel.pipeline_schedule=zb-v
    on cuda-host llama $precision without-graph 1 run.cuda_graph=off
    on cuda-host llama $precision documents 1 data.document_mask=true
  done
}
runs=$(runs | awk -v pattern="$pattern" '$1 ~ pattern')
[ -n "$runs" ] || usage "no run is named like $pattern"
if [ "$command" = list ]; then echo "$runs" && exit 0; fi

. "$root/scripts/find_train.sh"
train=$(find_train "$root/scripts") || exit 3
simt=$(dirname "$train")/train_simt
if [[ $runs == *' cuda-host '* ]] && [ ! -x "$simt" ]; then
  echo "$simt is missing, which the runs of cuda-host need: build train_simt, or give a PATTERN such as ^cpu" >&2
  exit 3
fi
[ "$command" = record ] || [ -r "$file" ] || { echo "$file cannot be read" >&2 && exit 2; }
scratch=$(mktemp -d)
end() {
  # shellcheck disable=SC2046  # words: process numbers
  kill $(jobs -p) 2>/dev/null && wait
  rm -rf "$scratch"
}
trap end EXIT
export NO_COLOR=1 TRIREME_SHARE_GPU=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
[[ $file == /* ]] || file=$PWD/$file

version=$("$train" --version 2>/dev/null) || exit 3
machine=$(sed -n 's/^  \([^ ].*\)/# \1/p' <<<"$version" | grep -v '^# GPUs'
  grep -m 1 '^model name' /proc/cpuinfo | sed 's/^[^:]*/# processor/')
commit="# made by $(head -n 1 <<<"$version")"
if [ "$command" = compare ] && [ "$machine" != "$(grep '^# ' "$file" | grep -v '^# made by')" ]; then
  echo "$file was made on another machine or with other versions, on which bits depend; compare it where it was made:" >&2
  diff <(grep '^# ' "$file" | grep -v '^# made by') <(echo "$machine") | grep '^[<>]' | sed 's/^< /  the record: /; s/^> /  here: /' >&2
  exit 3
fi

cd "$scratch" || exit 1
awk 'BEGIN { for (i = 0; i < 90; ++i) print "stroke", i, "of", i * 7919 % 1009, "oars" }' >text.txt
"$train" tokenize --tokenizer byte --output toy --jsonl text <(sed 's/.*/{"text": "&"}/' text.txt) >log 2>&1 || { cat log >&2 && exit 1; }
# Nothing divides by more than it must: 5 layers, a vocabulary of 259, windows of 24.
cat >base.json <<'E2'
{"run": {"directory": "run", "steps": 3, "threads_per_rank": 1, "resume": "never"},
 "data": {"train": "../toy", "validation": "../toy", "sequence_length": 24},
 "batch": {"global": 4, "micro": 1}, "optimizer": {"lr": 0.01}, "lr_schedule": {"kind": "constant"},
 "evaluation": {"batches": 1}, "checkpoint": {"interval_steps": 1000, "async": false},
 "log": {"interval_steps": 1, "tensorboard": false}}
E2
model() { # model NAME KEYS: sizes that all have, and those of a family
  echo '{"model": {"vocab_size": 259, "num_hidden_layers": 5, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 84, "max_position_embeddings": 64, "initializer_range": 0.1, '"$2"'}}' >"$1.json"
}
model llama '"model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": false'
model llama-tied '"model_type": "llama", "num_key_value_heads": 6, "tie_word_embeddings": true, "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}'
model mistral '"model_type": "mistral", "num_key_value_heads": 2, "tie_word_embeddings": false, "sliding_window": 24'
model qwen2 '"model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": false'
model qwen2-tied '"model_type": "qwen2", "num_key_value_heads": 1, "tie_word_embeddings": true'
model qwen3 '"model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 12, "tie_word_embeddings": false'
for tied in true false; do
  name=gpt2 && [ $tied = true ] || name=gpt2-untied
  echo '{"model": {"model_type": "gpt2", "vocab_size": 259, "n_layer": 5, "n_embd": 48, "n_head": 6, "n_inner": 84, "n_positions": 64, "initializer_range": 0.1, "tie_word_embeddings": '$tied'}}' >$name.json
done

# on_ranks N BINARY ARGUMENTS...
on_ranks() {
  if [ "$1" = 1 ]; then "${@:2}"; else TRIREME_TRAIN=$2 "$root/scripts/run.sh" -n "$1" "${@:3}"; fi
}
# generate NAME RANKS BINARY: sampled with the cache; of some runs on the mesh that generation chooses for their ranks.
generate() {
  local ranks=1
  if [[ $1 =~ \.(tensor2|tensor2-pipeline2)\. ]]; then ranks=$2; fi
  on_ranks "$ranks" "$3" generate --checkpoint run --token-ids 83,84,82 --max-new-tokens 12 --temperature 1 --seed 7
}
# values NAME: what a run has left, as lines of the record.
values() {
  sed -n 's/^{"kind":"step","step":\([0-9]*\),"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/step \1 loss\t\2\nstep \1 grad_norm\t\3/p
    s/^{"kind":"evaluation","step":\([0-9]*\),"loss":\([^,]*\),.*/evaluation \1 loss\t\2/p' run/metrics.jsonl
  printf 'tokens\t%s\n' "$(cat tokens)"
  sed -n '/^ "tensors"/,$p' run/checkpoints/step-*3/manifest.json | awk -F '"' -v OFS='\t' '
    /^  "/ { name = $2 }
    /^     "offset"/ { offset = $3; gsub(/[^0-9,]/, "", offset); sub(/,$/, "", offset) }
    /"xxh3_128"/ && name { print name " at " offset, substr($4, 1, 16) }' | sort -r
}
# one NAME RANKS DEVICE MODEL OPTIONS...: the run's lines on standard output; fails with its log in `log`.
one() {
  local name=$1 ranks=$2 device=$3 model=$4 binary=$train option lines
  local -a sets=(--set "run.device=$device")
  shift 4
  for option; do sets+=(--set "$option"); done
  [ "$device" = cpu ] || binary=$simt
  rm -rf run
  on_ranks "$ranks" "$binary" ../base.json "../$model.json" "${sets[@]}" >log 2>&1 || return
  generate "$name" "$ranks" "$binary" >tokens 2>log || return
  lines=$(values)
  [[ $lines == *"step 3 grad_norm"*"parameters/"* ]] || { echo "it left no steps or no tensors that are known here" >log && return 1; }
  sed "s/^/$name\t/" <<<"$lines"
}
# Each second run, into values/NUMBER; the log of one that fails beside it.
work() { # work FIRST
  local -i number=0
  local -a run
  mkdir -p "$1/.tmp" && cd "$1" || return
  export TMPDIR=$PWD/.tmp # Open MPI's, which an mpirun clears away when it ends
  while read -r -a run; do
    if ((number++ % 2 != $1)); then continue; fi
    one "${run[@]}" >values || cp log "../values/$((number - 1)).failed"
    mv values "../values/$((number - 1))"
  done <<<"$runs"
}
mkdir values
for half in 0 1; do work $half & done
count=$(wc -l <<<"$runs")

# judged NAME NUMBER: what compare says of a run; nothing where its bits are the record's.
judged() {
  if [ -e "values/$2.failed" ]; then
    echo "$1: the run failed:" && tail -n 15 "values/$2.failed" | sed 's/^/    /'
    return
  fi
  awk -F '\t' -v run="$1" '$1 == run' "$file" | awk -F '\t' -v run="$1" '
    FILENAME == "-" { recorded[$2] = $3; order[++n] = $2; ++known; next }
    { now[$2] = $3; if (!($2 in recorded)) order[++n] = $2 }
    function text(values, what) { return what in values ? values[what] : "nothing" }
    END {
      for (i = 1; i <= n; ++i) if (text(recorded, order[i]) != text(now, order[i]) && !differ++) first = order[i]
      if (!known) print run ": not in the record"
      else if (differ) printf "%s: other bits, first in %s: recorded %s, now %s; %d of %d values differ\n", run, first,
        text(recorded, first), text(now, first), differ, n
    }' - "values/$2"
}
differ=0 told=$SECONDS number=0
[ "$command" = compare ] || printf '%s\n%s\n' "$commit" "$machine" >record
while read -r name _; do
  until [ -e "values/$number" ]; do sleep 0.05; done
  if [ "$command" = compare ]; then
    said=$(judged "$name" $number)
    if [ -n "$said" ]; then echo "$said" && differ=$((differ + 1)); fi
  elif [ -e "values/$number.failed" ]; then
    echo "$name: the run failed, and nothing is recorded:" >&2 && tail -n 15 "values/$number.failed" >&2
    exit 1
  else
    cat "values/$number" >>record
  fi
  number=$((number + 1))
  if ((SECONDS >= told + 10)); then echo "$number of $count runs" >&2 && told=$SECONDS; fi
done <<<"$runs"
if [ "$command" = compare ]; then
  gone=$(awk -F '\t' -v pattern="$pattern" '!/^#/ && $1 ~ pattern && !seen[$1]++ { print $1 }' "$file" | grep -vxFf <(cut -d ' ' -f 1 <<<"$runs"))
  if [ -n "$gone" ]; then sed 's/$/: in the record, but no run of this list/' <<<"$gone" && differ=$((differ + $(wc -l <<<"$gone"))); fi
fi
if [ "$command" = record ]; then cp record "$file" && echo "$count runs recorded in $file" && exit 0 || exit 1; fi
[ $differ = 0 ] || { echo "$differ of $count runs differ from $file" && exit 1; }
echo "$count runs have the bits of $file"
