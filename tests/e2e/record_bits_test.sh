#!/usr/bin/env bash
# A record of bits is equal to itself, and what differs from it is named: the run and its first value, or the machine.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
bits() {
  "$root/scripts/record_bits.sh" "$@" >out 2>log
  code=$?
}
some='^cpu.llama.fp32.(one.none|tensor2.none)$'
bits record bits.txt "$some"
check "a record is made" same $code 0
[ "$code" = 0 ] || cat log
check "it says how many runs it has" logged out "^2 runs recorded in .*bits.txt$"
check "it has every step, the evaluation and tokens of both runs" same \
  "$(grep -c -E '	(step [123] (loss|grad_norm)|evaluation 3 loss|tokens)	' bits.txt)" 16
# 5 layers of 9 parameters, two ends and a norm; tensor ranks hold a shard of each but the 11 norms.
check "it has every parameter and moment" same "$(grep -c '^cpu.llama.fp32.one.none	.* at ' bits.txt)" $((48 * 3))
check "it has every shard" same "$(grep -c '^cpu.llama.fp32.tensor2.none	.* at ' bits.txt)" $(((11 + 37 * 2) * 3))

bits compare bits.txt "$some"
check "the same bits twice" same $code 0
check "that is said" logged out "^2 runs have the bits of "

sed '/tensor2.*parameters.*layers.3.*k_proj.*at 8,0/s/	[^	]*$/	0123/' bits.txt >other.txt
check "one value is another" [ "$(diff bits.txt other.txt | grep -c '^>')" = 1 ]
bits compare other.txt "$some"
check "other bits: exit 1" same $code 1
check "other bits: run and tensor" logged out \
  "^cpu.llama.fp32.tensor2.none: other bits, first in parameters/model.layers.3.self_attn.k_proj.weight at 8,0: recorded 0123, now [0-9a-f]*; 1 of 263 values differ$"
check "other bits: how many runs" logged out "^1 of 2 runs differ from "
alone='^cpu.llama.fp32.one.(none|gone)$'
grep -v 'one.none	step 2 loss' bits.txt >other.txt
bits compare other.txt "$alone"
check "a value that was not there: exit 1" same $code 1
check "a value that was not there" logged out "one.none: other bits, first in step 2 loss: recorded nothing, now [1-9]"
sed 's/one.none/one.gone/' bits.txt >other.txt
bits compare other.txt "$alone"
check "runs that are not in both: exit 1" same $code 1
check "a run that is not in the record" logged out "^cpu.llama.fp32.one.none: not in the record$"
check "a run that is only in the record" logged out "^cpu.llama.fp32.one.gone: in the record, but no run of this list$"

sed 's/^# uses .*/# uses an older CPU/' bits.txt >other.txt
bits compare other.txt "$some"
check "another machine: exit 3" same $code 3
check "another machine: the sentence" logged log "made on another machine or with other versions, on which bits depend"
check "another machine: what differs" logged log "the record: # uses an older CPU"
sed 's/^# made by .*/# made by train 0.0.1 (another commit)/' bits.txt >other.txt
bits compare other.txt "$alone"
check "another commit is what it is for" same $code 0

cat >broken <<'E2'
#!/bin/sh
case "$*" in *parallel.tensor=2*) echo "no such mesh" >&2 && exit 2 ;; esac
exec "$BINARY" "$@"
E2
chmod +x broken
export BINARY=$binary TRIREME_TRAIN=$PWD/broken
bits compare bits.txt "$some"
check "a run that fails now: exit 1" same $code 1
check "a run that fails now" logged out "^cpu.llama.fp32.tensor2.none: the run failed:$"
check "why it fails" logged out "no such mesh"
bits record new.txt "$some"
check "nothing is recorded where a run fails: exit 1" same $code 1
check "nothing is recorded where a run fails" [ ! -e new.txt ]
bits compare bits.txt no-such-run
check "no such run: exit 2" same $code 2
finish
