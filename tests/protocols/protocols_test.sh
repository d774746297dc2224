#!/usr/bin/env bash
# Protocols of barriers, as models that spin checks in every order of events there is; and each model with a planted fault.
#   protocols_test.sh
command -v spin >/dev/null || { echo "no spin (scripts/setup.sh --cuda): models are not checked" && exit 77; }
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/check.sh"

# model NAME DEFINITIONS...: $text is what the search says, "errors: 0" where it went through every state.
model() {
  local name=$1
  shift
  rm -rf "$scratch/model" && mkdir "$scratch/model"
  text=$(cd "$scratch/model" && spin "$@" -a "$root/tests/protocols/$name.pml" && gcc -O2 -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -w -o pan pan.c &&
    timeout 300 ./pan -m100000 2>&1)
}
holds() { # WHAT NAME DEFINITIONS...
  local what=$1
  shift
  model "$@"
  check "$what" contains "$text" "errors: 0" || tail -n 30 <<<"$text"
  check "$what: every state was reached" lacks "$text" "Search not completed"
  check "$what: nothing was cut" lacks "$text" "max search depth too small"
}
is_found() { # WHAT SENTENCE NAME DEFINITIONS...
  local what=$1 sentence=$2
  shift 2
  model "$@"
  check "found: $what" contains "$text" "$sentence" || tail -n 30 <<<"$text"
}

holds "the ring of a cluster of two blocks" gemm_ring -DSTEPS=5
holds "the ring of a block alone, three stages" gemm_ring -DBLOCKS=1 -DSTAGES=3 -DSTEPS=8
# Three warpgroups in a cluster of two are 57 million states: searched by hand, without an error.
holds "the ring of a block alone, three warpgroups" gemm_ring -DBLOCKS=1 -DCONSUMERS=3
few=(gemm_ring -DCONSUMERS=1)
is_found "stages reported to one's own block alone" "b_coming" "${few[@]}" -DFAULT=1
is_found "a stage reported before its product has ended" "readers" "${few[@]}" -DFAULT=2
is_found "bytes of the other block that nobody expects" "==step" "${few[@]}" -DFAULT=3
is_found "a wait for the phase that is to come" "invalid end state" "${few[@]}" -DFAULT=4
is_found "a block that ends before the others" "ended" "${few[@]}" -DFAULT=5
is_found "a parity that does not flip" "a_coming" "${few[@]}" -DFAULT=6

holds "attention's rings, two warpgroups" attention_ring -DTILES=3 -DSTEPS=4
holds "attention's rings, three warpgroups" attention_ring -DCONSUMERS=3
is_found "keys reported before their product has ended" "readers" attention_ring -DFAULT=1
is_found "values reported before their product has ended" "readers" attention_ring -DFAULT=2
is_found "queries reported before their last product" "holds" attention_ring -DFAULT=3
is_found "values' parity that does not flip" "invalid end state" attention_ring -DFAULT=4
is_found "values waited for in front of the keys that go first" "invalid end state" attention_ring -DFAULT=5
is_found "a first turn that nobody opens" "invalid end state" attention_ring -DFAULT=6
is_found "queries' parity that does not flip" "holds" attention_ring -DFAULT=7

# Two blocks of two tiles beside each other are 21 million states: searched by hand, without an error.
holds "attention's backward pass, a block alone" attention_backward_ring
holds "attention's backward pass, blocks one behind the other" attention_backward_ring -DBLOCKS=2 -DSTEPS=3
holds "attention's backward pass, blocks beside each other" attention_backward_ring -DBLOCKS=2 -DROOM=2 -DSTEPS=1
is_found "a tile reported before its last product has ended" "readers" attention_backward_ring -DFAULT=1
is_found "one buffer of weights" "readers" attention_backward_ring -DFAULT=2
is_found "dQ stored without waiting" "reads" attention_backward_ring -DFAULT=3
is_found "dQ stored over what is leaving" "reads" attention_backward_ring -DFAULT=4
is_found "a turn that ends before its sums are there" "sum" attention_backward_ring -DBLOCKS=2 -DROOM=2 -DSTEPS=2 -DFAULT=5
is_found "blocks that wait for those behind them" "invalid end state" attention_backward_ring -DBLOCKS=2 -DSTEPS=2 -DFAULT=6
is_found "weights multiplied before they are all stored" "part" attention_backward_ring -DFAULT=7

holds "attention's backward pass, wide heads" attention_wide_backward_ring
wide=attention_wide_backward_ring
is_found "a tile reported before dK's product has ended" "q_readers" $wide -DFAULT=1
is_found "dO reported before dV's product has ended" "d_o_readers" $wide -DFAULT=2
is_found "dS reported before it is made" "ds==step" $wide -DFAULT=3
is_found "dS multiplied without a wait for it" "ds==step" $wide -DFAULT=4
is_found "a part of dQ stored over the other" "dq[" $wide -DFAULT=5
is_found "parts that wait by the step's own parity" "invalid end state" $wide -DFAULT=6
is_found "parts taken in another order" "invalid end state" $wide -DFAULT=7
is_found "weights given while the last are multiplied" "ds_readers" $wide -DFAULT=8
finish
