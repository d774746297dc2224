#pragma once

#include <memory>
#include <vector>

#include "base/trace.h"
#include "pipeline/lowering.h"
#include "pipeline/stage_links.h"
#include "pipeline/stage_program.h"

namespace trireme {

/// Runs the steps of one rank of a program, a span of the trace for each action. Chunk i of the
/// stage is the rank's i-th virtual stage. Transfers start as start_early says; an input is waited
/// for by the action that takes it, an output that leaves by the next that writes to its memory.
/// Two actions of a group take turns where the stage can (base/fiber.h): each until what it has
/// sent travels; else they run one after the other. Made once.
class Executor {
 public:
  /// References must outlive this. Without `links` (a schedule of one rank) nothing is sent.
  Executor(const std::vector<ProgramStep>& steps, StageProgram& stage, StageLinks* links = nullptr);
  /// `steps` have forward actions alone.
  Executor(const std::vector<ProgramStep>& steps, ForwardProgram& stage,
           StageLinks* links = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  /// Collective over the ranks of the program.
  void run(Trace& trace);

  /// Of the last run: from its first action to the end of its last, and of that in actions.
  struct Occupation {
    std::int64_t span_ns = 0, busy_ns = 0;
  };
  [[nodiscard]] Occupation occupation() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
