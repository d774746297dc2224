#pragma once

#include <memory>

#include "base/trace.h"
#include "pipeline/plan.h"
#include "pipeline/stage_links.h"
#include "pipeline/stage_program.h"

namespace trireme {

/// Micro-batches of a virtual stage that are between their F and their last backward action at
/// once, at most: what its memory is made for. At least 1.
int in_flight_of(const std::vector<Action>& actions, int virtual_stage);

/// Runs the actions of one rank in the order of the plan, a span of the trace for each. Chunk i of
/// the stage is the rank's i-th virtual stage. An input is asked for as soon as there is room for
/// it, one action ahead; an output leaves at once, and its memory is used again when it has gone.
/// Actions of a group run one after the other. Made once; running allocates nothing.
class Executor {
 public:
  /// References must outlive this. Without `links` nothing moves between stages: a plan of one
  /// rank, or a program that has no boundaries.
  Executor(const Plan& plan, int rank, StageProgram& stage, StageLinks* links = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  /// Collective over the ranks of the plan.
  void run(Trace& trace);

  /// Of the last run: from its first action to the end of its last, and of that in actions.
  struct Occupation {
    std::int64_t span_ns = 0, busy_ns = 0;
  };
  [[nodiscard]] Occupation occupation() const;

 private:
  struct Traffic;
  class State;
  std::unique_ptr<State> state_;
};

/// Forward through all virtual stages, of the micro-batch that the stages are evaluating.
void evaluate(int rank, StageProgram& stage, StageLinks& links);

}  // namespace trireme
