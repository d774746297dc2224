#pragma once
// The language-model head and the loss, over chunks of tokens: the logits of one chunk exist at a
// time.

#include "config/model_config.h"
#include "device/context.h"
#include "kernels/gemm/gemm.h"
#include "pipeline/micro_batch.h"
#include "tensor/arena.h"

namespace trireme {

/// Tokens whose logits exist at once: about 4M logits, whole multiples of 64 between 512 and 2,048
/// tokens (with fewer, the products wait for memory: each chunk reads the weight and its gradient).
std::int64_t head_chunk_tokens(const ModelConfig& config, std::int64_t tokens);

struct HeadBuffers {
  TensorView logits_TV;                   ///< [chunk, V] f32; becomes dlogits in place in fp32
  TensorView dlogits_TV;                  ///< bf16 only
  TensorView maximum_T, sum_T, target_T;  ///< of one chunk
  TensorView loss_T;                      ///< of all tokens
};
HeadBuffers lay_out_head(ArenaCursor& arena, const ModelConfig& config, std::int64_t tokens,
                         DType compute);

struct HeadTraining {
  TensorView dn_TC;                          ///< out: gradient of the normalised stream
  TensorView dweight_VC;                     ///< f32
  Accumulate accumulate = Accumulate::kYes;  ///< of dweight, for the first chunk
  float scale = 1;  ///< of every token's loss: 1 / targets of the global batch
};

/// logits = n W^T; loss_sum [1] f64 += the token losses, added in token order. With `training`,
/// also the gradients: they need the logits while they exist. n [T, C]; weight [V, C].
void head_loss(Context& context, const HeadBuffers& buffers, ConstTensorView n_TC,
               ConstTensorView weight_VC, ConstTensorView targets_T, const HeadTraining* training,
               TensorView loss_sum);

}  // namespace trireme
