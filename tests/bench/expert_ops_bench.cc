// The ops around experts: 8 of 128 for each token, all of them here, of an eighth of ffn each.

#include <numeric>

#include "bench/op_bench.h"
#include "kernels/expert_rows/expert_rows.h"
#include "kernels/expert_rows/weighted_glu_codes.h"
#include "kernels/quantize/quantize_segments.h"
#include "kernels/router/router.h"

namespace trireme::bench {
namespace {

constexpr std::int64_t kExperts = 128, kChosen = 8;

RouterForward router_args(Operands& operands, const RouterRule& rule) {
  const std::int64_t rows = operands.size.rows();
  RouterForward args;
  args.rule = rule;
  args.chosen_Tk = operands.indices(rows * kChosen, kExperts).reshape({rows, kChosen});
  args.weights_Tk = operands.f32({rows, kChosen});
  const std::int64_t counts = operands.size.sequences * kExperts;
  args.load_BE = operands.indices(counts, 1).reshape({operands.size.sequences, kExperts});
  args.balance_BE = operands.indices(counts, 1).reshape({operands.size.sequences, kExperts});
  args.logits_TE = operands.f32({rows, kExperts});
  if (rule.score == RouterScore::kSigmoid) args.bias_E = operands.f32({kExperts});
  return args;
}

/// Qwen3's and DeepSeek-V3's.
constexpr RouterRule kSoftmaxRule{RouterScore::kSoftmax, kChosen, true, 1, 1, 1};
constexpr RouterRule kSigmoidRule{RouterScore::kSigmoid, kChosen, true, 8, 4, 2.5F};

MakeOp router_forward_of(const RouterRule& rule) {
  return [rule](Operands& operands) -> std::function<void(Context&)> {
    return
        [args = router_args(operands, rule)](Context& context) { router_forward(context, args); };
  };
}

MakeOp router_backward_of(const RouterRule& rule) {
  return [rule](Operands& operands) -> std::function<void(Context&)> {
    const RouterForward forward = router_args(operands, rule);
    Context context(bench_device(), 1, detect_isa());
    router_forward(context, forward);
    RouterBackward args;
    args.rule = rule;
    args.dlogits_TE = operands.typed(forward.logits_TE.shape);
    args.losses = operands.f64({2});
    args.logits_TE = forward.logits_TE;
    args.chosen_Tk = forward.chosen_Tk;
    args.dweights_Tk = forward.weights_Tk;
    args.balance_BE = operands.f32({operands.size.sequences, kExperts});
    args.z = 1e-3F;
    return [args](Context& timed) { router_backward(timed, args); };
  };
}

ExpertRows table_args(Operands& operands) {
  const std::int64_t rows = operands.size.rows();
  const RouterForward router = router_args(operands, kSoftmaxRule);
  Context context(bench_device(), 1, detect_isa());
  router_forward(context, router);
  std::vector<std::int32_t> place(kExperts);
  std::iota(place.begin(), place.end(), 0);
  ExpertRows args;
  args.begins = operands.indices(kExperts + 1, 1);
  args.row_slot = operands.indices(rows * kChosen, 1);
  args.slot_row_Tk = operands.indices(rows * kChosen, 1).reshape({rows, kChosen});
  args.chosen_Tk = router.chosen_Tk;
  args.place_E = operands.i32(place);
  args.sources = operands.i32({0, static_cast<std::int32_t>(rows)});
  return args;
}

ExpertRows made_table(Operands& operands) {
  const ExpertRows args = table_args(operands);
  Context context(bench_device(), 1, detect_isa());
  expert_rows(context, args);
  return args;
}

std::function<void(Context&)> expert_rows_of(Operands& operands) {
  return [args = table_args(operands)](Context& context) { expert_rows(context, args); };
}

std::function<void(Context&)> gather_rows_of(Operands& operands) {
  const ExpertRows table = made_table(operands);
  const TensorView rows = operands.typed({table.row_slot.count(), operands.size.hidden}),
                   x = operands.typed({operands.size.rows(), operands.size.hidden});
  return [=](Context& context) {
    gather_rows(context, rows, x, table.row_slot, table.begins, kChosen);
  };
}

std::function<void(Context&)> combine_rows_of(Operands& operands) {
  const ExpertRows table = made_table(operands);
  const TensorView rows = operands.typed({table.row_slot.count(), operands.size.hidden}),
                   y = operands.typed({operands.size.rows(), operands.size.hidden});
  return [=](Context& context) { combine_rows(context, y, rows, table.slot_row_Tk, y); };
}

WeightedGlu unit_args(Operands& operands) {
  const ExpertRows table = made_table(operands);
  const std::int64_t rows = table.row_slot.count(), ffn = operands.size.ffn / 8;
  return {GluGate::kSilu, operands.typed({rows, 2 * ffn}), operands.f32({rows}), table.row_slot,
          table.begins};
}

std::function<void(Context&)> weighted_glu_forward_of(Operands& operands) {
  const WeightedGlu args = unit_args(operands);
  const TensorView h = operands.typed({args.gate_up_R2F.shape[0], args.gate_up_R2F.shape[1] / 2});
  return [=](Context& context) { weighted_glu_forward(context, h, args); };
}

std::function<void(Context&)> weighted_glu_backward_of(Operands& operands) {
  const WeightedGlu args = unit_args(operands);
  const Shape wide = args.gate_up_R2F.shape, narrow{wide[0], wide[1] / 2};
  const TensorView d = operands.typed(wide), h = operands.typed(narrow),
                   dh = operands.typed(narrow), dweights = operands.f32({wide[0]});
  return [=](Context& context) { weighted_glu_backward(context, d, dweights, h, dh, args); };
}

/// Codes of so many rows of all experts; of parts of an expert's columns.
QuantizedSegments codes_of(Operands& operands, std::int64_t rows, const ScaleDim& columns,
                           bool across) {
  using Segments = QuantizedSegments;
  return {operands.codes(Segments::codes_shape(rows, kExperts, columns, across)),
          operands.f32(Segments::scales_shape(rows, kExperts, columns, across)), columns, across};
}

MakeOp token_codes_of(bool across) {
  return [across](Operands& operands) -> std::function<void(Context&)> {
    const ExpertRows table = made_table(operands);
    const std::int64_t hidden = operands.size.hidden;
    const QuantizeSegments args{
        codes_of(operands, table.row_slot.count(), ScaleDim(hidden, 128), across),
        operands.typed({operands.size.rows(), hidden}), table.begins, table.row_slot, kChosen};
    return [=](Context& context) { quantize_segments(context, args); };
  };
}

std::function<void(Context&)> weighted_glu_forward_codes_of(Operands& operands) {
  const WeightedGlu args = unit_args(operands);
  const Shape wide = args.gate_up_R2F.shape;
  const QuantizedSegments h = codes_of(operands, wide[0], ScaleDim(wide[1] / 2, 128), false);
  return [=](Context& context) { weighted_glu_forward_codes(context, h, args); };
}

std::function<void(Context&)> weighted_glu_backward_codes_of(Operands& operands) {
  const WeightedGlu args = unit_args(operands);
  const std::int64_t rows = args.gate_up_R2F.shape[0], ffn = args.gate_up_R2F.shape[1] / 2;
  ScaleDim two(ffn, 128);
  two.add({ffn});
  const WeightedGluGradientCodes out{codes_of(operands, rows, two, false),
                                     codes_of(operands, rows, two, true),
                                     codes_of(operands, rows, ScaleDim(ffn, 128), true)};
  const TensorView dh = operands.typed({rows, ffn}), dweights = operands.f32({rows});
  return [=](Context& context) { weighted_glu_backward_codes(context, out, dweights, dh, args); };
}

}  // namespace

void add_expert_ops() {
  add_op("router_softmax_forward", kOnlyF32, router_forward_of(kSoftmaxRule));
  add_op("router_softmax_backward", kBothTypes, router_backward_of(kSoftmaxRule));
  add_op("router_sigmoid_forward", kOnlyF32, router_forward_of(kSigmoidRule));
  add_op("router_sigmoid_backward", kBothTypes, router_backward_of(kSigmoidRule));
  add_op("expert_rows", kOnlyF32, expert_rows_of);
  add_op("gather_rows", kBothTypes, gather_rows_of);
  add_op("combine_rows", kBothTypes, combine_rows_of);
  add_op("weighted_swiglu_forward", kBothTypes, weighted_glu_forward_of);
  add_op("weighted_swiglu_backward", kBothTypes, weighted_glu_backward_of);
  add_op("token_codes_along", {DType::kBF16}, token_codes_of(false));
  add_op("token_codes_across", {DType::kBF16}, token_codes_of(true));
  add_op("weighted_swiglu_forward_codes", {DType::kBF16}, weighted_glu_forward_codes_of);
  add_op("weighted_swiglu_backward_codes", {DType::kBF16}, weighted_glu_backward_codes_of);
}

}  // namespace trireme::bench
