#!/usr/bin/env bash
# Two hosts on one machine: two network namespaces with hostnames of their own, joined by a veth of 1 Gbit/s, Open MPI
# over TCP between them.
#   two_hosts_test.sh TRAIN
# They train, what a step sends is what `train plan` says, and the losses are those of one host. Needs root or user
# namespaces, `ip` and `tc`; without them it is skipped (77). TWO_HOSTS_TABLE=FILE measures overlap too, and writes
# the figures there as Markdown.
rate_mbit=1000
if [ "${2-}" != inside ]; then
  binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
  skip() {
    echo "skipped: $*" >&2
    exit 77
  }
  for tool in ip tc unshare nsenter mpirun; do command -v "$tool" >/dev/null || skip "no $tool here"; done
  # All of it lives in a process namespace of its own, so nothing outlives the test.
  spaces=(--net --uts --mount --ipc --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" = 0 ] || spaces=(--map-root-user "${spaces[@]}")
  unshare "${spaces[@]}" sh -c '
    hostname oars-a && mount -t sysfs sys /sys && ip link add v0 type veth peer name v1 &&
    tc qdisc add dev v0 root tbf rate 1gbit burst 128kb latency 50ms' >/dev/null 2>&1 ||
    skip "this kernel or these rights allow no namespaces, veth or tc"
  exec unshare "${spaces[@]}" "${BASH_SOURCE[0]}" "$binary" inside
fi

binary=$1
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
cd "$scratch" || exit 1
export OMPI_MCA_btl_vader_single_copy_mechanism=none NO_COLOR=1 OMP_NUM_THREADS=1

printf '127.0.0.1 localhost\n10.77.0.1 oars-a\n10.77.0.2 oars-b\n' >hosts
cat /proc/sys/kernel/random/uuid >boot_of_b
mount --make-rprivate / && mount -t sysfs sys /sys && mount --bind hosts /etc/hosts && hostname oars-a || exit 1
# Ranks that share a kernel share memory; a start of its own makes host B another one.
unshare --net --uts --mount sh -c '
  hostname oars-b && mount --bind boot_of_b /proc/sys/kernel/random/boot_id && : >ready_b && exec sleep infinity' &
other=$!
wait_for ready_b
on_b() { nsenter --target "$other" --net --uts --mount "$@"; }

up() { # up ADDRESS LINK [on_b]
  local on=${3-}
  $on ip link set lo up
  # Jumbo frames: of standard ones the headers of TCP and IP alone are 4.6 %.
  $on ip link set "$2" mtu 9000
  $on ip address add "$1/24" dev "$2"
  $on ip link set "$2" up
}
ip link add v0 type veth peer name v1
delay=none
if tc qdisc add dev v0 root netem delay 1ms 2>/dev/null; then
  delay=netem
  tc qdisc del dev v0 root
elif command -v python3 >/dev/null; then
  # The kernel has no netem: v0 - m0, a program that hands packets on 1 ms late, m1 - v1.
  delay=program
  ip link del v0
  ip link add v0 type veth peer name m0
  ip link add m1 type veth peer name v1
  unshare --net python3 "$root/tests/cluster/link_delay.py" m0 m1 0.001 2>delay.log &
  between=$!
  until [ "$(readlink /proc/$between/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
  for link in m0 m1; do
    ip link set "$link" mtu 9000 netns "$between"
    nsenter --target "$between" --net ip link set "$link" up
  done
fi
ip link set v1 netns "$other"
up 10.77.0.1 v0
up 10.77.0.2 v1 on_b

limit() { # limit yes|no: 1 Gbit/s and 1 ms each way, or nothing but the rate of memory (and the program's delay)
  tc qdisc del dev v0 root 2>/dev/null
  on_b tc qdisc del dev v1 root 2>/dev/null
  [ "$1" = yes ] || return 0
  local on link
  for link in v0 v1; do
    [ $link = v0 ] && on= || on=on_b
    $on tc qdisc add dev $link root handle 1: tbf rate ${rate_mbit}mbit burst 128kb latency 50ms || exit 1
    [ $delay != netem ] || $on tc qdisc add dev $link parent 1:1 netem delay 1ms limit 10000 || exit 1
  done
}

# What mpirun calls in the place of ssh: AGENT HOST COMMAND...
cat >agent <<AGENT
#!/bin/sh
shift
exec nsenter --target $other --net --uts --mount sh -c "cd '$scratch'; \$*"
AGENT
chmod +x agent
pair() { # pair COMMAND...: one rank on each host, or where `hosts` says
  timeout 120 mpirun --allow-run-as-root --host "${hosts:-oars-a:1,oars-b:1}" -n 2 --bind-to none \
    --mca plm_rsh_agent "$scratch/agent" --mca btl "${btl:-tcp,self}" --mca pml ob1 --mca btl_tcp_if_include 10.77.0.0/24 \
    --mca oob_tcp_if_include 10.77.0.0/24 -x NO_COLOR -x OMP_NUM_THREADS "$@" >out 2>log </dev/null
}

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
