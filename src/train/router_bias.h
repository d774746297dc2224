#pragma once
// Balance without a loss (Wang et al. 2024; DeepSeek-V3, section 2.1.2): once a step the bias of
// the experts' choice moves by a constant, up for those that had fewer tokens than the mean:
//   bias[e] += rate sign(mean(count) - count[e]),  sign(0) = 0
// Counts are of all tokens of the step, integers, so that the result depends on no mesh.

#include <cstdint>
#include <vector>

#include "device/context.h"
#include "model/param_table.h"
#include "store/param_store.h"

namespace trireme {

class RouterBias {
 public:
  /// The biases among `params`, which with `store` outlive this. A rate of 0 moves none.
  RouterBias(const ModelParams& params, ParamStore& store, double rate);

  /// The rows that this rank owns, and their copies. `counts` of each layer of the model; those
  /// without experts are not looked at.
  void update(Context& context, const std::vector<std::vector<std::int64_t>>& counts);

 private:
  struct OfLayer {
    std::size_t layer;
    ParamIndex bias;
  };
  ParamStore& store_;
  const float rate_;
  std::vector<OfLayer> biases_;
};

}  // namespace trireme
