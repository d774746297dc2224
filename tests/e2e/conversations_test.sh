#!/usr/bin/env bash
# Conversations from JSON lines to an answer: a mask and packed windows train the same model on every mesh, over orders, blends,
# splits and a resume; steps without targets are skipped; masks and windows that do not fit are refused; a chat is answered.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
golden=$root/tests/golden
mkdir tok && cp "$golden/tokenizer/qwen.tokenizer.json" tok/tokenizer.json
# \n stands for a line feed in JSON as in a Jinja text.
grep -o '"chatml":"[^"]*"' "$golden/chat/chat.json" | head -n 1 | sed 's/^"chatml":"\(.*\)"$/\1/' >tok/chat_template.jinja
awk 'BEGIN { for (i = 0; i < 120; ++i) {
  printf "{\"messages\": [{\"role\": \"user\", \"content\": \"stroke %d\"}, ", i
  printf "{\"role\": \"assistant\", \"content\": \"%s\"}]}\n", substr("of many oars and the sea", 1, 3 + i * 7 % 20) } }' >chat.jsonl

train tokenize --tokenizer tok --messages messages --output chat chat.jsonl
ends_with "conversations" 0
check "conversations: the model's own template" logged chat.json '"chat_template": "chatml"'
check "conversations: a byte for each token" [ "$(wc -c <chat.mask)" = "$(number tokens chat.json)" ]
check "conversations: some count" [ "$(tr -d '\000' <chat.mask | wc -c)" = "$(number targets chat.json)" ]
train tokenize --tokenizer tok --messages messages --pack 64 --output packed chat.jsonl
ends_with "packed" 0
check "packed: whole windows" [ "$(number tokens packed.json)" = $((64 * $(number documents packed.json) + 1)) ]
check "packed: nothing is lost" [ "$(number targets packed.json)" = "$(number targets chat.json)" ]
echo '{"messages": [{"role": "user", "content": 3}]}' >bad.jsonl
train tokenize --tokenizer tok --messages messages --output bad bad.jsonl
ends_with "a faulty message" 74
says "a faulty message: it is named" "bad.jsonl: line 1: messages\[0\].content: is an integer, not a string"

common=(base.json --set tokenizer=tok/tokenizer.json --set model.vocab_size="$(number vocab_size chat.json)" --set data.sequence_length=64
        --set run.steps=8 --set lr_schedule.warmup_steps=2)
packed=("${common[@]}" --set data.train=packed --set data.validation=packed --set data.document_mask=true)
losses_of() { sed -n 's/^{"kind":"step".*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
close() { paste <(losses_of "$1") <(losses_of "$2") | awk '{ d = $1 - $2; if (d < -2e-5 || d > 2e-5) bad = 1 } END { exit NR != 8 || bad }'; }
train "${packed[@]}"
ends_with "one rank" 0
check "one rank: it learns" awk "BEGIN { exit !($(losses_of run | tail -n 1) < $(losses_of run | head -n 1) - 0.3) }"
mesh() { # NAME RANKS OPTIONS...
  local name=$1 n=$2
  shift 2
  ranks "$n" "${packed[@]}" --set run.directory="$name" "$@"
  ends_with "$name" 0
  check "$name: the losses of one rank" close "$name" run
}
mesh data 2
mesh tensor 2 --set parallel.tensor=2
mesh context 2 --set parallel.context=2
mesh pipeline 2 --set parallel.pipeline=2 --set parallel.zero_stage=1
train "${packed[@]}" --set run.directory=again --set run.exit_at_step=3
train "${packed[@]}" --set run.directory=again
same_run "a resume" again 8 run

# A mask beside tokens of one's own: bytes, half of each window counts. Windows 4 to 7, the second step, have no target.
tokens=$(number tokens toy.json)
awk -v n="$tokens" 'BEGIN { for (i = 0; i < n; ++i) printf "%d", (i > 128 && i <= 256) ? 0 : i % 2 }' | tr '01' '\000\001' >toy.mask
own=(base.json --set run.steps=5 --set data.order=sequential --set lr_schedule.warmup_steps=2)
train "${own[@]}" --set run.directory=skips
ends_with "a step without targets" 0
check "a step without targets: it is skipped" \
  [ "$(grep -c '^{"kind":"skip","step":2,"reason":"no_targets","rank":null,"tensor":null}' skips/metrics.jsonl)" = 1 ]
check "a step without targets: it alone" [ "$(grep -c '"kind":"skip"' skips/metrics.jsonl)" = 1 ]
check "a step without targets: it has no loss" same "$(losses_of skips | sed -n 2p)" null
train "${own[@]}" --set run.directory=speculative --set parallel.speculative_step=true
same_run "speculative steps" speculative 5 skips
for order in shuffled megatron; do
  ranks 2 "${common[@]}" --set run.directory=$order --set data.order=$order --set data.train=chat --set data.split=9,1 \
    --set data.validation=null
  ends_with "order $order with a split" 0
done
train evaluate --checkpoint skips --data toy --json
ends_with "evaluate" 0
check "evaluate: targets that count" \
  [ "$(number tokens out)" = "$(head -c $(((tokens - 1) / 32 * 32 + 1)) toy.mask | tail -c +2 | tr -d '\000' | wc -c)" ]

head -c 100 toy.mask >short.mask && cp toy.bin short.bin && cp toy.idx short.idx
train "${own[@]}" --set run.directory=no --set data.train=short
ends_with "a mask of another length" 74
says "a mask of another length: it is named" "short.mask: has 100 bytes"
train "${packed[@]}" --set run.directory=no --set data.sequence_length=32
ends_with "windows of another length" 2
says "windows of another length: what to set" "packed is packed in windows of 64"
head -c "$tokens" /dev/zero >toy.mask
train "${own[@]}" --set run.directory=nothing --set run.steps=12
ends_with "no targets at all: no divergence" 0
check "no targets at all: all steps are skipped" [ "$(grep -c '"reason":"no_targets"' nothing/metrics.jsonl)" = 12 ]

train "${packed[@]}" --set run.directory=talks --set run.steps=120 --set optimizer.lr=0.01
chat=(generate --checkpoint talks --chat --temperature 0 --max-new-tokens 12)
train "${chat[@]}" --prompt "stroke 7" --json
ends_with "a chat" 0
cp out one.json
end=$(grep -o '"id":[0-9]*,"content":"<|im_end|>"' tok/tokenizer.json | sed 's/[^0-9]*\([0-9]*\).*/\1/')
check "a chat: it ends with its turn" grep -q "[0-9],$end\]" out
check "a chat: before all tokens" [ "$(number new_tokens out)" -lt 12 ]
check "a chat: the end is not printed" lacks "$(sed 's/,"token_ids.*//; s/.*"text"//' out)" im_end
train "${chat[@]}" --prompt '[{"role": "user", "content": "stroke 7"}]' --json
check "a chat: messages of JSON are the same" same "$(sed 's/.*"token_ids"//' out)" "$(sed 's/.*"token_ids"//' one.json)"
ranks 2 "${chat[@]}" --prompt "stroke 7" --json
check "a chat: two ranks answer alike" same_file out one.json
train "${chat[@]}" --prompt '[{"role": "assistant", "content": "a"}]'
ends_with "a chat without a question" 2
train "${chat[@]}" --token-ids 1,2
ends_with "a chat of ids" 2
train "${chat[@]}" --prompt a --chat-template gemma
ends_with "a template whose tokens are not there" 2
says "a template whose tokens are not there: it is named" "has no token <end_of_turn>"
finish
