#include "kernels/adamw/adamw.h"

#include <cmath>
#include <new>

#include "kernels/adamw/adamw_table.h"
#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"

namespace trireme {
namespace {

/// The views may differ in shape (rows of a rank beside a flat moment), not in count.
void check_view(const ArgumentChecker& check, const char* name, const ConstTensorView& view,
                DType dtype, std::int64_t count) {
  check.tensor(name, view.count() == count ? view.reshape({count}) : view, dtype, {count});
}

AdamWTensorArgs plain(const AdamWTensor& tensor, std::int64_t begin, double lr) {
  const ArgumentChecker check("adamw_update");
  const std::int64_t count = tensor.parameter.count();
  check_view(check, "parameter", tensor.parameter, DType::kF32, count);
  check_view(check, "gradient", tensor.gradient, DType::kF32, count);
  check_view(check, "exp_avg", tensor.exp_avg, DType::kF32, count);
  check_view(check, "exp_avg_sq", tensor.exp_avg_sq, DType::kF32, count);
  if (tensor.form.given()) check_view(check, "form", tensor.form, DType::kBF16, count);
  return {tensor.parameter.as<float>(),
          tensor.exp_avg.as<float>(),
          tensor.exp_avg_sq.as<float>(),
          tensor.gradient.as<float>(),
          tensor.form.given() ? tensor.form.as<BFloat16>() : nullptr,
          begin,
          count,
          static_cast<float>(lr * tensor.weight_decay)};
}

/// Parameter and moments are read and written, the gradient read, the form written.
OpWork work_of(std::span<const AdamWTensor> tensors) {
  std::int64_t bytes = 0;
  for (const AdamWTensor& each : tensors) {
    bytes += 2 * bytes_of(each.parameter, each.exp_avg, each.exp_avg_sq) +
             bytes_of(each.gradient, each.form);
  }
  return {0, bytes};
}

}  // namespace

void adamw_update(Context& context, std::span<const AdamWTensor> tensors,
                  const AdamWConstants& constants, const AdamWScalars& scalars) {
  const OpSpan span(context.op_trace(), "adamw_update", work_of(tensors));
  const ArgumentChecker check("adamw_update");
  check.that(scalars.bias_correction1 > 0 && scalars.bias_correction2 > 0, "scalars",
             "the bias corrections must be positive: t counts the update that is made");
  auto* plain_tensors =
      reinterpret_cast<AdamWTensorArgs*>(context.scratch(tensors.size() * sizeof(AdamWTensorArgs)));
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    new (plain_tensors + i) AdamWTensorArgs(plain(tensors[i], elements, scalars.lr));
    elements += tensors[i].parameter.count();
  }
  if (elements == 0) return;
  const auto single = [](double x) { return static_cast<float>(x); };
  choose_table("adamw", context, avx2::adamw_cpu, avx512::adamw_cpu, &GpuKernels::adamw)
      .update({context.exec(), plain_tensors, static_cast<std::int64_t>(tensors.size()), elements,
               scalars.gradient_scale, single(1 - constants.beta1), single(constants.beta2),
               single(1 - constants.beta2), single(scalars.lr / scalars.bias_correction1),
               single(1 / std::sqrt(scalars.bias_correction2)), single(constants.eps)});
}

}  // namespace trireme
