#!/usr/bin/env bash
# Two hosts train, what a step sends is what `train plan` says, and the losses are those of one host.
#   two_hosts_test.sh TRAIN
# TWO_HOSTS_TABLE=FILE measures overlap too, and writes the figures there as Markdown.
. "$(dirname "${BASH_SOURCE[0]}")/two_hosts.sh"

cat >base.json <<'JSON'
{
  "run": {"directory": "run", "steps": 2, "threads_per_rank": 1},
  "model": {"model_type": "llama", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256},
  "data": {"train": "synthetic", "sequence_length": 256},
  "batch": {"global": 4, "micro": 2},
  "optimizer": {"lr": 0.001},
  "log": {"interval_steps": 1, "tensorboard": false}
}
JSON

# Bytes and packets that host A has sent and received.
counters() {
  local file
  for file in tx_bytes rx_bytes tx_packets rx_packets; do cat "/sys/class/net/v0/statistics/$file"; done | tr '\n' ' '
}
options_of() { # options_of KEY=VALUE...: into `options`
  local set
  options=()
  for set in "$@"; do options+=(--set "$set"); done
}
run_of() { # run_of STEPS OPTION...
  local steps=$1
  shift
  rm -rf run
  pair "$binary" base.json --set "run.steps=$steps" "$@"
  code=$?
  [ $code = 0 ] || tail -n 12 log
}
# planned OPTION...: bytes that a rank sends in a step, over all axes, by the plan.
planned() {
  "$binary" plan base.json --world 2 --json "$@" 2>/dev/null |
    awk '/"traffic_bytes"/ { on = 1 } /"errors"/ { on = 0 } on && match($0, /[0-9]+,?$/) { sum += $NF } END { print sum + 0 }'
}
# median KEY: of the steps after the second, in ms.
median() {
  sed -n '/^{"kind":"step"/s/.*"'"$1"'":\([-+.0-9e]*\).*/\1/p' run/metrics.jsonl | tail -n +3 | sort -g |
    awk '{ v[NR] = $1 } END { printf "%.1f", 500 * (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) }'
}
losses() { sed -n 's/^{"kind":"step",\("step":.*"lr"\).*/\1/p' run/metrics.jsonl; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(b > 0 && a >= 0.95 * b && a <= 1.05 * b) }'; }
same() { [ "$1" = "$2" ]; }

table=${TWO_HOSTS_TABLE:-$scratch/table.md}
case $delay in
none) echo "This kernel has no netem and there is no python3: the link has its rate and no delay." ;;
*) echo "The link: $rate_mbit Mbit/s by tbf, 1 ms each way by $delay." ;;
esac >"$table"

# Two runs of different lengths: start, end and the save cancel.
limit yes
{
  echo
  echo "| mesh | plan, bytes of a rank and step | A to B | B to A | most off |"
  echo "|---|---|---|---|---|"
} >>"$table"
while read -r name sets; do
  name=${name//_/ }
  # shellcheck disable=SC2086
  options_of $sets
  read -r -a start < <(counters)
  run_of 2 "${options[@]}"
  check "$name: two hosts train" [ $code = 0 ]
  read -r -a middle < <(counters)
  run_of 6 "${options[@]}"
  check "$name: and longer" same "$(losses | wc -l)" 6
  read -r -a end < <(counters)
  sent=$(((end[0] - 2 * middle[0] + start[0]) / 4))
  received=$(((end[1] - 2 * middle[1] + start[1]) / 4))
  plan=$(planned "${options[@]}")
  for way in sent received; do
    check "$name: bytes $way (${!way}) are the plan's ($plan) within 5 %" near "${!way}" "$plan"
  done
  awk -v n="$name" -v p="$plan" -v s="$sent" -v r="$received" 'BEGIN {
    if (p == 0) exit
    a = s / p - 1; b = r / p - 1
    printf "| %s | %d | %d | %d | %+.2f %% |\n", n, p, s, r, 100 * (a * a > b * b ? a : b) }' >>"$table"
done <<'MESHES'
data_2,_zero_0 parallel.data=2 parallel.zero_stage=0
data_2,_zero_3 parallel.data=2 parallel.zero_stage=3
tensor_2 parallel.tensor=2
context_2,_ring parallel.context=2 parallel.context_method=ring
pipeline_2 parallel.pipeline=2
MESHES

# The wire changes no bits: the same ranks on one host.
options_of parallel.data=2
run_of 3 "${options[@]}"
apart=$(losses)
hosts=oars-a:2 btl=vader,self run_of 3 "${options[@]}"
check "one host trains" same "$(losses | wc -l)" 3
check "two hosts compute what one does" same "$apart" "$(losses)"

# A preflight of both: what crosses the link, and a folder that is another one on host B.
limit yes
# Again where other work of this machine holds one up, which is named by right.
for _ in {1..6}; do
  pair "$binary" preflight base.json --json
  code=$?
  [ $code = 3 ] || break
  tail -n 1 log
done
check "preflight: two hosts are well" [ $code = 0 ]
check "preflight: two hosts" [ "$(grep -c '"name": "oars-' out)" = 2 ]
check "preflight: clocks were compared" grep -q '"found": "within .* of each other"' out
rate=$(grep -A 3 '"name": "pairs"' out | sed -n 's/.*"found": "\([0-9.]*\) MB.*/\1/p')
check "preflight: the link has $rate MB/s, at most its 125" awk -v r="${rate:-0}" 'BEGIN { exit !(r > 0 && r <= 126) }'
mkdir shared && on_b mount -t tmpfs none "$scratch/shared" || exit 1
pair sh -c "cd shared && exec '$binary' preflight --json"
code=$?
check "preflight: a folder of host B's own is odd" [ $code = 3 ]
check "preflight: it is named" grep -q 'what rank 0 writes does not appear at rank 1 on oars-b' out
check "preflight: nothing stays behind" [ -z "$(ls -A shared; on_b ls -A "$scratch/shared")" ]
on_b umount "$scratch/shared"
printf 'And the LORD said unto Moses, %s.\n' {1..400} >text.txt
"$binary" tokenize --tokenizer byte --output toy text.txt 2>log && "$binary" tokenize --tokenizer byte --output cut - \
  < <(head -n 300 text.txt) 2>log || exit 1
for end in bin idx; do on_b mount --bind "$scratch/cut.$end" "$scratch/toy.$end" || exit 1; done
pair "$binary" preflight base.json --json --set data.train=toy --set tokenizer=byte
code=$?
check "preflight: data that differ are odd" [ $code = 3 ]
check "preflight: their host is named" grep -q '"found": "rank 1 on oars-b: toy: ' out
for end in bin idx; do on_b umount "$scratch/toy.$end"; done

# Generation cuts layers within a host; over hosts they follow each other.
greedy=(generate --checkpoint run --token-ids 7,8,9 --temperature 0 --max-new-tokens 12)
"$binary" "${greedy[@]}" >alone 2>log
check "one rank generates" [ $? = 0 ]
pair "$binary" "${greedy[@]}"
check "two hosts generate" [ $? = 0 ]
check "two hosts generate what one rank does" cmp -s out alone
check "a host has its layers" grep -q '^generating with pipeline 2 x tensor 1, ' log

# Figures, where somebody asks: wall clock is no matter for a test on a machine that others use.
[ -n "${TWO_HOSTS_TABLE-}" ] || { cat "$table"; finish; exit; }
{
  echo
  echo "| mesh | eager messages | transfer, ms | of it could be hidden, ms | step, ms | exposed, ms | exposed without limits, ms | hidden |"
  echo "|---|---|---|---|---|---|---|---|"
} >>"$table"
# overlap MESH AXIS PASSES PART EAGER KEY=VALUE...: a row. PASSES is the share of the passes that the axis' transfers can hide
# behind, PART the share of the transfers that has anything to hide behind.
overlap() {
  local mesh=$1 axis=$2 passes=$3 part=$4 eager=$5
  options_of "${@:6}"
  local plan compute unlimited
  plan=$(planned "${options[@]}")
  limit no
  run_of 14 "${options[@]}"
  compute=$(median forward_backward) unlimited=$(median "$axis")
  limit yes
  run_of 14 "${options[@]}"
  check "$mesh, eager $eager: it trains" [ $code = 0 ]
  awk -v m="$mesh" -v e="$eager" -v p="$plan" -v rate=$rate_mbit -v c="$compute" -v passes="$passes" -v part="$part" \
    -v s="$(median step_seconds)" -v x="$(median "$axis")" -v u="$unlimited" 'BEGIN {
    t = p * 8 / rate / 1000
    c *= passes
    h = t * part < c ? t * part : c
    printf "| %s | %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f %% |\n", m, e, t, h, s, x, u, 100 * (t - x) / h }' \
    >>"$table"
}
deep=(batch.global=8 batch.micro=4 model.hidden_size=192 model.intermediate_size=512 model.num_hidden_layers=12)
# What Open MPI takes by itself, and what the program sets where nobody did. Sums of gradients can hide behind backward,
# two thirds of the passes; gathers of stage 3 behind all of them.
export OMPI_MCA_btl_tcp_eager_limit=65536
overlap "data 2, zero 0" data 0.67 1 "Open MPI's own, to 64 KiB" "${deep[@]}" parallel.data=2 parallel.zero_stage=0
overlap "data 2, zero 3" data 1 1 "Open MPI's own, to 64 KiB" "${deep[@]}" parallel.data=2 parallel.zero_stage=3
unset OMPI_MCA_btl_tcp_eager_limit
ours="the program's, to 512 KiB"
overlap "data 2, zero 0" data 0.67 1 "$ours" "${deep[@]}" parallel.data=2 parallel.zero_stage=0
overlap "data 2, zero 3" data 1 1 "$ours" "${deep[@]}" parallel.data=2 parallel.zero_stage=3
# Sequences so long that attention, the only thing that the ring hides behind, takes nearly all of the passes. On two places
# three of four hops have a block to hide behind; the one that brings the gradients home has none.
overlap "context 2, ring, 4,096 tokens" context 0.9 0.75 "$ours" data.sequence_length=4096 model.max_position_embeddings=4096 \
  batch.global=1 batch.micro=1 model.hidden_size=192 model.intermediate_size=512 parallel.context=2 parallel.context_method=ring
# Layers so wide that products take longer than their operands' way. A place multiplies its own rows, half of all, while the
# other's come.
overlap "tensor 2, sequence parallel, hidden 1,536" tensor 0.5 1 "$ours" data.sequence_length=512 \
  model.max_position_embeddings=512 batch.global=1 batch.micro=1 model.hidden_size=1536 model.intermediate_size=4096 \
  model.num_hidden_layers=2 model.num_attention_heads=12 model.num_key_value_heads=12 parallel.tensor=2
cat "$table"
finish
