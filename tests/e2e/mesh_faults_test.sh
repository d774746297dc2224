#!/usr/bin/env bash
# Every extent that does not fit is refused before any rank starts work: exit 2, with the numbers, the rule and the
# nearest legal ones, by `train plan` and by ranks alike.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# 6 heads, 2 of keys; 64 columns of the MLP; 32 tokens.
sed -i 's/"hidden_size": 32/"hidden_size": 48/; s/"num_attention_heads": 2/"num_attention_heads": 6/
        s/"num_key_value_heads": 1/"num_key_value_heads": 2/' base.json
# value KEY: of the first error in out.
value() { sed -n 's/.*"'"$1"'": *"\(.*\)",*$/\1/p' out | head -n 1 | sed 's/\\"/"/g'; }
# refused WORLD PATH FOUND LEGAL NEAREST RULE SETTING...: RULE is said to people, by plan and by the ranks.
refused() {
  local world=$1 path=$2 found=$3 legal=$4 nearest=$5 rule=$6 settings=()
  shift 6
  local setting what="$* on $world"
  for setting; do settings+=(--set "$setting"); done
  train plan base.json --world "$world" --json "${settings[@]}"
  ends_with "plan of $what" 2
  check "$what: the path" same "$(value path)" "$path"
  check "$what: what was found" same "$(value found)" "$found"
  check "$what: what is legal" same "$(value legal)" "$legal"
  check "$what: the nearest" same "$(value nearest)" "$nearest"
  check "$what: the rule" same "$(value message)" "$rule"
  ranks "$world" base.json "${settings[@]}"
  ends_with "$what" 2
  says_once "$what: told once, with the numbers" "$path: $rule\. Found $found; legal: $legal"
  check "$what: nothing was written" [ ! -e run ]
}

refused 4 parallel.tensor 4 "1 or 2 for this model" 2 \
  "does not divide 6 attention heads" parallel.tensor=4
refused 3 parallel.tensor 3 "1 or 2 for this model" 2 \
  "does not divide 2 KV heads (nor do they divide it), an MLP of 64 columns" parallel.tensor=3 data.sequence_length=30
refused 3 data.sequence_length 32 "a multiple of 6" 30 \
  "cannot be cut evenly: 2 x context 3 pieces" parallel.context=3
refused 2 data.sequence_length 31 "a multiple of 2" 30 \
  "cannot be cut evenly: sequence_parallel on tensor 2" parallel.tensor=2 data.sequence_length=31
refused 4 parallel.context 4 '1, 2 or 6 with context_method "ulysses", or "ring" or "allgather"' 2 \
  "does not share out the 6 attention heads and 2 KV heads of a rank" parallel.context=4 parallel.context_method=ulysses
refused 4 parallel.zero_group 3 "1, 2 or 4" 2 \
  "does not divide the 4 ranks of data 4 x context 1" parallel.zero_stage=1 parallel.zero_group=3 batch.micro=1
refused 2 parallel.zero_group 2 "leave it out, or set parallel.zero_stage to 1, 2 or 3" "" \
  "has no meaning without ZeRO: every rank holds a full copy" parallel.zero_group=2
refused 3 parallel "3 ranks" "a multiple of 2 ranks" "2 or 4 ranks" \
  "tensor 2 x context 1 x pipeline 1 = 2 does not divide the number of ranks" parallel.tensor=2
refused 4 parallel.data 4 "2 = 4 ranks / (2 x 1 x 1), or leave it out" 2 \
  "does not match the 4 ranks that were started" parallel.tensor=2 parallel.data=4
refused 2 batch.global 5 "a multiple of micro x data ranks = 1 x 2 = 2" "4 or 6" \
  "is not micro x accumulation x data ranks" batch.global=5 batch.micro=1

# What is legal beside them is not refused.
for legal in "parallel.tensor=2" "parallel.context=2 parallel.context_method=ulysses" "parallel.zero_stage=1 parallel.zero_group=2"; do
  # shellcheck disable=SC2086
  train plan base.json --world 4 --json $(printf -- '--set %s ' $legal) --set batch.micro=1
  ends_with "plan of $legal" 0
done
finish
