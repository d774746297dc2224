#pragma once
// THE table of parameters: every tensor of every family, its Hugging Face name, shape, initial
// values and place.

#include <vector>

#include "config/model_config.h"
#include "parallel/param.h"

namespace trireme {

struct LinearParams {
  ParamRange weight, bias;  ///< fused ranges; bias may be absent
};
struct NormParams {
  ParamIndex weight = kNoParam, bias = kNoParam;
};
struct BlockParams {
  NormParams attention_norm, mlp_norm, q_norm, k_norm;
  LinearParams qkv;  ///< rows q, k, v
  LinearParams out;  ///< attention's output projection
  LinearParams up;   ///< rows gate, up; GPT-2: c_fc
  LinearParams down;
};

struct ModelParams {
  std::vector<ParamMeta> metas;
  ParamIndex embedding = kNoParam, position_embedding = kNoParam;
  std::vector<BlockParams> blocks;
  NormParams final_norm;
  ParamIndex head = kNoParam;  ///< the embedding where tied
  bool tied = false;
};

/// Initial values: weights N(0, init_std), GPT-2's two residual projections N(0, init_std / sqrt(2
/// L)), biases 0, norms 1 (transformers' _init_weights for each family).
ModelParams declare_params(const ModelConfig& config);

}  // namespace trireme
