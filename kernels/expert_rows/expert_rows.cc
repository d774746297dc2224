#include "kernels/expert_rows/expert_rows.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/expert_rows/expert_rows_internal.h"

namespace trireme {

const ExpertRowsKernels& expert_rows_internal::table(const Context& context) {
  return choose_table("expert_rows", context, expert_rows_cpu, &GpuKernels::expert_rows);
}

namespace {

using expert_rows_internal::GluNames;
using expert_rows_internal::table;
using expert_rows_internal::UnitShape;

/// [T, k], k at most kExpertSlotsMax.
void check_slots(const ArgumentChecker& check, const char* name, ConstTensorView slots_Tk) {
  check.rank(name, slots_Tk, 2);
  check.tensor(name, slots_Tk, DType::kI32, slots_Tk.shape);
  check.that(slots_Tk.shape[1] >= 1 && slots_Tk.shape[1] <= kExpertSlotsMax, name,
             "expected 1 to 256 slots of a token");
}

/// Experts once each at most, sources that follow each other: on a CPU alone, where they are read.
void check_values(const ArgumentChecker& check, const ExpertRows& args, std::int64_t experts_here) {
  check.indices("chosen", args.chosen_Tk, args.place_E.count());
  const std::int32_t* place = args.place_E.as<std::int32_t>();
  for (std::int64_t e = 0; e < args.place_E.count(); ++e)
    check.that(place[e] >= -1 && place[e] < experts_here, "place", "names an expert beyond begins");
  const std::int32_t* sources = args.sources.as<std::int32_t>();
  check.that(sources[0] == 0, "sources", "the first token is not 0");
  for (std::int64_t p = 1; p < args.sources.count(); ++p)
    check.that(sources[p] >= sources[p - 1], "sources", "descends");
  check.that(sources[args.sources.count() - 1] <= args.chosen_Tk.shape[0], "sources",
             "has more tokens than chosen");
}

/// Where the number of rows stands: at the end of `begins`, on a CPU no more than there is room
/// for.
const std::int32_t* row_count_of(const Context& context, const ArgumentChecker& check,
                                 ConstTensorView begins, std::int64_t rows_max) {
  check.rank("begins", begins, 1);
  check.that(begins.count() >= 1, "begins", "is empty");
  check.tensor("begins", begins, DType::kI32, begins.shape);
  const std::int32_t* count = begins.as<std::int32_t>() + begins.count() - 1;
  if (!context.on_gpu())
    check.that(*count >= 0 && *count <= rows_max, "begins", "has more rows than there is room for");
  return count;
}

/// Of biases [G, columns]: whose rows they are added to.
RowExperts experts_of(const ArgumentChecker& check, ConstTensorView bias, std::int64_t sources,
                      ConstTensorView begins) {
  check.that(sources > 0, "sources", "an expert has one segment or more");
  check.that(begins.count() == bias.shape[0] * sources + 1, "begins",
             "expected one more than segments of the biases' experts");
  return {begins.as<std::int32_t>(), bias.shape[0], sources};
}

WeightedGluRows glu_rows(const Context& context, const ArgumentChecker& check, const UnitShape& h,
                         const WeightedGlu& args) {
  check.tensor("gate_up", args.gate_up_R2F, h.type, {h.rows, 2 * h.ffn});
  const bool by_slot = args.row_slot.given();
  check.that(by_slot == args.begins.given(), "begins", "expected with row_slot, or neither");
  check.tensor("weights", args.weights, DType::kF32, by_slot ? args.weights.shape : Shape{h.rows});
  WeightedGluRows of{
      args.gate, args.gate_up_R2F.data, args.weights.as<float>(), nullptr, nullptr, h.rows, h.ffn,
      h.type};
  if (!by_slot) return of;
  check.tensor("row_slot", args.row_slot, DType::kI32, {h.rows});
  of.row_slot = args.row_slot.as<std::int32_t>();
  of.row_count = row_count_of(context, check, args.begins, h.rows);
  return of;
}

UnitShape unit_of(const ArgumentChecker& check, const ConstTensorView& h_RF) {
  check.rank("h", h_RF, 2);
  check.floating("h", h_RF.dtype);
  check.tensor("h", h_RF, h_RF.dtype, h_RF.shape);
  return {h_RF.shape[0], h_RF.shape[1], h_RF.dtype};
}

constexpr GluNames kForwardNames = {"weighted_swiglu_forward", "weighted_geglu_forward",
                                    "weighted_clamped_glu_forward"},
                   kBackwardNames = {"weighted_swiglu_backward", "weighted_geglu_backward",
                                     "weighted_clamped_glu_backward"};

}  // namespace

/// With biases, where they are given.
WeightedGluRows expert_rows_internal::unit_rows(const Context& context,
                                                const ArgumentChecker& check, const UnitShape& h,
                                                const WeightedGlu& args) {
  WeightedGluRows of = glu_rows(context, check, h, args);
  const BiasedGlu& biased = args.biased;
  if (!biased.bias_G2F.given()) return of;
  check.rank("bias", biased.bias_G2F, 2);
  check.tensor("bias", biased.bias_G2F, h.type, {biased.bias_G2F.shape[0], 2 * h.ffn});
  check.that(args.row_slot.given(), "bias", "given, where rows are not those of experts");
  check.that(biased.limit > 0, "limit", "must be positive");
  of.experts = experts_of(check, biased.bias_G2F, biased.sources, args.begins);
  of.bias = biased.bias_G2F.data;
  of.alpha = biased.alpha;
  of.limit = biased.limit;
  return of;
}

void expert_rows(Context& context, const ExpertRows& args) {
  const OpSpan span(context.op_trace(), "expert_rows",
                    {0, bytes_of(args.row_slot, args.slot_row_Tk, args.chosen_Tk)});
  const ArgumentChecker check("expert_rows");
  check_slots(check, "chosen", args.chosen_Tk);
  check.rank("place", args.place_E, 1);
  check.tensor("place", args.place_E, DType::kI32, args.place_E.shape);
  check.rank("sources", args.sources, 1);
  check.that(args.sources.count() >= 2, "sources", "expected two or more");
  check.tensor("sources", args.sources, DType::kI32, args.sources.shape);
  const std::int64_t sources = args.sources.count() - 1;
  check.rank("begins", args.begins, 1);
  check.that(args.begins.count() > 0 && (args.begins.count() - 1) % sources == 0, "begins",
             "expected one more than segments, as many for each source");
  check.tensor("begins", args.begins, DType::kI32, args.begins.shape);
  check.rank("row_slot", args.row_slot, 1);
  check.tensor("row_slot", args.row_slot, DType::kI32, args.row_slot.shape);
  check.tensor("slot_row", args.slot_row_Tk, DType::kI32, args.chosen_Tk.shape);
  check.disjoint("slot_row", args.slot_row_Tk, "chosen", args.chosen_Tk);
  const std::int64_t here = (args.begins.count() - 1) / sources;
  check.that(here <= kExpertsHereMax, "begins", "has segments of more than 1,024 experts");
  if (!context.on_gpu()) check_values(check, args, here);
  ExpertRowsArgs call{context.exec(),
                      args.begins.as<std::int32_t>(),
                      args.row_slot.as<std::int32_t>(),
                      args.slot_row_Tk.as<std::int32_t>(),
                      args.chosen_Tk.as<std::int32_t>(),
                      args.place_E.as<std::int32_t>(),
                      args.sources.as<std::int32_t>(),
                      args.chosen_Tk.shape[0],
                      args.chosen_Tk.shape[1],
                      here,
                      sources,
                      args.row_slot.count(),
                      nullptr};
  call.scratch = context.scratch(table(context).rows_scratch_bytes(call));
  table(context).rows(call);
  row_count_of(context, check, args.begins, call.rows_max);
}

void gather_rows(Context& context, TensorView rows_RC, ConstTensorView x_TC,
                 ConstTensorView row_slot, ConstTensorView begins, std::int64_t slots) {
  const OpSpan span(context.op_trace(), "gather_rows", {0, bytes_of(rows_RC, rows_RC)});
  const ArgumentChecker check("gather_rows");
  check.rank("rows", rows_RC, 2);
  check.rank("x", x_TC, 2);
  const std::int64_t rows = rows_RC.shape[0], channels = rows_RC.shape[1];
  check.floating("rows", rows_RC.dtype);
  check.tensor("rows", rows_RC, rows_RC.dtype, rows_RC.shape);
  check.tensor("x", x_TC, rows_RC.dtype, {x_TC.shape[0], channels});
  check.tensor("row_slot", row_slot, DType::kI32, {rows});
  check.that(slots >= 1, "slots", "expected one or more of a token");
  check.disjoint("rows", rows_RC, "x", x_TC);
  const std::int32_t* count = begins.given() ? row_count_of(context, check, begins, rows) : nullptr;
  if (rows_RC.count() == 0) return;
  table(context).gather({context.exec(), rows_RC.data, x_TC.data, row_slot.as<std::int32_t>(),
                         count, rows, slots, channels, rows_RC.dtype});
}

void combine_rows(Context& context, TensorView y_TC, ConstTensorView rows_RC,
                  ConstTensorView slot_row_Tk, ConstTensorView addend_TC) {
  const OpSpan span(context.op_trace(), "combine_rows", {0, bytes_of(y_TC, rows_RC, addend_TC)});
  const ArgumentChecker check("combine_rows");
  check.rank("y", y_TC, 2);
  check.rank("rows", rows_RC, 2);
  const std::int64_t tokens = y_TC.shape[0], channels = y_TC.shape[1];
  check.floating("y", y_TC.dtype);
  check.tensor("y", y_TC, y_TC.dtype, y_TC.shape);
  check.tensor("rows", rows_RC, y_TC.dtype, {rows_RC.shape[0], channels});
  check_slots(check, "slot_row", slot_row_Tk);
  check.tensor("slot_row", slot_row_Tk, DType::kI32, {tokens, slot_row_Tk.shape[1]});
  check.optional("addend", addend_TC, y_TC.dtype, y_TC.shape);
  check.disjoint("y", y_TC, "rows", rows_RC);
  check.same_or_disjoint("y", y_TC, "addend", addend_TC);
  if (y_TC.count() == 0) return;
  table(context).combine({context.exec(), y_TC.data, rows_RC.data, addend_TC.data,
                          slot_row_Tk.as<std::int32_t>(), tokens, slot_row_Tk.shape[1], channels,
                          y_TC.dtype});
}

void weighted_glu_forward(Context& context, TensorView h_RF, const WeightedGlu& args) {
  const char* name = kForwardNames.of(args);
  const OpSpan span(context.op_trace(), name, {0, bytes_of(h_RF, args.gate_up_R2F)});
  const ArgumentChecker check(name);
  const WeightedGluRows rows =
      expert_rows_internal::unit_rows(context, check, unit_of(check, h_RF), args);
  check.disjoint("h", h_RF, "gate_up", args.gate_up_R2F);
  if (h_RF.count() == 0) return;
  table(context).glu_forward({context.exec(), h_RF.data, rows});
}

void weighted_glu_backward(Context& context, TensorView dgate_up_R2F, TensorView dweights_R,
                           TensorView h_RF, ConstTensorView dh_RF, const WeightedGlu& args) {
  const char* name = kBackwardNames.of(args);
  const OpSpan span(context.op_trace(), name,
                    {0, bytes_of(dgate_up_R2F, h_RF, dh_RF, args.gate_up_R2F)});
  const ArgumentChecker check(name);
  const WeightedGluRows rows =
      expert_rows_internal::unit_rows(context, check, unit_of(check, h_RF), args);
  check.tensor("dh", dh_RF, h_RF.dtype, h_RF.shape);
  check.tensor("dgate_up", dgate_up_R2F, h_RF.dtype, args.gate_up_R2F.shape);
  check.tensor("dweights", dweights_R, DType::kF32, {rows.rows_max});
  check.disjoint("dgate_up", dgate_up_R2F, "dh", dh_RF);
  check.disjoint("dgate_up", dgate_up_R2F, "h", h_RF);
  check.disjoint("h", h_RF, "gate_up", args.gate_up_R2F);
  check.disjoint("dweights", dweights_R, "weights", args.weights);
  check.same_or_disjoint("dgate_up", dgate_up_R2F, "gate_up", args.gate_up_R2F);
  check.same_or_disjoint("h", h_RF, "dh", dh_RF);
  if (rows.rows_max == 0) return;
  table(context).glu_backward(
      {context.exec(), dgate_up_R2F.data, dweights_R.as<float>(), h_RF.data, dh_RF.data, rows});
}

namespace {

/// `rows` [most, C]: y or dy.
ExpertBiasArgs bias_args(const Context& context, const ArgumentChecker& check,
                         const ConstTensorView& rows_RC, const ExpertBias& args) {
  check.rank("rows", rows_RC, 2);
  check.floating("rows", rows_RC.dtype);
  check.tensor("rows", rows_RC, rows_RC.dtype, rows_RC.shape);
  const std::int64_t rows = rows_RC.shape[0], channels = rows_RC.shape[1];
  check.rank("bias", args.bias_GC, 2);
  check.tensor("bias", args.bias_GC, rows_RC.dtype, {args.bias_GC.shape[0], channels});
  check.tensor("weights", args.weights, DType::kF32, args.weights.shape);
  check.tensor("row_slot", args.row_slot, DType::kI32, {rows});
  ExpertBiasArgs call{};
  call.exec = context.exec();
  call.bias = args.bias_GC.data;
  call.weights = args.weights.as<float>();
  call.row_slot = args.row_slot.as<std::int32_t>();
  call.row_count = row_count_of(context, check, args.begins, rows);
  call.experts = experts_of(check, args.bias_GC, args.sources, args.begins);
  call.rows_max = rows;
  call.channels = channels;
  call.type = rows_RC.dtype;
  return call;
}

}  // namespace

void expert_bias_forward(Context& context, TensorView y_RC, const ExpertBias& args) {
  const OpSpan span(context.op_trace(), "expert_bias_forward", {0, bytes_of(y_RC, y_RC)});
  const ArgumentChecker check("expert_bias_forward");
  ExpertBiasArgs call = bias_args(context, check, y_RC, args);
  check.disjoint("rows", y_RC, "bias", args.bias_GC);
  call.y = y_RC.data;
  if (y_RC.count() > 0) table(context).bias_forward(call);
}

void expert_bias_backward(Context& context, TensorView dweights_R, ConstTensorView dy_RC,
                          const ExpertBias& args) {
  const OpSpan span(context.op_trace(), "expert_bias_backward", {0, bytes_of(dy_RC)});
  const ArgumentChecker check("expert_bias_backward");
  ExpertBiasArgs call = bias_args(context, check, dy_RC, args);
  check.tensor("dweights", dweights_R, DType::kF32, {dy_RC.shape[0]});
  call.dy = dy_RC.data;
  call.dweights = dweights_R.as<float>();
  if (dy_RC.count() > 0) table(context).bias_backward(call);
}

void row_factors(Context& context, TensorView factors_R1, ConstTensorView weights,
                 ConstTensorView row_slot, ConstTensorView begins) {
  const OpSpan span(context.op_trace(), "row_factors", {0, bytes_of(factors_R1)});
  const ArgumentChecker check("row_factors");
  check.rank("factors", factors_R1, 2);
  check.floating("factors", factors_R1.dtype);
  const std::int64_t rows = factors_R1.shape[0];
  check.tensor("factors", factors_R1, factors_R1.dtype, {rows, 1});
  RowFactorsArgs call{context.exec(), factors_R1.data, nullptr, nullptr, nullptr,
                      rows,           factors_R1.dtype};
  if (weights.given()) {
    check.tensor("weights", weights, DType::kF32, weights.shape);
    check.tensor("row_slot", row_slot, DType::kI32, {rows});
    call.weights = weights.as<float>();
    call.row_slot = row_slot.as<std::int32_t>();
    call.row_count = row_count_of(context, check, begins, rows);
  }
  if (rows > 0) table(context).factors(call);
}

}  // namespace trireme
