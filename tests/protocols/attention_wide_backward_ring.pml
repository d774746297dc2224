/* Attention's backward pass on Hopper for heads of more than 128 (kernels/attention/attention_backward_wide_sm90.cuh) as its
 * barriers see it: a loader brings tiles of Q to two stages and of dO to one; the first consumer makes P, the second dS of it
 * and reports Q, and both multiply dS; each has one buffer for its two parts of dQ, which the adder of every other step takes
 * in the order 0, 1, 2, 3 (0 and 2 are the first's). How blocks take turns is attention_backward_ring.pml.
 *
 * Checked exhaustively (protocols_test.sh): nobody waits for ever, nothing is written while it is read or before it is
 * stored. FAULT plants one:
 *   1  the second reports Q before dK's product has ended
 *   2  the first reports dO before dV's product has ended
 *   3  dS is reported before P has been read
 *   4  the first multiplies dS without waiting for it
 *   5  the second part of a step is stored without waiting for the first to leave
 *   6  parts wait for those of the step before by the step's own parity
 *   7  the adder takes parts in another order
 *   8  the first gives P while it still multiplies the last dS
 */
#ifndef STEPS
#define STEPS 5
#endif
#ifndef FAULT
#define FAULT 0
#endif
#define STAGES 2
#define PARTS 4
#define OUT 2
#define NOTHING 255
#define PARITY(step) (((step) / STAGES) % 2)
#define STAGE(step) ((step) % STAGES)
/* Of a step's part: its number in arrays of both steps under way. */
#define OF(stage, part) ((stage) * PARTS + (part))

/* Phases that have ended, by their parity: a wait for parity p passes where the number of ended phases is not p. */
bit q_full[STAGES], q_empty[STAGES], d_o_full, d_o_empty, dq_full[8], dq_empty[8];
byte d_o_unread;
byte q_coming[STAGES], q_holds[STAGES], q_readers[STAGES], d_o_coming = NOTHING, d_o_holds = NOTHING, d_o_readers;
/* P and dS: the step they are of, and who reads them. */
byte p = NOTHING, p_readers, ds = NOTHING, ds_readers;
/* Named barriers: times that one has arrived and that the other has gone on. */
byte given, taken, stored, seen;
/* dQ's buffers: what stands there, and whether it is leaving. */
byte dq[OUT];
bit leaving[OUT];

proctype Loader() {
  byte step = 0;
  do
  :: step < STEPS ->
     q_empty[STAGE(step)] != 1 - PARITY(step);
     d_step { assert(q_coming[STAGE(step)] == NOTHING); q_coming[STAGE(step)] = step }
     d_o_empty != 1 - step % 2;
     d_step { assert(d_o_coming == NOTHING); d_o_coming = step }
     step++
  :: else -> break
  od
}
/* What is on its way comes in any order. */
proctype LoadQ(byte stage) {
end:
  do
  :: d_step {
       q_coming[stage] != NOTHING;
       assert(q_readers[stage] == 0);
       q_holds[stage] = q_coming[stage];
       q_coming[stage] = NOTHING;
       q_full[stage] = 1 - q_full[stage]
     }
  od
}
proctype LoadOutputs() {
end:
  do
  :: d_step {
       d_o_coming != NOTHING;
       assert(d_o_readers == 0);
       d_o_holds = d_o_coming;
       d_o_coming = NOTHING;
       d_o_full = 1 - d_o_full
     }
  od
}

inline release_d_o() {
  d_step {
    d_o_unread--;
    if
    :: d_o_unread == 0 -> d_o_unread = 2; d_o_empty = 1 - d_o_empty
    :: else
    fi
  }
}
inline read_d_o() {
  d_o_full != step % 2;
  d_step { assert(d_o_holds == step); d_o_readers++ }
}

inline give_part(part) {
  if
  :: part < OUT ->
#if FAULT == 6
     dq_empty[OF(1 - STAGE(step), PARTS - OUT + part)] != PARITY(step)
#else
     dq_empty[OF(1 - STAGE(step), PARTS - OUT + part)] != (PARITY(step) + 1 - STAGE(step)) % 2
#endif
  :: else ->
#if FAULT != 5
     dq_empty[OF(STAGE(step), part - OUT)] != PARITY(step)
#else
     skip
#endif
  fi;
  d_step {
    assert(!leaving[part % OUT]);
    assert(dq[part % OUT] == NOTHING);
    dq[part % OUT] = OF(step, part);
    dq_full[OF(STAGE(step), part)] = 1 - dq_full[OF(STAGE(step), part)]
  }
}

inline make_scores(tile) {
  q_full[STAGE(tile)] != PARITY(tile);
  d_step { assert(q_holds[STAGE(tile)] == tile); q_readers[STAGE(tile)]++ }
}

proctype First() {
  byte step = 0;
  make_scores(0);
  do
  :: step < STEPS ->
     q_readers[STAGE(step)]--;
     d_step { assert(p_readers == 0); p = step }
     d_step { assert(given == taken); given++ }
#if FAULT == 8
     if
     :: step > 0 -> ds_readers--
     :: else
     fi;
#endif
     read_d_o();
#if FAULT == 2
     release_d_o();
     d_o_readers--;
#else
     d_o_readers--;
     release_d_o();
#endif
#if FAULT != 4
     d_step { stored > step; seen++ }
#endif
     d_step { assert(ds == step); ds_readers++ }
#if FAULT != 8
     ds_readers--;
#endif
     give_part(0);
     if
     :: step + 1 < STEPS -> make_scores(step + 1)
     :: else
     fi;
     give_part(2);
     step++
  :: else -> break
  od
}

proctype Second() {
  byte step = 0;
  do
  :: step < STEPS ->
     q_full[STAGE(step)] != PARITY(step);
     d_step { assert(q_holds[STAGE(step)] == step); q_readers[STAGE(step)]++ }
     read_d_o();
     d_o_readers--;
     release_d_o();
     d_step { given > step; taken++ }
     d_step { assert(p == step); p_readers++ }
#if FAULT == 3
     stored++;
     p_readers--;
     d_step { assert(ds_readers == 0); ds = step }
#else
     p_readers--;
     d_step { assert(ds_readers == 0); ds = step }
#if FAULT != 4
     d_step { assert(stored == seen); stored++ }
#endif
#endif
     ds_readers++;
     give_part(1);
     give_part(3);
#if FAULT == 1
     q_empty[STAGE(step)] = 1 - q_empty[STAGE(step)];
     q_readers[STAGE(step)]--;
#else
     q_readers[STAGE(step)]--;
     q_empty[STAGE(step)] = 1 - q_empty[STAGE(step)];
#endif
     ds_readers--;
     step++
  :: else -> break
  od
}

proctype Adder(byte stage) {
  byte step = stage, i, part;
  do
  :: step < STEPS ->
     i = 0;
     do
     :: i < PARTS ->
#if FAULT == 7
        part = (i + 2) % PARTS;
#else
        part = i;
#endif
        dq_full[OF(stage, part)] != PARITY(step);
        d_step { assert(dq[part % OUT] == OF(step, part)); leaving[part % OUT] = 1 }
        d_step { leaving[part % OUT] = 0; dq[part % OUT] = NOTHING }
        dq_empty[OF(stage, part)] = 1 - dq_empty[OF(stage, part)];
        i++
     :: else -> break
     od;
     step = step + STAGES
  :: else -> break
  od
}

init {
  atomic {
    d_o_unread = 2;
    q_coming[0] = NOTHING;
    q_coming[1] = NOTHING;
    q_holds[0] = NOTHING;
    q_holds[1] = NOTHING;
    dq[0] = NOTHING;
    dq[1] = NOTHING;
    run Loader();
    run LoadQ(0);
    run LoadQ(1);
    run LoadOutputs();
    run First();
    run Second();
    run Adder(0);
    run Adder(1)
  }
}
