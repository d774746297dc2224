#include "kernels/elementwise/elementwise.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/elementwise/elementwise_table.h"

namespace trireme {
namespace {

const ElementwiseKernels& table(const Context& context) {
  return choose_table("elementwise", context, elementwise_cpu, &GpuKernels::elementwise);
}

}  // namespace

void cast(Context& context, TensorView destination, ConstTensorView source) {
  const OpSpan span(context.op_trace(), "cast", {0, bytes_of(destination, source)});
  const ArgumentChecker check("cast");
  check.tensor("source", source, source.dtype, destination.shape);
  if (destination.dtype != source.dtype) {
    check.floating("destination", destination.dtype);
    check.floating("source", source.dtype);
  }
  check.tensor("destination", destination, destination.dtype, destination.shape);
  check.disjoint("destination", destination, "source", source);
  if (source.count() == 0) return;
  table(context).cast({context.exec(), destination.data, source.data, destination.count(),
                       destination.dtype, source.dtype});
}

void copy_heads(Context& context, HeadsView destination, ConstHeadsView source) {
  const OpSpan span(context.op_trace(), "copy_heads", {0, bytes_of(destination, source)});
  const ArgumentChecker check("copy_heads");
  check.heads("destination", destination, source.dtype,
              {source.tokens, source.heads, source.head_dim});
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(source.dtype);
  };
  if (source.tokens == 0) return;
  table(context).copy_rows({context.exec(), destination.data, source.data,
                            static_cast<std::size_t>(source.tokens),
                            bytes(source.heads * source.head_dim), bytes(destination.token_stride),
                            bytes(source.token_stride)});
}

void put_heads(Context& context, HeadsView destination, ConstHeadsView source,
               ConstTensorView rows_T) {
  const OpSpan span(context.op_trace(), "put_heads", {0, bytes_of(source, source, rows_T)});
  const ArgumentChecker check("put_heads");
  check.heads("destination", destination, source.dtype,
              {destination.tokens, source.heads, source.head_dim});
  check.tensor("rows", rows_T, DType::kI32, {source.tokens});
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(source.dtype);
  };
  if (source.tokens == 0) return;
  table(context).put_rows({context.exec(), destination.data, source.data,
                           static_cast<std::size_t>(source.tokens),
                           bytes(source.heads * source.head_dim), bytes(destination.token_stride),
                           bytes(source.token_stride), rows_T.as<std::int32_t>()});
}

void clear(Context& context, TensorView destination) {
  const OpSpan span(context.op_trace(), "clear", {0, bytes_of(destination)});
  ArgumentChecker("clear").tensor("destination", destination, destination.dtype, destination.shape);
  if (destination.count() == 0) return;
  table(context).clear({context.exec(), destination.data, destination.bytes()});
}

void accumulate(Context& context, TensorView destination, ConstTensorView source) {
  const OpSpan span(context.op_trace(), "accumulate",
                    {0, bytes_of(destination, destination, source)});
  const ArgumentChecker check("accumulate");
  check.floating("source", source.dtype);
  const bool rounded = destination.dtype == DType::kBF16 && source.dtype == DType::kBF16;
  check.tensor("destination", destination, rounded ? DType::kBF16 : DType::kF32, destination.shape);
  check.tensor("source", source, source.dtype, destination.shape);
  check.same_or_disjoint("destination", destination, "source", source);
  table(context).accumulate({context.exec(), destination.data, source.data, destination.count(),
                             destination.dtype, source.dtype});
}

void scale(Context& context, TensorView x, float factor) {
  const OpSpan span(context.op_trace(), "scale", {0, bytes_of(x, x)});
  const ArgumentChecker check("scale");
  check.floating("x", x.dtype);
  check.tensor("x", x, x.dtype, x.shape);
  table(context).scale({context.exec(), x.data, x.count(), factor, x.dtype});
}

void sum_ranks(Context& context, TensorView own_N, ConstTensorView others_PN, int rank) {
  const OpSpan span(context.op_trace(), "sum_ranks", {0, bytes_of(own_N, own_N, others_PN)});
  const ArgumentChecker check("sum_ranks");
  check.rank("own", own_N, 1);
  check.rank("others", others_PN, 2);
  check.floating("own", own_N.dtype);
  check.tensor("own", own_N, own_N.dtype, own_N.shape);
  check.tensor("others", others_PN, own_N.dtype, {others_PN.shape[0], own_N.count()});
  check.disjoint("own", own_N, "others", others_PN);
  expect(rank >= 0 && rank <= others_PN.shape[0], "sum_ranks: rank {} of {}", rank,
         others_PN.shape[0] + 1);
  if (own_N.count() == 0) return;
  table(context).sum_ranks({context.exec(), own_N.data, others_PN.data, own_N.count(),
                            others_PN.shape[0], rank, own_N.dtype});
}

void column_sum(Context& context, TensorView sum_N, ConstTensorView x_TN) {
  const OpSpan span(context.op_trace(), "column_sum", {0, bytes_of(x_TN)});
  const ArgumentChecker check("column_sum");
  check.rank("x", x_TN, 2);
  check.floating("x", x_TN.dtype);
  check.tensor("x", x_TN, x_TN.dtype, x_TN.shape);
  check.tensor("sum", sum_N, DType::kF32, {x_TN.shape[1]});
  check.disjoint("sum", sum_N, "x", x_TN);
  const ElementwiseKernels& kernels = table(context);
  ColumnSumArgs call{context.exec(), sum_N.as<float>(), x_TN.data, nullptr,
                     x_TN.shape[0],  x_TN.shape[1],     x_TN.dtype};
  const auto floats = static_cast<std::size_t>(kernels.column_sum_scratch_floats(call));
  if (floats > 0)
    call.partial_sums = reinterpret_cast<float*>(context.scratch(floats * sizeof(float)));
  kernels.column_sum(call);
}

void sum_in_order(Context& context, TensorView sum, ConstTensorView x_T) {
  const OpSpan span(context.op_trace(), "sum_in_order", {0, bytes_of(x_T)});
  const ArgumentChecker check("sum_in_order");
  check.rank("x", x_T, 1);
  check.tensor("x", x_T, DType::kF32, x_T.shape);
  check.tensor("sum", sum, DType::kF64, {1});
  table(context).sum_in_order({context.exec(), sum.as<double>(), x_T.as<float>(), x_T.count()});
}

}  // namespace trireme
