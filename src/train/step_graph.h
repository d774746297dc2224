#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/context.h"
#include "device/gpu.h"
#include "pipeline/micro_batch.h"

namespace trireme {

/// What decides a step's work beside device memory: where batches are. Into `key`.
void set_step_key(std::vector<std::int64_t>& key, std::span<const MicroBatch> batches);

/// Work that is asked of a GPU again and again: done as it is at first, recorded as a CUDA graph
/// the second time in a row, then replayed without a launch for each kernel.
class StepGraph {
 public:
  /// Off: every run is plain, as it is on the CPU, and while ops are traced.
  enum class Mode : std::uint8_t { kAuto, kOff };
  StepGraph(Context& context, Mode mode) : context_(context), mode_(mode) {}
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// `key`: what decides the work beside device memory (set_step_key). Other work and memory that
  /// has moved (Context::memory_moves) begin anew. `work` may be called twice: it sets what it
  /// keeps on the host.
  enum class Ran : std::uint8_t { kPlain, kRecorded, kReplayed };  ///< recorded: and replayed once
  Ran run(std::span<const std::int64_t> key, const std::function<void()>& work);
  [[nodiscard]] bool recorded() const { return static_cast<bool>(graph_); }

 private:
  /// False where the work cannot be recorded; it is then plain for good.
  bool record(const std::function<void()>& work);
  void forget();

  Context& context_;
  Mode mode_;
  gpu::Graph graph_;
  std::int64_t moves_ = 0;  ///< of the memory whose addresses the graph holds, before it was made
  std::vector<std::int64_t> key_;
  bool seen_ = false;  ///< `key_` has been run once, so that everything is allocated
};

}  // namespace trireme
