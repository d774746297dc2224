#include "train/router_bias.h"

#include <numeric>

#include "kernels/elementwise/elementwise.h"
#include "tensor/transfer.h"

namespace trireme {

RouterBias::RouterBias(const ModelParams& params, ParamStore& store, double rate)
    : store_(store), rate_(static_cast<float>(rate)) {
  if (rate == 0) return;
  for (const ChunkParams& chunk : params.chunks) {
    for (std::size_t i = 0; i < chunk.blocks.size(); ++i) {
      const ParamIndex bias = chunk.blocks[i].experts.bias;
      if (bias == kNoParam || store.value(bias).count() == 0) continue;
      biases_.push_back({static_cast<std::size_t>(chunk.range.first_layer) + i, bias});
    }
  }
}

void RouterBias::update(Context& context, const std::vector<std::vector<std::int64_t>>& counts) {
  for (const auto& [layer, bias] : biases_) {
    const std::vector<std::int64_t>& of_experts = counts.at(layer);
    const auto experts = std::ssize(of_experts);
    const std::int64_t all = std::reduce(of_experts.begin(), of_experts.end());
    const std::int64_t first = store_.layout().owned(bias).begin;
    const TensorView owned = store_.value(bias);
    std::vector<float> values(static_cast<std::size_t>(owned.count()));
    copy_out(context, std::as_writable_bytes(std::span(values)), owned);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t count = of_experts.at(static_cast<std::size_t>(first) + i) * experts;
      if (count != all) values[i] += count < all ? rate_ : -rate_;
    }
    copy_in(context, owned, std::as_bytes(std::span(values)));
    if (const TensorView copy = store_.copy(bias); copy.given()) cast(context, copy, owned);
  }
}

}  // namespace trireme
