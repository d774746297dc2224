#pragma once

#include <cstdint>
#include <functional>

#include "device/context.h"
#include "device/gpu.h"

namespace trireme {

/// Work that is asked of a GPU again and again: done as it is at first, recorded as one CUDA graph
/// when it comes the second time in a row, and replayed from then on, without a launch for each
/// kernel.
class StepGraph {
 public:
  /// Off: every run is plain, as it is on the CPU, and while ops are traced.
  enum class Mode : std::uint8_t { kAuto, kOff };
  StepGraph(Context& context, Mode mode) : context_(context), mode_(mode) {}
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// `key`: whatever decides the work beside what stands in device memory. Other work, and scratch
  /// memory that has moved meanwhile, begin anew.
  /// `work` may be called twice in a run, so it sets what it keeps on the host.
  void run(std::int64_t key, const std::function<void()>& work);
  [[nodiscard]] bool recorded() const { return static_cast<bool>(graph_); }

 private:
  /// False where the work cannot be recorded; it is then plain for good.
  bool record(const std::function<void()>& work);
  void forget();

  Context& context_;
  Mode mode_;
  gpu::Graph graph_;
  const std::byte* scratch_ = nullptr;  ///< that the graph's kernels use
  std::int64_t key_ = 0;
  bool seen_ = false;  ///< `key_` has been run once, so that everything is allocated
};

}  // namespace trireme
