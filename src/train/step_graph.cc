#include "train/step_graph.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace trireme {

void set_step_key(std::vector<std::int64_t>& key, std::span<const MicroBatch> batches) {
  key.clear();
  for (const MicroBatch& batch : batches) {
    for (const ConstTensorView* tensor :
         {&batch.input_ids, &batch.targets, &batch.positions, &batch.first_key, &batch.numbers}) {
      key.push_back(reinterpret_cast<std::intptr_t>(tensor->data));
    }
  }
}

StepGraph::Ran StepGraph::run(std::span<const std::int64_t> key,
                              const std::function<void()>& work) {
  if (!context_.on_gpu() || mode_ == Mode::kOff || context_.op_trace() != nullptr) {
    work();
    return Ran::kPlain;
  }
  if (!std::ranges::equal(key, key_) || !seen_ || (graph_ && moves_ != context_.memory_moves())) {
    forget();
    work();
    key_.assign(key.begin(), key.end());
    seen_ = true;
    return Ran::kPlain;
  }
  const bool recorded = !graph_;
  if (recorded && !record(work)) {
    work();
    return Ran::kPlain;
  }
  gpu::replay(graph_.get(), context_.exec().stream);
  return recorded ? Ran::kRecorded : Ran::kReplayed;
}

StepGraph::~StepGraph() {
  if (!graph_) return;
  try {
    context_.synchronize();
  } catch (...) {  // what failed there was reported by who waited for it before
  }
}

bool StepGraph::record(const std::function<void()>& work) {
  void* stream = context_.exec().stream;
  context_.synchronize();
  gpu::begin_capture(stream);
  try {
    work();
    graph_ = gpu::Graph(gpu::end_capture(stream));
  } catch (const Error& error) {  // an error of the work itself comes again without the recording
    gpu::abandon_capture(stream);
    mode_ = Mode::kOff;
    log_warning("steps are not replayed as a CUDA graph: {}", error.what());
    return false;
  } catch (...) {
    gpu::abandon_capture(stream);
    throw;
  }
  moves_ = context_.memory_moves();
  return true;
}

void StepGraph::forget() {
  if (!graph_) return;
  context_.synchronize();
  graph_.reset();
}

}  // namespace trireme
