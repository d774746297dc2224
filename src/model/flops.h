#pragma once

#include "config/model_config.h"
#include "model/param_table.h"

namespace trireme {

struct ParameterCount {
  std::int64_t total = 0;
  std::int64_t active = 0;  ///< used for one token: of a layer's experts those that it has chosen
  std::int64_t multiplying = 0;  ///< elements of weights that multiply activations, the head also
                                 ///< when tied, experts as active
  std::int64_t trained = 0;      ///< of the total
  std::int64_t frozen_multiplying = 0;   ///< of those: their gradients are not made
  std::int64_t forward_multiplying = 0;  ///< of these: nor is that of their input
};
ParameterCount count_parameters(const ModelConfig& config);
/// `params` as declared for the whole model.
ParameterCount count_parameters(const ModelConfig& config, const ModelParams& params);

/// 6 * multiplying + 6 * layers * heads * head_dim * T: all passes, causal attention once. 4 of
/// what is frozen: a product forward, one for the gradient of its input; 2 where nothing below is
/// trained, and of attention there.
std::int64_t model_flops_per_token(const ModelConfig& config, std::int64_t sequence_length);

}  // namespace trireme
