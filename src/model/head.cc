#include "model/head.h"

#include <algorithm>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/elementwise/elementwise.h"

namespace trireme {

std::int64_t head_chunk_tokens(const ModelConfig& config, std::int64_t tokens) {
  const std::int64_t about = (std::int64_t{1} << 22) / config.vocab_size / 64 * 64;
  return std::min(tokens, std::clamp<std::int64_t>(about, 512, 2048));
}

HeadBuffers lay_out_head(ArenaCursor& arena, const ModelConfig& config, std::int64_t tokens,
                         DType compute) {
  const std::int64_t chunk = head_chunk_tokens(config, tokens);
  HeadBuffers buffers;
  buffers.logits_TV = arena.take(DType::kF32, {chunk, config.vocab_size});
  if (compute != DType::kF32) buffers.dlogits_TV = arena.take(compute, {chunk, config.vocab_size});
  buffers.maximum_T = arena.take(DType::kF32, {chunk});
  buffers.sum_T = arena.take(DType::kF32, {chunk});
  buffers.target_T = arena.take(DType::kF32, {chunk});
  buffers.loss_T = arena.take(DType::kF32, {tokens});
  return buffers;
}

namespace {

/// Rows [begin, begin + count) of one pass through the head.
void chunk_loss(Context& context, const HeadBuffers& buffers, ConstTensorView n_TC,
                ConstTensorView weight_VC, ConstTensorView targets_T, TensorView loss_T,
                const HeadTraining* training, TensorView dn_TC, Accumulate accumulate) {
  const std::int64_t count = n_TC.shape[0], vocab = weight_VC.shape[0];
  const TensorView logits = buffers.logits_TV.rows(0, count);
  Gemm product;
  product.c_MN = logits;
  product.a = n_TC;
  product.b = weight_VC;
  product.transpose_b = Transpose::kYes;
  product.use = "head_forward";
  gemm(context, product);

  CrossEntropyStatistics statistics;
  statistics.maximum_T = buffers.maximum_T.rows(0, count);
  statistics.sum_T = buffers.sum_T.rows(0, count);
  statistics.target_logit_T = buffers.target_T.rows(0, count);
  statistics.logits_TV = logits;
  statistics.targets_T = targets_T;
  statistics.part = {0, vocab};
  cross_entropy_statistics(context, statistics);

  CrossEntropyFinish finish;
  finish.loss_T = loss_T;
  finish.logits_TV = logits;
  finish.maximum_T = statistics.maximum_T;
  finish.sum_T = statistics.sum_T;
  finish.target_logit_T = statistics.target_logit_T;
  finish.targets_T = targets_T;
  finish.part = statistics.part;
  if (training != nullptr) {
    finish.dlogits_TV = buffers.dlogits_TV.given() ? buffers.dlogits_TV.rows(0, count) : logits;
    finish.scale = training->scale;
  }
  cross_entropy_finish(context, finish);
  if (training == nullptr) return;

  Gemm input;
  input.c_MN = dn_TC;
  input.a = finish.dlogits_TV;
  input.b = weight_VC;
  input.use = "head_input_gradient";
  gemm(context, input);
  Gemm weight;
  weight.c_MN = training->dweight_VC;
  weight.a = finish.dlogits_TV;
  weight.b = n_TC;
  weight.transpose_a = Transpose::kYes;
  weight.accumulate = accumulate;
  weight.use = "head_weight_gradient";
  gemm(context, weight);
}

}  // namespace

void head_loss(Context& context, const HeadBuffers& buffers, ConstTensorView n_TC,
               ConstTensorView weight_VC, ConstTensorView targets_T, const HeadTraining* training,
               TensorView loss_sum) {
  const std::int64_t tokens = n_TC.shape[0], chunk = buffers.logits_TV.shape[0];
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t count = std::min(chunk, tokens - begin);
    chunk_loss(context, buffers, n_TC.rows(begin, count), weight_VC, targets_T.rows(begin, count),
               buffers.loss_T.rows(begin, count), training,
               training != nullptr ? training->dn_TC.rows(begin, count) : TensorView(),
               training != nullptr && begin == 0 ? training->accumulate : Accumulate::kYes);
  }
  sum_in_order(context, loss_sum, buffers.loss_T.rows(0, tokens));
}

}  // namespace trireme
