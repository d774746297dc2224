#include "model/head.h"

#include <algorithm>

#include "kernels/elementwise/elementwise.h"
#include "kernels/magnitude/magnitude.h"
#include "model/param_table.h"

namespace trireme {

VocabularyPart vocabulary_part(std::int64_t vocabulary, AxisRank rank) {
  const Slice rows = even_slice(vocabulary, rank.extent, rank.index);
  return {rows.begin, rows.size};
}

DType logits_type(const HeadShape& shape) {
  return shape.device == DeviceKind::kCpu ? DType::kF32 : shape.compute;
}

std::int64_t head_chunk_tokens(const HeadShape& shape) {
  constexpr std::int64_t kMost = 2048;
  if (logits_type(shape) == DType::kBF16) return std::min(shape.tokens, kMost);
  const std::int64_t columns = ceil_div(shape.vocabulary, shape.rank.extent);
  const std::int64_t about = (std::int64_t{1} << 22) / columns / 64 * 64;
  // Few where logits take much memory and products hide the traffic of the weight's gradient.
  const std::int64_t least =
      shape.device == DeviceKind::kCpu && shape.compute == DType::kF32 ? 192 : 512;
  return std::min(shape.tokens, std::clamp(about, least, kMost));
}

HeadAdapter lay_out_head_adapter(ArenaCursor& arena, const AdaptedProduct& of, bool training) {
  HeadAdapter adapter;
  if (of.ranks == 0) return adapter;
  adapter.rows.us_TR = arena.take(of.compute, {of.tokens, of.ranks});
  if (training) adapter.rows.du_TR = arena.take(of.compute, {of.tokens, of.ranks});
  if (of.magnitudes) adapter.rows.gains_3N = arena.take(adapter_gain_rows(of.out));
  if (of.magnitudes && training) adapter.rows.v_TN = arena.take(of.compute, {of.tokens, of.out});
  const auto bytes = static_cast<std::int64_t>(adapter_scratch_bytes(of));
  if (bytes > 0) adapter.scratch.memory = arena.take(DType::kF8E4M3, {bytes});
  return adapter;
}

HeadBuffers lay_out_head(ArenaCursor& arena, const HeadShape& shape) {
  const std::int64_t chunk = head_chunk_tokens(shape);
  const std::int64_t columns =
      round_up(vocabulary_part(shape.vocabulary, shape.rank).valid, kVocabularyRowAlignment);
  HeadBuffers buffers;
  const DType logits = logits_type(shape);
  buffers.logits_TV = arena.take(logits, {chunk, columns});
  if (shape.compute != logits) buffers.dlogits_TV = arena.take(shape.compute, {chunk, columns});
  if (shape.rank.extent > 1)
    buffers.parts_R3T = arena.take(DType::kF32, {shape.rank.extent, 3, chunk});
  buffers.maximum_T = arena.take(DType::kF32, {chunk});
  buffers.sum_T = arena.take(DType::kF32, {chunk});
  buffers.target_T = arena.take(DType::kF32, {chunk});
  buffers.loss_T = arena.take(DType::kF32, {shape.tokens});
  AdaptedProduct product{chunk, shape.adapter.hidden, columns, shape.adapter.ranks, shape.compute,
                         logits};
  product.magnitudes = shape.adapter.magnitudes;
  product.dropout = shape.adapter.dropout;
  product.in_place = true;
  product.joined = false;
  buffers.adapter = lay_out_head_adapter(arena, product, shape.adapter.training);
  return buffers;
}

namespace {

/// Maximum, sum and target logit of each token over the whole vocabulary.
CrossEntropyStatistics whole_statistics(Context& context, const TensorAxis& tensor,
                                        const HeadBuffers& buffers, const HeadLoss& args,
                                        const TensorView& logits) {
  const std::int64_t count = logits.shape[0];
  CrossEntropyStatistics statistics;
  statistics.maximum_T = buffers.maximum_T.rows(0, count);
  statistics.sum_T = buffers.sum_T.rows(0, count);
  statistics.target_logit_T = buffers.target_T.rows(0, count);
  statistics.logits_TV = logits;
  statistics.targets_T = args.targets_T;
  statistics.part = args.part;
  if (tensor.extent() == 1) {
    cross_entropy_statistics(context, statistics);
    return statistics;
  }
  TensorView parts = buffers.parts_R3T;
  parts.shape.set(2, count);
  const TensorView mine = parts.rows(tensor.rank().index, 1).reshape({3, count});
  const auto row = [&](std::int64_t i) { return mine.rows(i, 1).reshape({count}); };
  CrossEntropyStatistics part = statistics;
  part.maximum_T = row(0);
  part.sum_T = row(1);
  part.target_logit_T = row(2);
  cross_entropy_statistics(context, part);
  tensor.gather_parts(parts);
  cross_entropy_merge(context,
                      {statistics.maximum_T, statistics.sum_T, statistics.target_logit_T, parts});
  return statistics;
}

/// Of a chunk of tokens, from dlogits.
void chunk_gradients(Context& context, const AdapterScratch& scratch, ConstTensorView dlogits_TV,
                     const HeadLoss& args, const HeadTraining& training) {
  Gemm weight;
  weight.c_MN = training.dweight_VC;
  weight.a = dlogits_TV;
  weight.b = args.n_TC;
  weight.transpose_a = Transpose::kYes;
  weight.accumulate = training.accumulate;
  weight.use = "head_weight_gradient";
  if (weight.c_MN.given()) gemm(context, weight);
  ConstTensorView dv_TV = dlogits_TV;
  if (args.adapter.given()) {
    dv_TV = adapter_magnitude_gradient(context, scratch, dlogits_TV, args.adapter);
    adapter_backward_ranks(context, scratch, dv_TV, args.adapter);
    AdapterGradients gradients = training.adapter;
    gradients.rows_of = args.adapter.rows_of;
    adapter_backward_weight(context, scratch, gradients, dlogits_TV, args.n_TC);
  }
  if (!training.input) return;
  Gemm input;
  input.c_MN = args.n_TC;
  input.a = dv_TV;
  input.b = args.weight_VC;
  input.use = "head_input_gradient";
  gemm(context, input);
  if (args.adapter.given()) adapter_backward_input(context, scratch, args.n_TC, args.adapter);
}

/// One chunk of tokens: the views of `args` and the loss are its rows.
void chunk_loss(Context& context, const TensorAxis& tensor, const HeadBuffers& buffers,
                const HeadLoss& args, TensorView loss_T, const HeadTraining* training) {
  const std::int64_t count = args.n_TC.shape[0];
  const TensorView logits = buffers.logits_TV.rows(0, count);
  const AdapterScratch scratch{buffers.adapter.scratch.memory, args.dropout};
  head_logits(context, scratch, logits, args.n_TC, args.weight_VC, args.adapter);

  const CrossEntropyStatistics statistics =
      whole_statistics(context, tensor, buffers, args, logits);
  CrossEntropyFinish finish;
  finish.loss_T = loss_T;
  finish.logits_TV = logits;
  finish.maximum_T = statistics.maximum_T;
  finish.sum_T = statistics.sum_T;
  finish.target_logit_T = statistics.target_logit_T;
  finish.targets_T = args.targets_T;
  finish.part = args.part;
  if (training != nullptr) {
    finish.dlogits_TV = buffers.dlogits_TV.given() ? buffers.dlogits_TV.rows(0, count) : logits;
    finish.scale = training->scale;
    finish.z_loss = training->z_loss;
    if (training->z_loss != 0) finish.square_T = statistics.target_logit_T;
  }
  cross_entropy_finish(context, finish);
  if (finish.square_T.given()) sum_in_order(context, training->square_sum, finish.square_T);
  if (training != nullptr) chunk_gradients(context, scratch, finish.dlogits_TV, args, *training);
}

}  // namespace

void head_gains(Context& context, const AdapterScratch& scratch, ConstTensorView weight_VC,
                const AdapterWeights& adapter) {
  if (!adapter.given() || !adapter.magnitudes()) return;
  adapter_row_squares(context, scratch, weight_VC, false, adapter);
  adapter_gains(context, adapter);
}

void head_logits(Context& context, const AdapterScratch& scratch, TensorView logits_TV,
                 ConstTensorView n_TC, ConstTensorView weight_VC, const AdapterWeights& adapter) {
  Gemm product;
  product.c_MN = logits_TV;
  product.a = n_TC;
  product.b = weight_VC;
  product.transpose_b = Transpose::kYes;
  product.use = "head_forward";
  gemm(context, product);
  if (!adapter.given()) return;
  adapter_forward(context, scratch, logits_TV, n_TC, adapter);
  if (!adapter.magnitudes()) return;
  const AdapterRows& rows = adapter.rows_of;
  if (rows.v_TN.given()) cast(context, rows.v_TN, logits_TV);
  magnitude_forward(context, logits_TV, logits_TV, rows.gain());
}

void head_loss(Context& context, const TensorAxis& tensor, const HeadBuffers& buffers,
               const HeadLoss& args, const HeadTraining* training) {
  const std::int64_t tokens = args.n_TC.shape[0], chunk = buffers.logits_TV.shape[0];
  HeadTraining of_chunk = training != nullptr ? *training : HeadTraining{};
  AdapterWeights adapter = args.adapter;
  adapter.rows_of = buffers.adapter.rows;
  if (training == nullptr) adapter.rows_of.v_TN = {};
  head_gains(context, buffers.adapter.scratch, args.weight_VC, adapter);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t count = std::min(chunk, tokens - begin);
    HeadLoss part = args;
    part.n_TC = args.n_TC.rows(begin, count);
    part.targets_T = args.targets_T.rows(begin, count);
    part.adapter = adapter.rows(0, count);
    ConstTensorView& numbers = part.dropout.numbers_T2;
    if (numbers.given()) numbers = numbers.rows(begin, count);
    chunk_loss(context, tensor, buffers, part, buffers.loss_T.rows(begin, count),
               training != nullptr ? &of_chunk : nullptr);
    of_chunk.accumulate = of_chunk.adapter.a_RK.accumulate =
        of_chunk.adapter.parts[0].b_NR.accumulate = Accumulate::kYes;
  }
  if (training != nullptr && training->input) tensor.reduce(args.n_TC);
  sum_in_order(context, args.loss_sum, buffers.loss_T.rows(0, tokens));
}

}  // namespace trireme
