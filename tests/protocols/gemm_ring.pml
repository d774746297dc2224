/* The ring of the Hopper product (kernels/gemm/gemm_sm90.cuh) as its barriers see it: a producer of each block of a
 * cluster brings tiles by TMA, its own part of a and, to all blocks, a part of b; consumers read a stage by wgmma, which
 * goes on behind its commit, and report it read one step later to every block that writes there.
 *
 * Checked exhaustively (protocols_test.sh): nobody waits for ever, no stage is written while it is read or before all
 * have read it, no phase of a barrier is missed, nobody reaches into a block that has ended. FAULT plants one:
 *   1  consumers report a stage to their own block alone
 *   2  a stage is reported as read when its wgmma is committed, not when it has ended
 *   3  a barrier expects its own block's bytes, not those that come from the others
 *   4  the producer waits for the phase that is to come
 *   5  blocks end without waiting for the others
 *   6  the ring's parity does not flip when it goes round
 */
#ifndef BLOCKS
#define BLOCKS 2
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef STEPS
#define STEPS 4
#endif
#ifndef FAULT
#define FAULT 0
#endif

#define AT(block, stage) ((block) * STAGES + (stage))
#define PART(from, block, stage) (((from) * BLOCKS + (block)) * STAGES + (stage))
#define NOTHING 255

/* An mbarrier: arrivals and bytes (in parts) that its phase still waits for, and the parity of that phase. */
typedef Barrier {
  byte pending;
  short bytes;
  bit phase
};
Barrier filled[BLOCKS * STAGES], freed[BLOCKS * STAGES];

/* What stands in a stage: the step that each part is of. What is on its way there. */
byte a[BLOCKS * STAGES], b[BLOCKS * BLOCKS * STAGES];
byte a_coming[BLOCKS * STAGES], b_coming[BLOCKS * BLOCKS * STAGES];
byte readers[BLOCKS * STAGES];
byte at_the_end = 0;
bit ended[BLOCKS];
bit ready = 0;

#if FAULT == 1
#define RELEASES (CONSUMERS)
#else
#define RELEASES (CONSUMERS * BLOCKS)
#endif

/* Whether the phase of that parity is over. */
#define OVER(barrier, parity) (barrier.phase != (parity))

inline settle(barrier, arrivals) {
  if
  :: barrier.pending == 0 && barrier.bytes == 0 ->
     barrier.pending = arrivals;
     barrier.phase = 1 - barrier.phase
  :: else
  fi
}

inline report(owner, stage) {
  assert(!ended[owner]);
  assert(freed[AT(owner, stage)].pending > 0);
  freed[AT(owner, stage)].pending--;
  settle(freed[AT(owner, stage)], RELEASES)
}

#if FAULT == 6
#define PARITY(step) 0
#else
#define PARITY(step) (((step) / STAGES) % 2)
#endif

/* One warp's leader stands for a consumer: each block that writes to the stage is told. */
inline release(block, stage) {
#if FAULT == 1
  d_step { report(block, stage) }
#else
  told = 0;
  do
  :: told < BLOCKS -> d_step { report(told, stage); told++ }
  :: else -> told = 0; break
  od
#endif
}

/* All threads of a cluster meet before any of its blocks ends. */
inline meet(block) {
  atomic {
    at_the_end++;
#if FAULT != 5
    at_the_end == BLOCKS * (1 + CONSUMERS)
#endif
  }
}

proctype Producer(byte block) {
  byte step = 0, stage, to;
  ready;
  do
  :: step < STEPS ->
     stage = step % STAGES;
#if FAULT == 4
     OVER(freed[AT(block, stage)], PARITY(step));
#else
     OVER(freed[AT(block, stage)], 1 - PARITY(step));
#endif
     d_step {
#if FAULT == 3
       filled[AT(block, stage)].bytes = filled[AT(block, stage)].bytes + 2;
#else
       filled[AT(block, stage)].bytes = filled[AT(block, stage)].bytes + 1 + BLOCKS;
#endif
       filled[AT(block, stage)].pending--;
       settle(filled[AT(block, stage)], 1);
       assert(a_coming[AT(block, stage)] == NOTHING);
       a_coming[AT(block, stage)] = step;
       to = 0;
       do
       :: to < BLOCKS ->
          assert(b_coming[PART(block, to, stage)] == NOTHING);
          b_coming[PART(block, to, stage)] = step;
          to++
       :: else -> break
       od;
       to = 0
     }
     step++
  :: else -> break
  od;
  meet(block);
  ended[block] = 1
}

proctype Consumer(byte block) {
  byte step = 0, stage, before, from, told;
  ready;
  do
  :: step < STEPS ->
     stage = step % STAGES;
     OVER(filled[AT(block, stage)], PARITY(step));
     d_step {  /* wgmma begins to read */
       assert(a[AT(block, stage)] == step);
       from = 0;
       do
       :: from < BLOCKS -> assert(b[PART(from, block, stage)] == step); from++
       :: else -> break
       od;
       from = 0;
       readers[AT(block, stage)]++
     }
#if FAULT == 2
     skip;
     release(block, stage);
     readers[AT(block, stage)]--;
#else
     if
     :: step > 0 ->
        before = (step - 1) % STAGES;
        readers[AT(block, before)]--;  /* the wgmma before it has ended */
        release(block, before)
     :: else
     fi;
#endif
     step++
  :: else -> break
  od;
#if FAULT != 2
  before = (STEPS - 1) % STAGES;
  readers[AT(block, before)]--;
  release(block, before);
#endif
  meet(block)
}

/* The memory system: what is on its way comes in any order. */
inline may_land(block, stage) {
  assert(!ended[block]);
  assert(readers[AT(block, stage)] == 0)
}
inline landed(block, stage) {
  filled[AT(block, stage)].bytes--;
  settle(filled[AT(block, stage)], 1)
}
proctype LoadA(byte block; byte stage) {
end:
  do
  :: d_step {
       a_coming[AT(block, stage)] != NOTHING;
       may_land(block, stage);
       a[AT(block, stage)] = a_coming[AT(block, stage)];
       a_coming[AT(block, stage)] = NOTHING;
       landed(block, stage)
     }
  od
}
proctype LoadB(byte from; byte block; byte stage) {
end:
  do
  :: d_step {
       b_coming[PART(from, block, stage)] != NOTHING;
       may_land(block, stage);
       b[PART(from, block, stage)] = b_coming[PART(from, block, stage)];
       b_coming[PART(from, block, stage)] = NOTHING;
       landed(block, stage)
     }
  od
}

init {
  byte block = 0, other, stage;
  atomic {
    do
    :: block < BLOCKS ->
       stage = 0;
       do
       :: stage < STAGES ->
          filled[AT(block, stage)].pending = 1;
          freed[AT(block, stage)].pending = RELEASES;
          a[AT(block, stage)] = NOTHING;
          a_coming[AT(block, stage)] = NOTHING;
          run LoadA(block, stage);
          other = 0;
          do
          :: other < BLOCKS ->
             b[PART(other, block, stage)] = NOTHING;
             b_coming[PART(other, block, stage)] = NOTHING;
             run LoadB(other, block, stage);
             other++
          :: else -> break
          od;
          stage++
       :: else -> break
       od;
       run Producer(block);
       other = 0;
       do
       :: other < CONSUMERS -> run Consumer(block); other++
       :: else -> break
       od;
       block++
    :: else -> break
    od;
    ready = 1
  }
}
