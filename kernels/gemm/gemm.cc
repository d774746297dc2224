#include "kernels/gemm/gemm.h"

#include <utility>

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gelu/gelu.h"
#include "kernels/gemm/gemm_internal.h"
#include "kernels/glu/glu.h"

namespace trireme {
namespace gemm_internal {

const GemmKernels& kernels(const Context& context) { return choose_by_isa(context, gemm_cpu); }

void fill_with_bias(Context& context, TensorView c_MN, ConstTensorView bias_N) {
  const std::int64_t n = c_MN.shape[1];
  kernels(context).copy_panel(
      {context.exec(), c_MN.data, bias_N.data, c_MN.shape[0], n, n, 0, c_MN.dtype, bias_N.dtype});
}

/// 2 M N K operations; c is read too where it is added to.
OpWork work_of(const Gemm& args, Sizes s) {
  const std::int64_t added = args.accumulate == Accumulate::kYes ? bytes_of(args.c_MN) : 0;
  return {2 * s.m * s.n * s.k,
          bytes_of(args.c_MN, args.a, args.b, args.bias_N, args.operand, args.saved) + added,
          args.a.dtype};
}

std::int64_t columns_of_c(GemmEpilogue epilogue, std::int64_t n) {
  if (is_glu(epilogue)) return n / 2;
  return is_glu_backward(epilogue) ? 2 * n : n;
}

void check_epilogue(const ArgumentChecker& check, const Gemm& args, Sizes s, DType type) {
  using enum GemmEpilogue;
  const GemmEpilogue epilogue = args.epilogue;
  if (epilogue == kAddResidual || epilogue == kGeluBackward) {
    check.tensor("operand", args.operand, type, {s.m, s.n});
  } else if (is_glu_backward(epilogue)) {
    check.tensor("operand", args.operand, type, {s.m, 2 * s.n});
  } else {
    check.absent("operand", args.operand, "with this epilogue");
  }
  if (epilogue == kNone || epilogue == kAddResidual) {
    check.absent("saved", args.saved, "with this epilogue");
  } else if (is_glu(epilogue) || is_glu_backward(epilogue)) {
    check.tensor("saved", args.saved, type, {s.m, s.n});
  } else {
    check.optional("saved", args.saved, type, {s.m, s.n});
  }
  if (is_glu(epilogue))
    check.that(s.n % 2 == 0, "b", "two products beside each other have an even number of columns");
  if (epilogue == kNone) return;
  check.that(args.accumulate == Accumulate::kNo, "c", "an epilogue accumulates nothing");
  for (const auto& [name, other] : {std::pair<const char*, ConstTensorView>{"a", args.a},
                                    {"b", args.b},
                                    {"bias", args.bias_N},
                                    {"c", args.c_MN},
                                    {"operand", args.operand}}) {
    check.disjoint("saved", args.saved, name, other);
  }
  check.disjoint("c", args.c_MN, "operand", args.operand);
}

}  // namespace gemm_internal

namespace {

using gemm_internal::Sizes;

Sizes check(const Gemm& args) {
  const ArgumentChecker check("gemm");
  check.rank("a", args.a, 2);
  check.rank("b", args.b, 2);
  check.floating("a", args.a.dtype);
  const bool ta = args.transpose_a == Transpose::kYes, tb = args.transpose_b == Transpose::kYes;
  const Sizes s{args.a.shape[ta ? 1 : 0], args.b.shape[tb ? 0 : 1], args.a.shape[ta ? 0 : 1]};
  check.tensor("a", args.a, args.a.dtype, args.a.shape);
  check.tensor("b", args.b, args.a.dtype, tb ? Shape{s.n, s.k} : Shape{s.k, s.n});
  const bool narrow = args.a.dtype == DType::kBF16 &&
                      (args.c_MN.dtype == DType::kBF16 || args.epilogue != GemmEpilogue::kNone);
  gemm_internal::check_epilogue(check, args, s, args.a.dtype);
  check.tensor("c", args.c_MN, narrow ? DType::kBF16 : DType::kF32,
               {s.m, gemm_internal::columns_of_c(args.epilogue, s.n)});
  check.optional("bias", args.bias_N, args.b.dtype, {s.n});
  if (args.accumulate == Accumulate::kYes) {
    check.that(!narrow, "c", "a bf16 result accumulates nothing");
    check.absent("bias", args.bias_N, "with accumulate");
  }
  check.disjoint("c", args.c_MN, "a", args.a);
  check.disjoint("c", args.c_MN, "b", args.b);
  check.disjoint("c", args.c_MN, "bias", args.bias_N);
  return s;
}

void add_rows(Context& context, TensorView c, ConstTensorView operand) {
  if (c.count() == 0) return;
  if (context.on_gpu()) return accumulate(context, c, operand);
  const OpSpan span(context.op_trace(), "add_residual", {0, bytes_of(c, c, operand)});
  gemm_internal::kernels(context).add(
      {context.exec(), c.data, operand.data, c.count(), operand.dtype});
}

}  // namespace

TensorView gemm_internal::product_of(const Gemm& args) {
  using enum GemmEpilogue;
  const bool kept = is_glu(args.epilogue) || is_glu_backward(args.epilogue) ||
                    (args.epilogue == kGelu && args.saved.given());
  return kept ? args.saved : args.c_MN;
}

void gemm_internal::run_epilogue(Context& context, const Gemm& args, std::int64_t first,
                                 std::int64_t count) {
  using enum GemmEpilogue;
  const auto rows = [&](const auto& all) { return all.given() ? all.rows(first, count) : all; };
  const TensorView c = rows(args.c_MN), saved = rows(args.saved), y = rows(product_of(args));
  const ConstTensorView operand = rows(args.operand);
  switch (args.epilogue) {
    case kNone:
      break;
    case kAddResidual:
      add_rows(context, c, operand);
      break;
    case kGelu:
      gelu_forward(context, c, y);
      break;
    case kGeluBackward:
      gelu_backward(context, c, y, operand, saved);
      break;
    case kSwiglu:
      glu_forward(context, GluGate::kSilu, c, y);
      break;
    case kSwigluBackward:
      glu_backward(context, GluGate::kSilu, c, y, operand, saved);
      break;
    case kGeglu:
      glu_forward(context, GluGate::kGelu, c, y);
      break;
    case kGegluBackward:
      glu_backward(context, GluGate::kGelu, c, y, operand, saved);
      break;
  }
}

namespace {

using gemm_internal::product_of;
using gemm_internal::run_epilogue;

ProductArgs product_args(const Gemm& args, Sizes s) {
  const TensorView y = product_of(args);
  return {s,
          args.a.dtype,
          y.dtype,
          args.a.data,
          args.b.data,
          y.data,
          args.a.shape[1],
          args.b.shape[1],
          s.n,
          args.transpose_a == Transpose::kYes,
          args.transpose_b == Transpose::kYes,
          args.accumulate == Accumulate::kYes || args.bias_N.given()};
}

/// By `own` or, in f32 alone, by oneDNN.
void gemm_by_tiles(Context& context, const Gemm& args, ProductArgs product, const CpuProduct* own) {
  if (args.bias_N.given()) gemm_internal::fill_with_bias(context, product_of(args), args.bias_N);
  const auto bytes =
      static_cast<std::size_t>(gemm_internal::product_scratch(context)) * sizeof(float);
  struct Call {
    const Context& context;
    const Gemm& args;
  };
  const Call call{context, args};
  if (args.epilogue != GemmEpilogue::kNone || args.then.given()) {
    product.done.state = &call;
    product.done.call = [](const void* state, std::int64_t first, std::int64_t count) {
      const auto& of = *static_cast<const Call*>(state);
      Context one_thread = of.context.one_thread();
      run_epilogue(one_thread, of.args, first, count);
      if (of.args.then.given()) of.args.then(one_thread, first, count);
    };
  }
  gemm_internal::multiply(context, product, own, reinterpret_cast<float*>(context.scratch(bytes)));
}

}  // namespace

void gemm_internal::gemm_unfused(Context& context, const Gemm& args, Sizes s) {
  Gemm product = args;
  product.c_MN = product_of(args);
  product.epilogue = GemmEpilogue::kNone;
  product.operand = {};
  product.saved = {};
  gemm(context, product);
  run_epilogue(context, args, 0, s.m);
}

void gemm(Context& context, const Gemm& args) {
  const Sizes s = check(args);
  const ProductArgs product = product_args(args, s);
  const bool by_row = context.batch_invariant();
  expect(!by_row || (!product.transpose_a && args.accumulate == Accumulate::kNo),
         "a batch-invariant product with columns of a, or added to c");
  const CpuProduct* own =
      context.on_gpu() ? nullptr
                       : gemm_internal::own_kernel(gemm_internal::kernels(context), product,
                                                   gemm_internal::library_multiplies_bf16_tiles(),
                                                   by_row ? gemm_internal::Rows::kAnyNumber
                                                          : gemm_internal::Rows::kEnough);
  // Whether one pass over rows makes the product and what follows it. The sums of a transposed `a`
  // may be shared out among threads: no row is complete before all are.
  const bool by_rows = own != nullptr && !by_row && !product.transpose_a && s.n > 0 && s.k > 0;
  if (args.then.given() && !by_rows) {
    Gemm alone = args;
    alone.then = {};
    gemm(context, alone);
    return args.then(context, 0, s.m);
  }
  const GemmGpuKernels* chosen = gemm_internal::choose_kernel(context, args, s);
  const bool fused = chosen != nullptr || by_rows;
  if (args.epilogue != GemmEpilogue::kNone && !fused)
    return gemm_internal::gemm_unfused(context, args, s);
  const OpSpan span(context.op_trace(), args.use, gemm_internal::work_of(args, s));
  if (s.m == 0 || s.n == 0) return;
  if (context.on_gpu()) return gemm_internal::gemm_on_gpu(context, args, s, chosen);
  if (s.k == 0) {
    if (args.bias_N.given()) return gemm_internal::fill_with_bias(context, args.c_MN, args.bias_N);
    if (args.accumulate == Accumulate::kNo) clear(context, args.c_MN);
    return;
  }
  if (own != nullptr || (args.a.dtype == DType::kF32 && !by_row))
    return gemm_by_tiles(context, args, product, own);
  if (by_row) {
    return gemm_internal::kernels(context).multiply_rows(
        {context.exec(), product, args.bias_N.data});
  }
  // A context may be held to less than the CPU has; tests emulate more.
  if (context.isa() >= Isa::kAvx512Bf16 && gemm_internal::library_multiplies_bf16())
    return gemm_internal::gemm_by_primitive(context, args, s);
  gemm_internal::gemm_by_panels(context, args, s);
}

void gemm_by_library(Context& context, const Gemm& args) {
  if (args.a.dtype == DType::kBF16 && !gemm_internal::library_multiplies_bf16())
    return gemm(context, args);
  gemm_internal::gemm_by_primitive(context, args, check(args));
}

}  // namespace trireme
