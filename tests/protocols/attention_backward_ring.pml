/* Attention's backward pass on Hopper (kernels/attention/attention_backward_sm90.cuh) as its barriers see it: a loader
 * brings tiles of queries, two consumers store weights dS for each other, multiply both, store dQ, and an adder has it added
 * to global memory by a bulk reduction, which first reads the tile and some time later has added it. BLOCKS blocks add to
 * the same STEPS tiles, in one order: block 0 first.
 *
 * Checked exhaustively (protocols_test.sh): nobody waits for ever, nothing is written while it is read or before it is
 * stored, sums are added in order. FAULT plants one:
 *   1  a stage is reported before the last product that reads it has ended
 *   2  weights have one buffer
 *   3  dQ is stored without waiting for the adder
 *   4  the adder lets dQ be stored again before it has been read
 *   5  a turn ends when the sums have been read, not when they are added
 *   6  blocks wait for those behind them, of which one has no room
 *   7  weights are multiplied before the other consumer has stored its own
 */
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef STEPS
#define STEPS 4
#endif
#ifndef FAULT
#define FAULT 0
#endif
#define STAGES 2
#define CONSUMERS 2
#define NOTHING 255
#define OF(block, stage) ((block) * STAGES + (stage))
#define EACH (BLOCKS * STAGES)

/* mbarriers: arrivals that the phase waits for, and its parity. */
byte pending[EACH], unread[EACH];
bit filled[EACH], freed[EACH];
byte coming[EACH], holds[EACH], readers[EACH];
/* dS by buffer and consumer; dQ by consumer. */
typedef Weights {
  byte part[CONSUMERS];
  byte readers
}
Weights weights[EACH];
typedef Sums {
  byte part[CONSUMERS];
  byte adding, added;  /* steps of the reduction under way, of those complete */
  bit reads
}
Sums dq[BLOCKS];
/* Named barriers: who has arrived, and how often all have. */
typedef Barrier {
  byte arrived, times
}
Barrier stored[BLOCKS], dq_full[BLOCKS], dq_empty[BLOCKS];
byte sum[STEPS], turns[STEPS];  /* blocks that have added to a tile, that have ended their turn */
byte begun = 0;                 /* blocks: one begins behind the other */

#define PARITY(step) (((step) / STAGES) % 2)
#define STAGE(step) OF(b, (step) % STAGES)
#if FAULT == 2
#define BUFFER(step) OF(b, 0)
#else
#define BUFFER(step) STAGE(step)
#endif
#if FAULT == 6
#define TURN (BLOCKS - 1 - b)
#else
#define TURN b
#endif

inline arrive(barrier, all) {
  d_step {
    barrier.arrived++;
    if
    :: barrier.arrived == all -> barrier.arrived = 0; barrier.times++
    :: else
    fi
  }
}

proctype Loader(byte b) {
  byte step = 0;
  do
  :: step < STEPS ->
     freed[STAGE(step)] != 1 - PARITY(step);
     d_step { assert(coming[STAGE(step)] == NOTHING); coming[STAGE(step)] = step }
     step++
  :: else -> break
  od
}
/* What is on its way comes in any order. */
proctype Load(byte b, stage) {
end:
  do
  :: d_step {
       coming[OF(b, stage)] != NOTHING;
       assert(readers[OF(b, stage)] == 0);
       holds[OF(b, stage)] = coming[OF(b, stage)];
       coming[OF(b, stage)] = NOTHING;
       filled[OF(b, stage)] = 1 - filled[OF(b, stage)]
     }
  od
}

inline release() {
  d_step {
    unread[STAGE(step)]--;
    if
    :: unread[STAGE(step)] == 0 -> unread[STAGE(step)] = CONSUMERS; freed[STAGE(step)] = 1 - freed[STAGE(step)]
    :: else
    fi
  }
}

proctype Consumer(byte b, me) {
  byte step = 0;
  do
  :: step < STEPS ->
     filled[STAGE(step)] != PARITY(step);
     d_step { assert(holds[STAGE(step)] == step); readers[STAGE(step)]++ }
     d_step { assert(weights[BUFFER(step)].readers == 0); weights[BUFFER(step)].part[me] = step }
#if FAULT != 7
     arrive(stored[b], CONSUMERS);
     stored[b].times > step;
#endif
     d_step {
       assert(weights[BUFFER(step)].part[0] == step && weights[BUFFER(step)].part[1] == step);
       weights[BUFFER(step)].readers++
     }
     weights[BUFFER(step)].readers--;
#if FAULT != 3
     if
     :: step > 0 -> arrive(dq_empty[b], CONSUMERS + 1); dq_empty[b].times >= step
     :: else
     fi;
#endif
     d_step { assert(!dq[b].reads); dq[b].part[me] = step }
     arrive(dq_full[b], CONSUMERS + 1);
#if FAULT == 1
     release();
     readers[STAGE(step)]--;
#else
     readers[STAGE(step)]--;
     release();
#endif
     step++
  :: else -> break
  od
}

proctype Adder(byte b) {
  byte step = 0;
  do
  :: step < STEPS ->
     arrive(dq_full[b], CONSUMERS + 1);
     dq_full[b].times > step;
     assert(dq[b].part[0] == step && dq[b].part[1] == step);
     turns[step] == TURN;
     d_step { dq[b].reads = 1; dq[b].adding++ }
#if FAULT != 4
     !dq[b].reads;
#endif
     if
     :: step < STEPS - 1 -> arrive(dq_empty[b], CONSUMERS + 1)
     :: else
     fi;
#if FAULT != 5
     dq[b].added > step;
#endif
     turns[step]++;
     step++
  :: else -> break
  od;
  begun++  /* its multiprocessor is free */
}
/* The reductions of a block, one after the other. */
proctype Reduction(byte b) {
end:
  do
  :: dq[b].reads -> dq[b].reads = 0
  :: d_step {
       dq[b].added < dq[b].adding && !dq[b].reads;
       assert(sum[dq[b].added] == TURN);
       sum[dq[b].added]++;
       dq[b].added++
     }
  od
}

/* A block begins when there is room: ROOM of them at a time. */
#ifndef ROOM
#define ROOM 1
#endif
proctype Block(byte b) {
  b < begun + ROOM;
  atomic {
    run Loader(b);
    run Load(b, 0);
    run Load(b, 1);
    run Consumer(b, 0);
    run Consumer(b, 1);
    run Adder(b);
    run Reduction(b)
  }
}

init {
  byte i = 0;
  atomic {
    do
    :: i < EACH -> unread[i] = CONSUMERS; coming[i] = NOTHING; holds[i] = NOTHING; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < BLOCKS -> run Block(i); i++
    :: else -> break
    od
  }
}
