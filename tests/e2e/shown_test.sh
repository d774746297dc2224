#!/usr/bin/env bash
# What a run shows: report.html, Prometheus' text by port and by file, norms of blocks.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# ---- report.html
train base.json --set run.exit_at_step=10 --set evaluation.interval_steps=5
ends_with "a run" 0
check "it has a report" grep -q '<dt>step</dt><dd>10</dd>' run/report.html
check "the report says why it ended" grep -q '<p>ended: exit_at_step' run/report.html
for word in '<script' 'src=' 'href='; do check "the report has no $word" lacks "$(cat run/report.html)" "$word"; done
train base.json --set evaluation.interval_steps=5
check "a resumed run is one history" grep -q '<dt>restarts</dt><dd>1</dd>' run/report.html
check "its report goes on" grep -q '<dt>step</dt><dd>20</dd>' run/report.html
train base.json --set run.directory=none --set log.report=false --set run.exit_at_step=2
check "none is written where it is not wanted" [ ! -e none/report.html ]
mkdir own && echo mine >own/report.html
train base.json --set run.directory=own
ends_with "a report of somebody else" 2
check "it stands" same "$(cat own/report.html)" mine

# ---- Prometheus
# ask PORT REQUEST: what comes back.
ask() {
  exec 7<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf '%b' "$2" >&7
  cat <&7
  exec 7>&-
}
value() { sed -n "s/^trireme_$1{[^}]*} //p" "$2"; }
long=(--set run.steps=100000 --set evaluation.batches=1 --set log.interval_steps=5 --set 'log.prometheus={"port": 0, "file": "run.prom"}')
start served.log "$binary" base.json --set run.directory=served "${long[@]}"
until_true logged served.log 'for Prometheus: http://127.0.0.1:[0-9]*/metrics'
port=$(sed -n 's|.*http://127.0.0.1:\([0-9]*\)/metrics.*|\1|p' served.log | head -n 1)
served() {
  ask "$port" 'GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n' >answer || return 1
  local steps
  steps=$(value steps_total answer)
  [ "${steps:-0}" -ge 5 ]
}
until_true served
check "the answer is Prometheus' text" grep -q '^Content-Type: text/plain; version=0.0.4' answer
check "the run is a label" grep -q '^trireme_loss{run="served"} [0-9]' answer
check "it runs" same "$(value running answer)" 1
first=$(value last_step_timestamp_seconds answer)
later() { served && [ "$(value last_step_timestamp_seconds answer)" != "$first" ]; }
until_true later
check "the time of the last step goes on" awk -v a="$first" -v b="$(value last_step_timestamp_seconds answer)" 'BEGIN { exit !(b > a) }'
train base.json --set run.directory=second --set "log.prometheus={\"port\": $port}"
ends_with "a port that is taken" 3
says "it names the port" "port $port of 127.0.0.1"
check "nothing has begun there" lacks "$(cat second/metrics.jsonl 2>/dev/null)" '"kind":"step"'
exec 8<>"/dev/tcp/127.0.0.1/$port" 9<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /metr' >&8
head -c 200000 /dev/urandom >&9 2>/dev/null
check "strange clients stand in nobody's way" served
kill -TERM "$job"
wait "$job"
code=$?
exec 8>&- 9>&-
ends_with "a signal, while clients hold on" 75 served.log
check "the file says that it has ended" same "$(value running run.prom)" 0
check "nobody listens" lacks "$(ask "$port" 'GET /metrics HTTP/1.1\r\n\r\n' 2>&1)" 'HTTP/1.1 200'
check "the file has the last step" same "$(value steps_total run.prom)" "$(steps_of served | tail -n 1 | sed 's/"step":\([0-9]*\).*/\1/')"
echo mine >other.prom
train base.json --set run.directory=third --set log.prometheus.file=other.prom
ends_with "a file of somebody else" 2
check "that file stands" same "$(cat other.prom)" mine
train base.json --set run.directory=third --set log.prometheus.file=run.prom --set run.exit_at_step=2
ends_with "a file of an earlier run" 0
check "it is written anew" grep -q '^trireme_steps_total{run="third"} 2$' run.prom
train base.json --set run.directory=fourth --set log.prometheus.file=no/run.prom
ends_with "a file in no folder" 74
train base.json --set run.directory=fourth --set log.prometheus='{}'
ends_with "neither port nor file" 2

# ---- Norms of blocks
blocks_of() { grep '"kind":"blocks"' "$1/metrics.jsonl"; }
# blocks WHAT RANKS DIRECTORY OPTIONS...
blocks() {
  local what=$1 n=$2
  ranks "$n" base.json --set log.interval_steps=4 --set log.blocks=true --set run.steps=10 --set batch.micro=1 \
    --set run.directory="$3" "${@:4}"
  ends_with "$what" 0
  check "$what: lines at each interval and the end" \
    same "$(blocks_of "$3" | sed 's/.*"step":\([0-9]*\).*/\1/' | tr '\n' ' ')" "4 8 10 "
}
rm -rf run
train base.json --set run.steps=10 --set batch.micro=1 --set run.directory=plain
blocks "one rank" 1 one
check "blocks change no step" same "$(steps_of one)" "$(steps_of plain)"
check "blocks change no tensor" same "$(tensors_of "$(folder_of one 10)")" "$(tensors_of "$(folder_of plain 10)")"
check "each block of the model has its norms" same "$(blocks_of one | head -n 1 | grep -o '"name":"[^"]*"' | tr '\n' ' ')" \
  '"name":"embedding" "name":"layer 0" "name":"layer 1" "name":"head" '
# Together they are the norm of all gradients.
together() {
  blocks_of "$1" | head -n 1 | grep -o '"grad_norm":[^,]*' | cut -d: -f2 | awk '{ s += $1 * $1 } END { printf "%.9g", sqrt(s) }'
}
check "together they are the gradient norm" same "$(together one)" \
  "$(steps_of one | sed -n 's/^"step":4,.*"grad_norm":\([^,]*\).*/\1/p' | awk '{ printf "%.9g", $1 }')"
check "a ratio is the update over the weights" awk -v r="$(number update_ratio <(blocks_of one))" \
  -v u="$(number update_norm <(blocks_of one))" -v w="$(number weight_norm <(blocks_of one))" \
  'BEGIN { exit !(r > 0 && (r - u / w) ^ 2 < 1e-20) }'
# The same bits wherever the gradients have the same.
same_blocks() { check "$1" same "$(blocks_of "$2")" "$(blocks_of "$3")"; }
blocks "pipeline" 2 pipeline --set parallel.pipeline=2
same_blocks "a pipeline has the bits of one rank" pipeline one
for stage in 0 1 2 3; do blocks "ZeRO $stage" 2 zero$stage --set parallel.zero_stage=$stage --set batch.accumulation=1 --set batch.global=2; done
for stage in 1 2 3; do same_blocks "ZeRO $stage has the bits of ZeRO 0" zero$stage zero0; done
blocks "tied, pipeline" 2 tied2 --set parallel.pipeline=2 --set model.tie_word_embeddings=true
blocks "tied" 1 tied1 --set model.tie_word_embeddings=true
same_blocks "tied ends have the bits of one rank" tied2 tied1
blocks "speculative steps" 2 ahead --set parallel.pipeline=2 --set parallel.speculative_step=true --set optimizer.clip_grad_norm=1000
blocks "no speculative steps" 2 behind --set parallel.pipeline=2 --set optimizer.clip_grad_norm=1000
same_blocks "steps that run ahead have the same" ahead behind
# Rows of another cut have other trees of sums.
blocks "tensor" 2 tensor --set parallel.tensor=2
for key in grad_norm weight_norm update_norm; do
  check "tensor: $key" awk -v k=$key 'NR == FNR { e[FNR] = $1; next } { d = $1 - e[FNR]; if (d * d > 1e-6 * e[FNR] ^ 2) exit 1; ++n } END { exit n != 12 }' \
    <(blocks_of one | grep -o "\"$key\":[^,]*" | cut -d: -f2) <(blocks_of tensor | grep -o "\"$key\":[^,]*" | cut -d: -f2)
done
rm -rf run
train base.json --set log.interval_steps=4 --set log.blocks=true --set run.steps=10 --set batch.micro=1 --set run.exit_at_step=6
train base.json --set log.interval_steps=4 --set log.blocks=true --set run.steps=10 --set batch.micro=1
same_blocks "a resumed run has those of one that was not stopped" run one
finish
