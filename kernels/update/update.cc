#include "kernels/update/update.h"

#include <cmath>
#include <new>

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/update/update_table.h"

namespace trireme {
namespace {

/// The views may differ in shape (rows of a rank beside a flat moment), not in count.
void check_view(const ArgumentChecker& check, const char* name, const ConstTensorView& view,
                DType dtype, std::int64_t count) {
  check.tensor(name, view.count() == count ? view.reshape({count}) : view, dtype, {count});
}

/// The gradient's rows by slots, each of which must be one of its rows.
void check_slots(const ArgumentChecker& check, const UpdateTensor& tensor) {
  check.rank("parameter", tensor.parameter, 2);
  check.rank("gradient", tensor.gradient, 2);
  const std::int64_t rows = tensor.gradient.shape[0];
  check.tensor("gradient", tensor.gradient, DType::kF32, {rows, tensor.parameter.shape[1]});
  check.tensor("gradient_slots", tensor.gradient_slots, DType::kI32, {tensor.parameter.shape[0]});
  check.indices("gradient_slots", tensor.gradient_slots, rows);
}

UpdateTensorArgs plain(const UpdateTensor& tensor, std::int64_t begin, std::int64_t first_block) {
  const ArgumentChecker check("adamw_update");
  const std::int64_t count = tensor.parameter.count();
  const bool in_rows = tensor.gradient_slots.given();
  check_view(check, "parameter", tensor.parameter, DType::kF32, count);
  if (in_rows) {
    check_slots(check, tensor);
  } else {
    check_view(check, "gradient", tensor.gradient, DType::kF32, count);
  }
  check_view(check, "exp_avg", tensor.exp_avg, DType::kF32, count);
  check_view(check, "exp_avg_sq", tensor.exp_avg_sq, DType::kF32, count);
  if (tensor.copy.given()) check_view(check, "copy", tensor.copy, DType::kBF16, count);
  if (tensor.kept.given()) check_view(check, "kept", tensor.kept, DType::kF32, 3 * count);
  return {tensor.parameter.as<float>(),
          tensor.exp_avg.as<float>(),
          tensor.exp_avg_sq.as<float>(),
          tensor.gradient.as<float>(),
          tensor.copy.given() ? tensor.copy.as<BFloat16>() : nullptr,
          tensor.kept.given() ? tensor.kept.as<float>() : nullptr,
          in_rows ? tensor.gradient_slots.as<std::int32_t>() : nullptr,
          in_rows ? tensor.parameter.shape[1] : count,
          begin,
          first_block,
          count,
          tensor.lr_scale,
          tensor.weight_decay * tensor.lr_scale};
}

/// Parameter and moments are read and written, the gradient read, copy and old values written.
OpWork work_of(std::span<const UpdateTensor> tensors) {
  std::int64_t bytes = 0;
  for (const UpdateTensor& each : tensors) {
    bytes += 2 * bytes_of(each.parameter, each.exp_avg, each.exp_avg_sq) +
             bytes_of(each.gradient, each.copy, each.kept);
  }
  return {0, bytes};
}

}  // namespace

void adamw_update(Context& context, std::span<const UpdateTensor> tensors,
                  const AdamWConstants& constants, const AdamWScalars& scalars) {
  const OpSpan span(context.op_trace(), "adamw_update", work_of(tensors));
  const ArgumentChecker check("adamw_update");
  check.that(scalars.bias_correction1 > 0 && scalars.bias_correction2 > 0, "scalars",
             "the bias corrections must be positive: t counts the update that is made");
  const std::size_t table_bytes = tensors.size() * sizeof(UpdateTensorArgs);
  std::byte* table = context.host_scratch(table_bytes);
  std::int64_t elements = 0, blocks = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (context.on_gpu()) check.absent("gradient_slots", tensors[i].gradient_slots, "on a GPU");
    const std::int64_t count = tensors[i].parameter.count();
    new (table + i * sizeof(UpdateTensorArgs))
        UpdateTensorArgs(plain(tensors[i], elements, blocks));
    elements += count;
    blocks += (count + kUpdateElementsPerBlock - 1) / kUpdateElementsPerBlock;
  }
  if (elements == 0) return;
  const auto single = [](double x) { return static_cast<float>(x); };
  const UpdateStep step = {scalars.lr, scalars.lr / scalars.bias_correction1,
                           scalars.gradient_scale, single(1 / std::sqrt(scalars.bias_correction2))};
  UpdateStep on_host;
  UpdateStep* in_place = &on_host;
  const std::byte* device_table = table;
  if (context.on_gpu()) {
    device_table = context.device_constant({table, table_bytes});
    in_place = reinterpret_cast<UpdateStep*>(context.scratch(sizeof(UpdateStep)));
  }
  const UpdateKernels& kernels = choose_table("update", context, update_cpu, &GpuKernels::update);
  kernels.write_step(context.exec(), in_place, step);
  kernels.update({context.exec(), reinterpret_cast<const UpdateTensorArgs*>(device_table), in_place,
                  static_cast<std::int64_t>(tensors.size()), elements, blocks,
                  single(1 - constants.beta1), single(constants.beta2), single(1 - constants.beta2),
                  single(constants.eps)});
}

}  // namespace trireme
