/* Attention's backward pass on Hopper (kernels/attention/attention_backward_sm90.cuh) as its barriers see it: a loader
 * brings tiles of queries, two consumers store weights dS for each other, multiply both, store dQ in one of two buffers, and
 * the buffer's adder has it added to global memory by a bulk reduction, which first reads the tile and some time later has
 * added it. BLOCKS blocks add to the same STEPS tiles, in one order: block 0 first.
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
/* dS and dQ by buffer and consumer. */
typedef Weights {
  byte part[CONSUMERS];
  byte readers
}
Weights weights[EACH];
typedef Sums {
  byte part[CONSUMERS];
  byte adding, added;  /* the buffer's reductions that have begun, that are complete */
  bit reads
}
Sums dq[EACH];
/* Named barriers: who has arrived, and how often all have. */
typedef Barrier {
  byte arrived, times
}
Barrier stored[BLOCKS], dq_full[EACH];
byte dq_empty[EACH];  /* how often it was released */
byte sum[STEPS], turns[STEPS];  /* blocks that have added to a tile, that have ended their turn */
byte begun = 0, adders[BLOCKS];  /* blocks: one begins behind the other; those of a block that have ended */

#define PARITY(step) (((step) / STAGES) % 2)
#define STAGE(step) OF(b, (step) % STAGES)
#define TIMES(step) ((step) / STAGES)
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
     dq_empty[STAGE(step)] >= TIMES(step);
#endif
     d_step { assert(!dq[STAGE(step)].reads); dq[STAGE(step)].part[me] = step }
     arrive(dq_full[STAGE(step)], CONSUMERS);
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

#define SUMS dq[OF(b, buffer)]
proctype Adder(byte b, buffer) {
  byte step = buffer;
  do
  :: step < STEPS ->
     turns[step] == TURN;
     dq_full[OF(b, buffer)].times > TIMES(step);
     assert(SUMS.part[0] == step && SUMS.part[1] == step);
     d_step { SUMS.reads = 1; SUMS.adding++ }
#if FAULT != 4
     !SUMS.reads;
#endif
     dq_empty[OF(b, buffer)]++;
#if FAULT != 5
     SUMS.added > TIMES(step);
#endif
     turns[step]++;
     step = step + STAGES
  :: else -> break
  od;
  atomic {  /* its multiprocessor is free */
    adders[b]++;
    if
    :: adders[b] == STAGES -> begun++
    :: else
    fi
  }
}
/* The reductions of a buffer, one after the other. */
proctype Reduction(byte b, buffer) {
end:
  do
  :: SUMS.reads -> SUMS.reads = 0
  :: d_step {
       SUMS.added < SUMS.adding && !SUMS.reads;
       assert(sum[SUMS.added * STAGES + buffer] == TURN);
       sum[SUMS.added * STAGES + buffer]++;
       SUMS.added++
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
    run Adder(b, 0);
    run Adder(b, 1);
    run Reduction(b, 0);
    run Reduction(b, 1)
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
