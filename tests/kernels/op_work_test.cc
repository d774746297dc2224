// What an op says of its own work: the arithmetic of its products, and the bytes of each operand
// once. Sizes are small and odd; the figures are worked out by hand.

#include <gtest/gtest.h>

#include "base/op_trace.h"
#include "kernels/activation_codes/activation_codes.h"
#include "kernels/adafactor/adafactor.h"
#include "kernels/attention/attention.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/expert_rows/expert_rows.h"
#include "kernels/expert_rows/weighted_glu_codes.h"
#include "kernels/gelu/gelu.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_quantized.h"
#include "kernels/glu/glu.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/latent_heads/latent_heads.h"
#include "kernels/muon/muon.h"
#include "kernels/nf4/nf4.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_segments.h"
#include "kernels/rope/rope.h"
#include "kernels/router/router.h"
#include "kernels/shards/shards.h"
#include "kernels/support/op_test.h"
#include "kernels/update/update.h"
#include "kernels/update/update_8bit.h"
#include "tensor/heads_view.h"

namespace trireme {
namespace {

constexpr std::int64_t kT = 5, kC = 6;

class OpWorkTest : public testing::Test {
 protected:
  OpWorkTest() : trace_(phases_), context_(test_context(isas_to_test().front())) {
    context_.set_op_trace(&trace_);
  }
  TensorView f32(const Shape& shape) { return make(DType::kF32, shape); }
  TensorView bf16(const Shape& shape) { return make(DType::kBF16, shape); }
  TensorView i32(const Shape& shape) { return make(DType::kI32, shape); }
  TensorView make(DType dtype, const Shape& shape) {
    tensors_.push_back(std::make_unique<TestTensor>(dtype, shape));
    return tensors_.back()->view();
  }
  /// Of the one call since the last look.
  void expect_work(const char* op, std::int64_t flops, std::int64_t bytes) {
    ASSERT_EQ(trace_.totals().size(), 1U) << op;
    EXPECT_STREQ(trace_.totals()[0].op, op);
    EXPECT_EQ(trace_.totals()[0].calls, 1) << op;
    EXPECT_EQ(trace_.totals()[0].flops, flops) << op;
    EXPECT_EQ(trace_.totals()[0].bytes, bytes) << op;
    trace_.clear();
  }

  Trace phases_{1};
  OpTrace trace_;
  Context context_;
  std::vector<std::unique_ptr<TestTensor>> tensors_;
};

TEST_F(OpWorkTest, a_product_has_two_operations_for_each_pair) {
  Gemm args;
  args.c_MN = f32({3, 5});
  args.a = f32({3, 7});
  args.b = f32({7, 5});
  gemm(context_, args);
  expect_work("gemm", 2 * 3 * 5 * 7, 4 * (15 + 21 + 35));

  args.use = "another use";
  args.accumulate = Accumulate::kYes;
  gemm(context_, args);
  expect_work("another use", 2 * 3 * 5 * 7, 4 * (2 * 15 + 21 + 35));

  args.accumulate = Accumulate::kNo;
  args.c_MN = bf16({3, 5});
  args.a = bf16({3, 7});
  args.b = bf16({7, 5});
  args.bias_N = bf16({5});
  gemm(context_, args);
  EXPECT_EQ(trace_.totals()[0].type, DType::kBF16);
  expect_work("another use", 2 * 3 * 5 * 7, 2 * (15 + 21 + 35 + 5));
}

TEST_F(OpWorkTest, products_of_experts_count_the_rows_and_experts_that_there_are) {
  const TestTensor begins = TestTensor::of(DType::kI32, {5}, {1, 2, 4, 4, 4});  // 3 rows of one
  GroupedGemm args;
  args.c_RN = bf16({kT, 3});
  args.a_RK = bf16({kT, 7});
  args.b = bf16({2, 7, 3});
  args.begins = begins;
  args.sources = 2;
  grouped_gemm(context_, args);
  expect_work("grouped_gemm", 2 * 3 * 3 * 7, 2 * (3 * (3 + 7) + 21));

  GroupedGemmWeights weights;
  weights.c_GMN = f32({2, 7, 3});
  weights.a_RM = args.a_RK;
  weights.b_RN = args.c_RN;
  weights.begins = begins;
  weights.sources = 2;
  weights.use = "of weights";
  grouped_gemm_weights(context_, weights);
  expect_work("of weights", 2 * 3 * 3 * 7, 2 * 3 * (3 + 7) + 4 * 2 * 21);
  weights.accumulate = Accumulate::kYes;
  grouped_gemm_weights(context_, weights);
  expect_work("of weights", 2 * 3 * 3 * 7, 2 * 3 * (3 + 7) + 4 * 2 * 21);
}

TEST_F(OpWorkTest, attention_counts_the_pairs_that_the_mask_leaves) {
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kD = 6, kDv = 2, kB = 2;
  const PositionRange all{0, kT};
  AttentionForward args;
  args.mask = {kB, {&all, 1}, {&all, 1}, {}};
  args.o = heads_of(f32({kB * kT, kHeads * kDv}), 0, kHeads, kDv);
  args.q = heads_of(f32({kB * kT, kHeads * kD}), 0, kHeads, kD);
  args.k = heads_of(f32({kB * kT, kKvHeads * kD}), 0, kKvHeads, kD);
  args.v = heads_of(f32({kB * kT, kKvHeads * kDv}), 0, kKvHeads, kDv);
  args.lse_TH = f32({kB * kT, kHeads});
  attention_forward(context_, args);
  const std::int64_t rows = kB * kT, q_bytes = 4 * rows * kHeads * kD,
                     k_bytes = 4 * rows * kKvHeads * kD, o_bytes = 4 * rows * kHeads * kDv,
                     v_bytes = 4 * rows * kKvHeads * kDv, row_bytes = 4 * rows * kHeads,
                     bytes = q_bytes + k_bytes + o_bytes + v_bytes + row_bytes,
                     flops = 2 * (kD + kDv) * kHeads;
  std::int64_t pairs = kB * (1 + 2 + 3 + 4 + 5);
  expect_work("attention_forward", flops * pairs, bytes);

  AttentionBackward backward;
  backward.mask = args.mask;
  backward.q = args.q;
  backward.k = args.k;
  backward.v = args.v;
  backward.d_o = args.o;
  backward.lse_TH = args.lse_TH;
  backward.delta_TH = f32({kB * kT, kHeads});
  backward.dq = heads_of(f32({kB * kT, kHeads * kD}), 0, kHeads, kD);
  backward.dk = heads_of(f32({kB * kT, kKvHeads * kD}), 0, kKvHeads, kD);
  backward.dv = heads_of(f32({kB * kT, kKvHeads * kDv}), 0, kKvHeads, kDv);
  attention_backward(context_, backward);
  expect_work("attention_backward", (6 * kD + 4 * kDv) * kHeads * pairs,
              2 * (q_bytes + k_bytes + v_bytes) + bytes + row_bytes);

  // Documents begin at 0 and 3 of the first sequence, the second is one.
  const TensorView first_key = i32({kB * kT});
  first_key.as<std::int32_t>()[3] = first_key.as<std::int32_t>()[4] = 3;
  args.mask.first_key_T = first_key;
  pairs = (1 + 2 + 3 + 1 + 2) + 15;
  attention_forward(context_, args);
  expect_work("attention_forward", flops * pairs, bytes);

  // The last two queries over all keys, as with a cache.
  const PositionRange last{kT - 2, 2};
  args.mask = {1, {&last, 1}, {&all, 1}, {}};
  args.q.tokens = args.o.tokens = 2;
  args.k.tokens = args.v.tokens = kT;
  args.lse_TH.shape = {2, kHeads};
  attention_forward(context_, args);
  EXPECT_EQ(trace_.totals()[0].flops, flops * (4 + 5));
}

TEST_F(OpWorkTest, the_rows_beside_attention_are_read_once) {
  const HeadsView a = heads_of(bf16({kT, 8}), 0, 2, 4), b = heads_of(bf16({kT, 8}), 0, 2, 4);
  attention_delta(context_, f32({kT, 2}), a, b);
  expect_work("attention_delta", 0, 2 * 2 * kT * 8);
  attention_merge(context_, a, f32({kT, 2}), b, f32({kT, 2}));
  expect_work("attention_merge", 0, 3 * 2 * kT * 8);
  attention_sinks(context_, a, f32({kT, 2}), bf16({2}));
  expect_work("attention_sinks", 0, 2 * 2 * kT * 8);
  attention_sink_terms(context_, f32({kT, 2}), bf16({2}), f32({kT, 2}), f32({kT, 2}));
  expect_work("attention_sink_terms", 0, 3 * 4 * kT * 2);
}

TEST_F(OpWorkTest, a_norm_moves_its_rows_once) {
  NormForward args;
  args.y_TC = f32({kT, kC});
  args.x_TC = f32({kT, kC});
  args.weight_C = f32({kC});
  args.rstd_T = f32({kT});
  norm_forward(context_, args);
  expect_work("norm_forward", 0, 2 * 4 * kT * kC);
  args.residual_TC = f32({kT, kC});
  args.sum_TC = f32({kT, kC});
  norm_forward(context_, args);
  expect_work("norm_forward", 0, 4 * 4 * kT * kC);

  NormBackward backward;
  backward.dx_TC = f32({kT, kC});
  backward.dy_TC = f32({kT, kC});
  backward.s_TC = args.sum_TC;
  backward.weight_C = args.weight_C;
  backward.rstd_T = args.rstd_T;
  norm_backward(context_, backward);
  expect_work("norm_backward", 0, 3 * 4 * kT * kC);
  backward.dresidual_TC = f32({kT, kC});
  backward.y_TC = f32({kT, kC});
  norm_backward(context_, backward);
  expect_work("norm_backward", 0, 5 * 4 * kT * kC);
}

TEST_F(OpWorkTest, a_rotation_moves_its_heads_once) {
  const HeadsView in = heads_of(bf16({kT, 8}), 0, 2, 4), out = heads_of(bf16({kT, 8}), 0, 2, 4);
  RopeForward args;
  args.out = out;
  args.in = in;
  args.positions_T = i32({kT});
  args.cos_sin_PR = f32({kT, 4});
  rope_forward(context_, args);
  expect_work("rope_forward", 0, 2 * 2 * kT * 8);

  RopeBackward backward;
  backward.din = out;
  backward.dout = out;
  backward.positions_T = args.positions_T;
  backward.cos_sin_PR = args.cos_sin_PR;
  rope_backward(context_, backward);
  expect_work("rope_backward", 0, 2 * 2 * kT * 8);
  backward.in = in;
  backward.weight_D = bf16({4});
  backward.rstd_TH = f32({kT, 2});
  rope_backward(context_, backward);
  expect_work("rope_backward", 0, 3 * 2 * kT * 8);
}

TEST_F(OpWorkTest, heads_of_latents_move_once_and_their_products_read_a_part_of_the_weight) {
  constexpr std::int64_t kH = 2, kD = 9, kL = 7;
  constexpr LatentDims kDims{4, 2, 3};
  const LatentRope rope{i32({kT}), f32({kT, 2}), true};
  const auto heads = [&] { return heads_of(bf16({kT, kH * kD}), 0, kH, kD); };
  const HeadsView q = heads(), k = heads(), v = heads(), r = heads_of(bf16({kT, 2}), 0, 1, 2);
  const TensorView in_q = bf16({kT, kH * 6}), in_k = bf16({kT, kH * 7});
  latent_queries(context_, {q, in_q, kDims, rope});
  expect_work("latent_queries", 0, 2 * kT * kH * (kD + 6));
  latent_keys(context_, {k, v, in_k, r, kDims, rope});
  expect_work("latent_keys", 0, 2 * kT * (kH * (2 * kD + 7) + 2));
  latent_queries_backward(context_, {in_q, q, kDims, rope});
  expect_work("latent_queries_backward", 0, 2 * kT * kH * 2 * 6);
  latent_keys_backward(context_, {in_k, r, k, v, kDims, rope});
  expect_work("latent_keys_backward", 0, 2 * kT * (kH * (2 * 7 + 2) + 2));
  latent_row(context_, {heads_of(bf16({kT, kL + 2}), 0, 1, kL + 2), bf16({kT, kL}), r, rope});
  expect_work("latent_row", 0, 2 * kT * 2 * (kL + 2));

  const TensorView w = bf16({kH * 7, kL});
  const HeadsView rows = heads_of(bf16({kT, kH * (kL + 2)}), 0, kH, kL + 2);
  latent_absorbed_queries(context_, {rows, in_q, w, kDims, rope});
  EXPECT_EQ(trace_.totals()[0].type, DType::kBF16);
  expect_work("latent_absorbed_queries", 2 * kT * kH * 4 * kL,
              2 * (kT * kH * (kL + 2 + 6) + kH * 4 * kL));
  latent_absorbed_values(context_, {heads_of(bf16({kT, kH * 3}), 0, kH, 3),
                                    heads_of(bf16({kT, kH * kL}), 0, kH, kL), w, kDims});
  expect_work("latent_absorbed_values", 2 * kT * kH * 3 * kL,
              2 * (kT * kH * (kL + 3) + kH * 3 * kL));
}

TEST_F(OpWorkTest, an_activation_moves_its_operands_once) {
  const TensorView act = f32({kT, kC}), gate_up = f32({kT, 2 * kC}), d = f32({kT, 2 * kC}),
                   dact = f32({kT, kC});
  glu_forward(context_, GluGate::kSilu, act, gate_up);
  expect_work("swiglu_forward", 0, 3 * 4 * kT * kC);
  glu_backward(context_, GluGate::kSilu, d, dact, gate_up);
  expect_work("swiglu_backward", 0, 5 * 4 * kT * kC);
  glu_backward(context_, GluGate::kSilu, d, dact, gate_up, act);
  expect_work("swiglu_backward", 0, 6 * 4 * kT * kC);

  const TensorView x = bf16({kT, kC}), y = bf16({kT, kC}), dx = bf16({kT, kC});
  gelu_forward(context_, y, x);
  expect_work("gelu_forward", 0, 2 * 2 * kT * kC);
  gelu_backward(context_, dx, y, x);
  expect_work("gelu_backward", 0, 3 * 2 * kT * kC);
  dropout(context_, y, x, {0.5, 1, make(DType::kI32, {kT, 2})});
  expect_work("dropout", 0, 2 * 2 * kT * kC);
}

TEST_F(OpWorkTest, an_activation_that_leaves_codes_stores_no_rows_but_where_they_are_asked_for) {
  constexpr std::int64_t kF = 16, kRows = 2 * kT * kF;
  const auto codes = [&](DType format, const ScaleDim& rows, const ScaleDim& columns) {
    return QuantizedView{make(format, codes_shape(rows, columns, true)),
                         f32(scales_shape(rows, columns)), rows, columns, true};
  };
  const ScaleDim tokens(kT, 1), ffn(kF, 1), along(kF, 128), across(kT, 128);
  const TensorView x = bf16({kT, kF}), dact = bf16({kT, kF});
  const ActivationGradient out{codes(DType::kF8E5M2, tokens, along),
                               codes(DType::kF8E5M2, ffn, across),
                               codes(DType::kF8E4M3, ffn, across)};
  constexpr std::int64_t kAlong = kT * (128 + 4), kAcross = kF * (128 + 4);
  activation_forward_codes(context_, ActivationKind::kGelu, codes(DType::kF8E4M3, tokens, along),
                           x);
  expect_work("gelu_forward_codes", 0, kRows + kAlong);
  activation_backward_codes(context_, ActivationKind::kGelu, out, dact, x);
  expect_work("gelu_backward_codes", 0, 2 * kRows + kAlong + 2 * kAcross);
  activation_backward_codes(context_, ActivationKind::kGelu,
                            {out.dx, out.dx_turned, out.act_turned, x}, dact, x);
  expect_work("gelu_backward_codes", 0, 3 * kRows + kAlong + 2 * kAcross);
}

TEST_F(OpWorkTest, an_embedding_moves_the_rows_that_are_looked_up) {
  EmbeddingForward args;
  args.out_TC = bf16({kT, kC});
  args.ids_T = i32({kT});
  args.table_VC = bf16({1000, kC});
  embedding_forward(context_, args);
  expect_work("embedding_forward", 0, 2 * 2 * kT * kC);
  args.positions_T = i32({kT});
  args.position_table_PC = bf16({9, kC});
  embedding_forward(context_, args);
  expect_work("embedding_forward", 0, 3 * 2 * kT * kC);
  embedding_backward(context_, f32({1000, kC}), args.ids_T, args.out_TC);
  expect_work("embedding_backward", 0, (2 + 2 * 4) * kT * kC);
}

TEST_F(OpWorkTest, a_router_reads_its_logits_once) {
  constexpr std::int64_t kE = 7, kK = 2;
  RouterForward args;
  args.rule.chosen = kK;
  args.chosen_Tk = i32({kT, kK});
  args.weights_Tk = f32({kT, kK});
  args.load_BE = i32({1, kE});
  args.logits_TE = f32({kT, kE});
  router_forward(context_, args);
  expect_work("router_forward", 0, 4 * kT * (kE + 2 * kK));

  RouterBackward backward;
  backward.rule = args.rule;
  backward.dlogits_TE = bf16({kT, kE});
  backward.losses = make(DType::kF64, {2});
  backward.logits_TE = args.logits_TE;
  backward.chosen_Tk = args.chosen_Tk;
  backward.dweights_Tk = args.weights_Tk;
  router_backward(context_, backward);
  expect_work("router_backward", 0, kT * ((4 + 2) * kE + 4 * 2 * kK));
}

TEST_F(OpWorkTest, rows_of_experts_move_once) {
  constexpr std::int64_t kK = 2, kRows = 9;
  const TensorView begins = i32({3}), row_slot = i32({kRows}), slot_row = i32({kT, kK}),
                   sources = i32({2});
  expert_rows(context_, {begins, row_slot, slot_row, i32({kT, kK}), i32({2}), sources});
  expect_work("expert_rows", 0, 4 * (kRows + 2 * kT * kK));

  const TensorView rows = bf16({kRows, kC}), x = bf16({kT, kC}), y = bf16({kT, kC});
  gather_rows(context_, rows, x, row_slot, begins, kK);
  expect_work("gather_rows", 0, 2 * 2 * kRows * kC);
  combine_rows(context_, y, rows, slot_row);
  expect_work("combine_rows", 0, 2 * (kT + kRows) * kC);
  combine_rows(context_, y, rows, slot_row, x);
  expect_work("combine_rows", 0, 2 * (2 * kT + kRows) * kC);

  const TensorView h = bf16({kRows, kC}), dh = bf16({kRows, kC}), gate_up = bf16({kRows, 2 * kC}),
                   d = bf16({kRows, 2 * kC}), weights = f32({kRows});
  const WeightedGlu unit{GluGate::kGelu, gate_up, weights, {}, {}};
  weighted_glu_forward(context_, h, unit);
  expect_work("weighted_geglu_forward", 0, 3 * 2 * kRows * kC);
  weighted_glu_backward(context_, d, f32({kRows}), h, dh, unit);
  expect_work("weighted_geglu_backward", 0, 6 * 2 * kRows * kC);
  const auto codes = [&](const ScaleDim& columns, bool across) {
    return QuantizedSegments(
        make(DType::kF8E4M3, QuantizedSegments::codes_shape(kRows, 2, columns, across)),
        f32(QuantizedSegments::scales_shape(kRows, 2, columns, across)), columns, across);
  };
  const auto bytes = [](const QuantizedSegments& of) {
    return of.codes.bytes() + of.scales.bytes();
  };
  const std::int64_t f = 8;
  ScaleDim two(f, 128);
  two.add({f});
  const TensorView units = bf16({kRows, 2 * f});
  const WeightedGlu by_slot{GluGate::kSilu, units, weights, row_slot, begins};
  const QuantizedSegments along = codes({f, 128}, false), d_along = codes(two, false),
                          d_across = codes(two, true), across = codes({f, 128}, true);
  weighted_glu_forward_codes(context_, along, by_slot);
  expect_work("weighted_swiglu_forward_codes", 0, 2 * 2 * kRows * f + bytes(along));
  weighted_glu_backward_codes(context_, {d_along, d_across, across}, f32({kRows}), bf16({kRows, f}),
                              by_slot);
  expect_work("weighted_swiglu_backward_codes", 0,
              3 * 2 * kRows * f + bytes(d_along) + bytes(d_across) + bytes(across));
  const QuantizedSegments of_tokens = codes({kC, 128}, true);
  quantize_segments(context_, {of_tokens, x, begins, row_slot, kK});
  expect_work("quantize_segments", 0, 2 * kRows * kC + bytes(of_tokens));
  const ExpertBias bias{bf16({2, kC}), weights, row_slot, begins};
  expert_bias_forward(context_, rows, bias);
  expect_work("expert_bias_forward", 0, 2 * 2 * kRows * kC);
  expert_bias_backward(context_, f32({kRows}), rows, bias);
  expect_work("expert_bias_backward", 0, 2 * kRows * kC);
}

TEST_F(OpWorkTest, the_loss_reads_the_logits_twice_and_writes_their_gradient) {
  CrossEntropyStatistics statistics;
  statistics.maximum_T = f32({kT});
  statistics.sum_T = f32({kT});
  statistics.target_logit_T = f32({kT});
  statistics.logits_TV = f32({kT, 11});
  statistics.targets_T = i32({kT});
  statistics.part = {0, 11};
  cross_entropy_statistics(context_, statistics);
  expect_work("cross_entropy_statistics", 0, 4 * kT * 11);

  CrossEntropyMerge merge;
  merge.maximum_T = statistics.maximum_T;
  merge.sum_T = statistics.sum_T;
  merge.target_logit_T = statistics.target_logit_T;
  merge.parts_R3T = f32({2, 3, kT});
  cross_entropy_merge(context_, merge);
  expect_work("cross_entropy_merge", 0, (2 + 1) * 3 * 4 * kT);

  CrossEntropyFinish finish;
  finish.loss_T = f32({kT});
  finish.logits_TV = statistics.logits_TV;
  finish.maximum_T = statistics.maximum_T;
  finish.sum_T = statistics.sum_T;
  finish.target_logit_T = statistics.target_logit_T;
  finish.targets_T = statistics.targets_T;
  finish.part = statistics.part;
  cross_entropy_finish(context_, finish);
  expect_work("cross_entropy_finish", 0, 4 * kT);
  finish.dlogits_TV = bf16({kT, 11});
  finish.scale = f32({1});
  cross_entropy_finish(context_, finish);
  expect_work("cross_entropy_finish", 0, (4 + 2) * kT * 11);
}

TEST_F(OpWorkTest, weights_and_gradients_move_once) {
  const TensorView a = f32({kT, kC}), b = f32({kT, kC}), half = bf16({kT, kC});
  cast(context_, half, a);
  expect_work("cast", 0, (4 + 2) * kT * kC);
  clear(context_, a);
  expect_work("clear", 0, 4 * kT * kC);
  accumulate(context_, a, b);
  expect_work("accumulate", 0, 3 * 4 * kT * kC);
  column_sum(context_, f32({kC}), half);
  expect_work("column_sum", 0, 2 * kT * kC);
  const ShardedTensor one{0, 0, kT, kC, -1};
  const TensorView shards = f32({2, kT / 2 * kC});
  const ShardTable table{&one, 1, 2};
  pack_shards(context_, shards, a, {table, {0, kT / 2 * kC}});
  expect_work("pack_shards", 0, 2 * 4 * 2 * (kT / 2) * kC);
  unpack_shards(context_, a, shards, {table, {0, kT / 2 * kC}});
  expect_work("unpack_shards", 0, 2 * 4 * 2 * (kT / 2) * kC);
  ExactSum sum;
  const ConstTensorView gradients[] = {a, f32({3})};
  grad_norm_accumulate(context_, sum, gradients);
  expect_work("grad_norm", 0, 4 * (kT * kC + 3));

  const UpdateTensor tensors[] = {{a, {}, f32({kT, kC}), f32({kT, kC}), b, 0},
                                  {f32({3}), bf16({3}), f32({3}), f32({3}), f32({3}), 0}};
  adamw_update(context_, tensors, {}, {1e-3, 0.1, 0.05, 1});
  expect_work("adamw_update", 0, 7 * 4 * kT * kC + 3 * (7 * 4 + 2));
  const UpdateTensor of_lion[] = {{a, {}, f32({kT, kC}), {}, b, 0}};
  lion_update(context_, of_lion, {}, 1e-3, 1);
  expect_work("lion_update", 0, 5 * 4 * kT * kC);
  const UpdateTensor free[] = {{a, f32({kT, kC}), f32({kT, kC}), f32({kT, kC}), b, 0}};
  schedule_free_update(context_, free, {}, {1e-3, 0.05, 1, 1});
  expect_work("schedule_free_update", 0, 8 * 4 * kT * kC);
  schedule_free_copy(context_, free, 0.9);
  expect_work("schedule_free_copy", 0, 3 * 4 * kT * kC);
  CodedTensor coded;
  coded.parameter = a;
  coded.exp_avg = coded.exp_avg_sq = {make(DType::kU8, {kT, kC}), f32({(kT * kC + 255) / 256}), {}};
  coded.gradient = b;
  adamw_8bit_update(context_, {&coded, 1}, {}, {1e-3, 0.1, 0.05, 1});
  const std::int64_t moment = kT * kC + 4 * ((kT * kC + 255) / 256);
  expect_work("adamw_8bit_update", 0, 3 * 4 * kT * kC + 2 * 2 * moment);
  const auto lines = [&](std::int64_t count, std::int64_t terms) {
    return AdafactorLines{f32({count}), make(DType::kI32, {count}), make(DType::kF64, {count}),
                          terms};
  };
  const AdafactorTensor factored[] = {{a,
                                       bf16({kT, kC}),
                                       b,
                                       {},
                                       {},
                                       lines(kT, kC),
                                       lines(kC, kT),
                                       make(DType::kF64, {ExactSum::kWords}),
                                       f32({3})}};
  adafactor_largest(context_, factored);
  expect_work("adafactor_largest", 0, 4 * kT * kC);
  adafactor_sums(context_, factored);
  expect_work("adafactor_sums", 0, 2 * 4 * kT * kC);
  adafactor_lines(context_, factored, {});
  expect_work("adafactor_lines", 0, 2 * (4 + 8) * (kT + kC));
  adafactor_squares(context_, factored, {});
  expect_work("adafactor_squares", 0, 4 * kT * kC);
  adafactor_update(context_, factored, 1);
  expect_work("adafactor_update", 0, (3 * 4 + 2) * kT * kC);
  const AveragedTensor averages[] = {{a, b}};
  average_update(context_, averages, 0.5);
  expect_work("average_update", 0, 3 * 4 * kT * kC);
  const MuonMomentumTensor momenta[] = {{a, b, half}};
  muon_momentum(context_, momenta, 0.95, 1);
  expect_work("muon_momentum", 0, (3 * 4 + 2) * kT * kC);
  const MuonUpdateTensor updates[] = {{a, {}, half}};
  muon_update(context_, updates, 0);
  expect_work("muon_update", 0, (2 * 4 + 2) * kT * kC);
  newton_schulz_operand(context_, half, a, 1, 1);
  expect_work("newton_schulz_operand", 0, (2 * 4 + 2) * kT * kC);
  newton_schulz_polynomial(context_, half, a, 1, 1);
  expect_work("newton_schulz_polynomial", 0, (2 * 2 + 4) * kT * kC);
}

TEST_F(OpWorkTest, fp8_moves_codes_and_scales_once) {
  const ScaleDim rows(kT, 1), columns(200, 128, 100);  // 3 blocks, 384 codes where padded
  const QuantizedView dense{make(DType::kF8E4M3, {kT, 200}), f32({kT, 3}), rows, columns, false};
  const QuantizedView padded{make(DType::kF8E4M3, {kT, 384}), f32({kT, 3}), rows, columns, true};
  const TensorView amax = i32({kT, 3}), x = bf16({kT, 200});
  constexpr std::int64_t kCodes = kT * 200, kPadded = kT * 384, kScales = 4 * kT * 3;
  absolute_max(context_, amax, x, rows, columns);
  expect_work("absolute_max", 0, 2 * kCodes + 2 * kScales);
  quantize(context_, {dense, x});
  expect_work("quantize", 0, 2 * kCodes + kCodes + kScales);
  quantize(context_, {padded, x, amax});
  expect_work("quantize", 0, 2 * kCodes + kPadded + 2 * kScales);
  const QuantizedView turned{make(DType::kF8E4M3, {200, kT}), f32({200, 1}), columns.with_block(1),
                             rows.with_block(128), false};
  quantize_both(context_, {padded, turned, x, amax});
  expect_work("quantize_both", 0, 2 * kCodes + kPadded + kCodes + 2 * kScales + 4 * 200);
  scales_of(context_, dense.scales, amax, DType::kF8E4M3);
  expect_work("scales_of", 0, 2 * kScales);
  dequantize(context_, x, dense);
  expect_work("dequantize", 0, 2 * kCodes + kCodes + kScales);
  reorder(context_, padded, dense, Transpose::kNo);
  expect_work("reorder", 0, kCodes + kPadded + 2 * kScales);

  QuantizedGemm product;
  product.c_MN = f32({kT, kT});
  product.a = product.b = padded;
  gemm_quantized(context_, product);
  EXPECT_EQ(trace_.totals()[0].type, DType::kF8E4M3);
  expect_work("gemm_fp8", 2 * kT * kT * 200, 4 * kT * kT + 2 * (kPadded + kScales));
}

TEST_F(OpWorkTest, nf4_moves_half_a_byte_and_a_sixteenth_an_element) {
  constexpr std::int64_t kCount = kT * 200, kCoded = kCount / 2 + 4 * ((kCount + 63) / 64);
  const Shape shape{kT, 200};
  const Nf4View coded{make(DType::kU8, nf4_codes_shape(shape)), f32(nf4_absmax_shape(shape)),
                      shape};
  nf4_quantize(context_, coded, f32(shape));
  expect_work("nf4_quantize", 0, 4 * kCount + kCoded);
  nf4_dequantize(context_, bf16(shape), coded);
  expect_work("nf4_dequantize", 0, 2 * kCount + kCoded);
}

TEST_F(OpWorkTest, without_a_trace_nothing_is_recorded) {
  context_.set_op_trace(nullptr);
  clear(context_, f32({kT, kC}));
  EXPECT_TRUE(trace_.totals().empty());
}

}  // namespace
}  // namespace trireme
