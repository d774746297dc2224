#include "kernels/gemm/gemm_quantized.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm_quantized_internal.h"
#include "kernels/quantize/quantize_internal.h"

namespace trireme {
namespace gemm_quantized_internal {

gemm_internal::Sizes sizes_of(const QuantizedGemm& args) {
  return {args.a.rows.size(), args.b.rows.size(), args.a.columns.padded_size()};
}

Gemm without_operands(const QuantizedGemm& args) {
  Gemm product;
  product.c_MN = args.c_MN;
  product.a = args.a.codes;
  product.b = args.b.codes;
  product.accumulate = args.accumulate;
  product.bias_N = args.bias_N;
  product.epilogue = args.epilogue;
  product.operand = args.operand;
  product.saved = args.saved;
  return product;
}

/// As the bf16 product's: what is stored, once; what is added to, twice.
OpWork work_of(const QuantizedGemm& args) {
  const gemm_internal::Sizes s = sizes_of(args);
  const std::int64_t added = args.accumulate == Accumulate::kYes ? bytes_of(args.c_MN) : 0;
  return {2 * s.m * s.n * args.a.columns.size(),
          added + bytes_of(args.c_MN, args.a.codes, args.a.scales, args.b.codes, args.b.scales,
                           args.bias_N, args.operand, args.saved),
          args.a.format()};
}

}  // namespace gemm_quantized_internal

namespace {

using gemm_internal::Sizes;

void check_operands(const ArgumentChecker& check, const QuantizedGemm& args) {
  quantize_internal::check_view("gemm_quantized", "a", args.a);
  quantize_internal::check_view("gemm_quantized", "b", args.b);
  const ScaleDim &a = args.a.columns, &b = args.b.columns;
  check.that(args.a.padded || a.aligned(), "a", "is not padded along K");
  check.that(args.b.padded || b.aligned(), "b", "is not padded along K");
  check.that(a.parts == b.parts && a.part_count == b.part_count, "b", "has other parts along K");
  check.that(args.a.format() == DType::kF8E4M3 || args.b.format() == DType::kF8E4M3, "b",
             "is e5m2 as a is");
}

/// Those that have scales of their own.
std::int64_t parts_of_c(GemmEpilogue epilogue) {
  using enum GemmEpilogue;
  return epilogue == kSwigluBackward || epilogue == kGegluBackward ? 2 : 1;
}

void check(const QuantizedGemm& args, Sizes s) {
  const ArgumentChecker check("gemm_quantized");
  check_operands(check, args);
  const Gemm like = gemm_quantized_internal::without_operands(args);
  gemm_internal::check_epilogue(check, like, s, DType::kBF16);
  const bool adds = args.accumulate == Accumulate::kYes;
  const bool wide = args.c_MN.dtype == DType::kF32 && args.epilogue == GemmEpilogue::kNone;
  check.tensor("c", args.c_MN, wide ? DType::kF32 : DType::kBF16,
               {s.m, gemm_internal::columns_of_c(args.epilogue, s.n)});
  check.optional("bias", args.bias_N, DType::kBF16, {s.n});
  check.optional("amax", args.amax_P, DType::kI32, {parts_of_c(args.epilogue)});
  if (adds) {
    check.that(wide, "c", "a bf16 result accumulates nothing");
    check.absent("bias", args.bias_N, "with accumulate");
  }
  for (const auto& [name, other] : {std::pair<const char*, ConstTensorView>{"a", args.a.codes},
                                    {"a's scales", args.a.scales},
                                    {"b", args.b.codes},
                                    {"b's scales", args.b.scales},
                                    {"bias", args.bias_N}}) {
    check.disjoint("c", args.c_MN, name, other);
    check.disjoint("saved", args.saved, name, other);
  }
}

/// An operand of a CPU's product: K runs along its rows, in the padded order.
struct Decoded {
  QuantizedDim rows, columns;
  ConstQuantizedView view;
  explicit Decoded(const ConstQuantizedView& of)
      : rows(quantize_internal::dim_of(of.rows, false)),
        columns(quantize_internal::dim_of(of.columns, true)),
        view(of) {}
};

void decode(Context& context, const void* state, float* panel, const gemm_internal::Panel& of) {
  const auto& [rows, columns, view] = *static_cast<const Decoded*>(state);
  choose_by_isa(context, quantize_cpu)
      .decode_panel({context.exec(), panel, view.codes.data, view.scales.as<float>(), rows, columns,
                     of.row, of.rows, of.column, of.columns, view.format()});
}

void gemm_on_cpu(Context& context, const QuantizedGemm& args, Sizes s) {
  const Gemm like = gemm_quantized_internal::without_operands(args);
  const TensorView y = gemm_internal::product_of(like);
  if (s.k > 0) {
    const Decoded a(args.a), b(args.b);
    gemm_internal::multiply_by_panels(
        context, {s, y, false, true, args.accumulate == Accumulate::kYes, args.bias_N, decode,
                  decode, &a, &b});
  } else if (args.bias_N.given()) {
    gemm_internal::fill_with_bias(context, y, args.bias_N);
  } else if (args.accumulate == Accumulate::kNo) {
    clear(context, y);
  }
  gemm_internal::run_epilogue(context, like, 0, s.m);
}

}  // namespace

void gemm_quantized_internal::gemm_unfused(Context& context, const QuantizedGemm& args) {
  const Gemm like = without_operands(args);
  QuantizedGemm product = args;
  product.c_MN = gemm_internal::product_of(like);
  product.epilogue = GemmEpilogue::kNone;
  product.operand = {};
  product.saved = {};
  product.amax_P = {};
  product.then = {};
  gemm_quantized(context, product);
  gemm_internal::run_epilogue(context, like, 0, args.a.rows.size());
}

namespace {

/// Whether c's largest magnitudes have been left on the way.
bool multiply(Context& context, const QuantizedGemm& args, Sizes s) {
  const bool empty = s.m == 0 || s.n == 0, on_gpu = context.on_gpu() && !empty;
  const GemmQuantizedGpuKernels* chosen =
      on_gpu && s.k > 0 ? gemm_quantized_internal::choose_kernel(context, args) : nullptr;
  if (on_gpu && s.k > 0 && chosen == nullptr && args.epilogue != GemmEpilogue::kNone) {
    gemm_quantized_internal::gemm_unfused(context, args);
    return false;
  }
  const OpSpan span(context.op_trace(), args.use, gemm_quantized_internal::work_of(args));
  if (empty) return true;
  if (on_gpu) return gemm_quantized_internal::gemm_on_gpu(context, args, chosen);
  gemm_on_cpu(context, args, s);
  return false;
}

void find_maxima(Context& context, const QuantizedGemm& args) {
  const std::int64_t parts = args.amax_P.count(), columns = args.c_MN.shape[1];
  ScaleDim dim;
  for (std::int64_t part = 0; part < parts; ++part) dim.add({div_exact(columns, parts)});
  absolute_max(context, args.amax_P.reshape({1, parts}), args.c_MN, ScaleDim(args.c_MN.shape[0], 0),
               dim);
}

}  // namespace

void gemm_quantized(Context& context, const QuantizedGemm& args) {
  const Sizes s = gemm_quantized_internal::sizes_of(args);
  check(args, s);
  const bool left = multiply(context, args, s);
  if (args.amax_P.given() && !left) find_maxima(context, args);
  if (args.then.given()) args.then(context, 0, s.m);
}

}  // namespace trireme
