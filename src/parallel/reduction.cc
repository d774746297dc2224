#include "parallel/reduction.h"

namespace trireme {

GradientReduction::GradientReduction(ParamStore& store, Communicator& channel)
    : store_(store), channel_(channel) {
  pending_.reserve(static_cast<std::size_t>(store.block_count()));
}

void GradientReduction::start(int block) {
  if (channel_.size() == 1) return;
  const std::span<float> gradients = store_.block_gradients(block);
  const auto count = static_cast<std::int64_t>(gradients.size());
  pending_.push_back(channel_.start_all_reduce(view_of(gradients.data(), {count})));
}

void GradientReduction::finish() {
  for (Pending& transfer : pending_) transfer.wait();
  pending_.clear();
}

}  // namespace trireme
