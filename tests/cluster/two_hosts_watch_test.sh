#!/usr/bin/env bash
# Two hosts, and a rank of the second stops, dies, or all of it is cut off: the job ends, with the host and the rank named.
#   two_hosts_watch_test.sh TRAIN
. "$(dirname "${BASH_SOURCE[0]}")/two_hosts.sh"
limit no
deadline=2
cat >base.json <<JSON
{
  "run": {"directory": "run", "steps": 1000000, "threads_per_rank": 1, "hang_timeout_seconds": $deadline},
  "model": {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16},
  "data": {"train": "synthetic", "sequence_length": 16},
  "batch": {"global": 12, "micro": 1},
  "optimizer": {"lr": 0.001},
  "checkpoint": {"interval_steps": 1000000},
  "log": {"interval_steps": 1, "tensorboard": false}
}
JSON
pid_of_rank() { # RANK
  local file
  for file in /proc/[0-9]*; do
    [ "$(readlink "$file/exe")" = "$binary" ] || continue
    if tr '\0' '\n' <"$file/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then echo "${file#/proc/}"; fi
  done
}
ranks_live() { for file in /proc/[0-9]*; do [ "$(readlink "$file/exe")" != "$binary" ] || return 0; done && return 1; }
# hit WHAT HOSTS COMMAND...: trains on HOSTS until steps pass, does COMMAND, waits for the end: `code`, `milliseconds`.
hit() {
  local what=$1 hosts=$2 job
  local -i tries begin
  shift 2
  rm -rf run
  : >log
  pair "$binary" base.json &
  job=$!
  for ((tries = 0; tries < 600; ++tries)); do
    grep -q '^step ' log && break
    sleep 0.05
  done
  check "$what: it trains" grep -q '^step ' log
  "$@"
  begin=$(date +%s%N)
  wait $job
  code=$?
  milliseconds=$((($(date +%s%N) - begin) / 1000000))
  for ((tries = 0; tries < 100; ++tries)); do
    ranks_live || break
    sleep 0.1
  done
  check "$what: no rank is left" [ $tries -lt 100 ]
}
says() { check "$1: it says so" grep -q -e "$2" log || tail -n 25 log; }
signal() { kill -"$1" "$(pid_of_rank "$2")"; } # SIGNAL RANK

what="a rank of two on the second host stops"
hit "$what" oars-a:1,oars-b:2 signal STOP 2
check "$what: exit 124" [ "$code" = 124 ]
in_time "$what" "$milliseconds"
says "$what" '^train: exit 124 (no progress on oars-b .*rank 2 (stopped'

what="the only rank on the second host stops"
hit "$what" oars-a:1,oars-b:1 signal STOP 1
check "$what: exit 124" [ "$code" = 124 ]
in_time "$what" "$milliseconds"
says "$what" '^train: exit 124 (no progress on oars-a .*elsewhere: oars-b (rank 1)'

what="the only rank on the second host dies"
hit "$what" oars-a:1,oars-b:1 signal KILL 1
check "$what: not well" [ "$code" != 0 ]
in_time "$what" "$milliseconds"

what="it dies, and the launcher does nothing"
OMPI_MCA_orte_abort_on_non_zero_status=0 hit "$what" oars-a:1,oars-b:1 signal KILL 1
check "$what: not well" [ "$code" != 0 ]
in_time "$what" "$milliseconds"
says "$what" '^train: exit'

# What run_with_restart.sh sets, in fewer seconds.
what="the second host is cut off"
export OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=2
hit "$what" oars-a:1,oars-b:1 ip link set v0 down
check "$what: not well" [ "$code" != 0 ]
in_time "$what" "$milliseconds"
says "$what" 'Remote daemon: .* on node oars-b\|elsewhere: oars-b'
finish
