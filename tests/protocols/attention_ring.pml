/* The rings of attention on Hopper (kernels/attention/attention_forward_sm90.cuh) as their barriers see them: a producer
 * brings queries, keys and, a step behind them, values by TMA; consumers issue the product with keys j, then that with
 * values j - 1, and report what they have read when the product has ended. A block takes TILES tiles of queries after one
 * another, of STEPS tiles of keys each (the last tile of queries: of one less). Consumers issue in turn.
 *
 * Checked exhaustively (protocols_test.sh): nobody waits for ever, nothing is written while it is read or before all
 * have read it, every product reads the tile that it is of. FAULT plants one:
 *   1  a stage of keys is reported when its product is issued, not when it has ended
 *   2  likewise of values
 *   3  queries are reported before the last product with them
 *   4  the values' parity does not flip
 *   5  the producer waits until values are read before it brings the keys of the product that goes in front of theirs
 *   6  nobody opens the first turn
 *   7  the queries' parity does not flip
 */
#ifndef STAGES
#define STAGES 2
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef TILES
#define TILES 2
#endif
#ifndef STEPS
#define STEPS 3
#endif
#ifndef FAULT
#define FAULT 0
#endif

#define NOTHING 255
#define STEPS_OF(tile) (STEPS - ((tile) == TILES - 1))

/* An mbarrier: arrivals that its phase waits for (`coming`: bytes too), and the parity of that phase. */
typedef Barrier {
  byte pending;
  bit coming;
  bit phase
};
/* Stages of keys, of values, the queries: one after another. */
#define KEYS(stage) (stage)
#define VALUES(stage) (STAGES + (stage))
#define QUERIES (2 * STAGES)
#define PLACES (2 * STAGES + 1)
Barrier filled[PLACES], freed[PLACES];
byte holds[PLACES], coming[PLACES], readers[PLACES];
byte turn[CONSUMERS];  /* arrivals of the named barrier that opens a consumer's turn */
bit ready = 0;

#define OVER(barrier, parity) (barrier.phase != (parity))

inline settle(barrier, arrivals) {
  if
  :: barrier.pending == 0 && !barrier.coming ->
     barrier.pending = arrivals;
     barrier.phase = 1 - barrier.phase
  :: else
  fi
}

/* By the producer: `what` goes on its way. */
inline bring(place, what) {
  d_step {
    assert(coming[place] == NOTHING);
    filled[place].coming = 1;
    filled[place].pending--;
    coming[place] = what
  }
}
inline report(place) {
  d_step {
    assert(freed[place].pending > 0);
    freed[place].pending--;
    settle(freed[place], CONSUMERS)
  }
}
inline begin_read(place, what) {
  d_step {
    assert(holds[place] == what);
    readers[place]++
  }
}
inline end_read(place) { d_step { readers[place]-- } }

#if FAULT == 4
#define PARITY_OF_VALUES(step) 0
#else
#define PARITY_OF_VALUES(step) (((step) / STAGES) % 2)
#endif
#define PARITY(step) (((step) / STAGES) % 2)
#if FAULT == 7
#define PARITY_OF_QUERIES(tile) 0
#else
#define PARITY_OF_QUERIES(tile) ((tile) % 2)
#endif

inline bring_keys(step) {
  OVER(freed[KEYS((step) % STAGES)], 1 - PARITY(step));
  bring(KEYS((step) % STAGES), step)
}
inline bring_values(step) {
  OVER(freed[VALUES((step) % STAGES)], 1 - PARITY(step));
  bring(VALUES((step) % STAGES), step)
}

/* Steps are counted through all tiles. */
proctype Producer() {
  byte tile = 0, step = 0, i;
  ready;
  do
  :: tile < TILES ->
     bring_keys(step);
     OVER(freed[QUERIES], 1 - (tile % 2));
     bring(QUERIES, tile);
     i = 1;
     do
     :: i < STEPS_OF(tile) ->
#if FAULT == 5
        bring_values(step);
        OVER(filled[VALUES((step) % STAGES)], PARITY(step));
        OVER(freed[VALUES((step) % STAGES)], PARITY(step));
        bring_keys(step + 1);
#else
        bring_keys(step + 1);
        bring_values(step);
#endif
        step++;
        i++
     :: else -> break
     od;
     bring_values(step);
     step++;
     tile++
  :: else -> break
  od
}

inline end_values(step) {
#if FAULT == 2
  report(VALUES((step) % STAGES));
  end_read(VALUES((step) % STAGES))
#else
  end_read(VALUES((step) % STAGES));
  report(VALUES((step) % STAGES))
#endif
}
inline begin_values(step) {
  OVER(filled[VALUES((step) % STAGES)], PARITY_OF_VALUES(step));
  begin_read(VALUES((step) % STAGES), step)
}
/* Queries are read with each tile of keys. */
inline begin_keys(step) {
  OVER(filled[KEYS((step) % STAGES)], PARITY(step));
  begin_read(KEYS((step) % STAGES), step);
  begin_read(QUERIES, tile)
}
inline end_keys(step) {
#if FAULT == 1
  report(KEYS((step) % STAGES));
  end_read(KEYS((step) % STAGES));
#else
  end_read(KEYS((step) % STAGES));
  report(KEYS((step) % STAGES));
#endif
  end_read(QUERIES)
}

proctype Consumer(byte me) {
  byte tile = 0, step = 0, i;
  ready;
#if FAULT != 6
  if
  :: me == CONSUMERS - 1 -> turn[0]++
  :: else
  fi;
#endif
  do
  :: tile < TILES ->
     OVER(filled[QUERIES], PARITY_OF_QUERIES(tile));
#if FAULT == 3
     report(QUERIES);
#endif
     begin_keys(step);
     end_keys(step);
     i = 1;
     do
     :: i < STEPS_OF(tile) ->
        d_step { turn[me] > 0; turn[me]-- }
        begin_keys(step + 1);
        begin_values(step);
        d_step { turn[(me + 1) % CONSUMERS]++; assert(turn[(me + 1) % CONSUMERS] == 1) }
        end_keys(step + 1);
        end_values(step);
        step++;
        i++
     :: else -> break
     od;
#if FAULT != 3
     report(QUERIES);
#endif
     begin_values(step);
     end_values(step);
     step++;
     tile++
  :: else -> break
  od;
  if
  :: me == 0 -> d_step { turn[0] > 0; turn[0]-- }
  :: else
  fi
}

/* The memory system: what is on its way comes in any order. */
proctype Load(byte place) {
end:
  do
  :: d_step {
       coming[place] != NOTHING;
       assert(readers[place] == 0);
       holds[place] = coming[place];
       coming[place] = NOTHING;
       filled[place].coming = 0;
       settle(filled[place], 1)
     }
  od
}

init {
  byte i = 0;
  atomic {
    do
    :: i < PLACES ->
       filled[i].pending = 1;
       freed[i].pending = CONSUMERS;
       holds[i] = NOTHING;
       coming[i] = NOTHING;
       run Load(i);
       i++
    :: else -> break
    od;
    run Producer();
    i = 0;
    do
    :: i < CONSUMERS -> run Consumer(i); i++
    :: else -> break
    od;
    ready = 1
  }
}
