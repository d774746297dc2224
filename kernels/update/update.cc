#include "kernels/update/update.h"

#include <cmath>
#include <utility>

#include "base/math.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/common/tensor_table.h"
#include "kernels/update/update_gradient.h"
#include "kernels/update/update_table.h"

namespace trireme {
namespace {

enum class Moments : std::uint8_t { kOne, kTwo };

UpdateTensorArgs plain(const ArgumentChecker& check, const Context& context,
                       const UpdateTensor& tensor, Moments moments) {
  const std::int64_t count = tensor.parameter.count();
  const bool in_rows = tensor.gradient_slots.given(), two = moments == Moments::kTwo;
  check.elements("parameter", tensor.parameter, DType::kF32, count);
  check_gradient(check, context, {tensor.parameter, tensor.gradient, tensor.gradient_slots});
  check.elements("exp_avg", tensor.exp_avg, DType::kF32, count);
  if (two) check.elements("exp_avg_sq", tensor.exp_avg_sq, DType::kF32, count);
  if (tensor.copy.given()) check.elements("copy", tensor.copy, DType::kBF16, count);
  if (tensor.kept.given()) check.elements("kept", tensor.kept, DType::kF32, (two ? 3 : 2) * count);
  return {tensor.parameter.as<float>(),
          tensor.exp_avg.as<float>(),
          two ? tensor.exp_avg_sq.as<float>() : nullptr,
          tensor.gradient.as<float>(),
          tensor.copy.given() ? tensor.copy.as<BFloat16>() : nullptr,
          nullptr,
          tensor.kept.given() ? tensor.kept.as<float>() : nullptr,
          in_rows ? tensor.gradient_slots.as<std::int32_t>() : nullptr,
          in_rows ? tensor.parameter.shape[1] : count,
          0,
          0,
          count,
          tensor.lr_scale,
          tensor.weight_decay * tensor.lr_scale};
}

/// Parameter and moments are read and written, the gradient read, copy and old values written.
OpWork work_of(std::span<const UpdateTensor> tensors, Moments moments) {
  std::int64_t bytes = 0;
  for (const UpdateTensor& each : tensors) {
    bytes +=
        2 * bytes_of(each.parameter, each.exp_avg) + bytes_of(each.gradient, each.copy, each.kept);
    if (moments == Moments::kTwo) bytes += 2 * bytes_of(each.exp_avg_sq);
  }
  return {0, bytes};
}

/// Calls `kernel` of the context's table for `count` tensors, which `plain_of(i)` describes but for
/// their places. Without a step none is written.
template <class PlainOf>
void update(Context& context, std::size_t count, const PlainOf& plain_of, const UpdateScalars* step,
            const UpdateConstants& constants, void (*UpdateKernels::*kernel)(const UpdateArgs&)) {
  TensorTable<UpdateTensorArgs> table(context, count);
  std::int64_t elements = 0, blocks = 0;
  for (std::size_t i = 0; i < count; ++i) {
    UpdateTensorArgs args = plain_of(i);
    args.begin = elements;
    args.first_block = blocks;
    table.add(args);
    elements += args.count;
    blocks += ceil_div(args.count, kUpdateElementsPerBlock);
  }
  if (elements == 0) return;
  UpdateScalars on_host = {};
  UpdateScalars* in_place = step == nullptr ? nullptr : &on_host;
  if (context.on_gpu() && step != nullptr)
    in_place = reinterpret_cast<UpdateScalars*>(context.scratch(sizeof(UpdateScalars)));
  const UpdateKernels& kernels = choose_table("update", context, update_cpu, &GpuKernels::update);
  if (step != nullptr) kernels.write_step(context.exec(), in_place, *step);
  (kernels.*
   kernel)({context.exec(), table.placed(), in_place, table.count(), elements, blocks, constants});
}

float single(double x) { return static_cast<float>(x); }

}  // namespace

void adamw_update(Context& context, std::span<const UpdateTensor> tensors,
                  const AdamWConstants& constants, const AdamWScalars& scalars) {
  const OpSpan span(context.op_trace(), "adamw_update", work_of(tensors, Moments::kTwo));
  const ArgumentChecker check("adamw_update");
  check.that(scalars.bias_correction1 > 0 && scalars.bias_correction2 > 0, "scalars",
             "the bias corrections must be positive: t counts the update that is made");
  const auto plain_of = [&](std::size_t i) {
    return plain(check, context, tensors[i], Moments::kTwo);
  };
  const UpdateScalars step = {scalars.lr, scalars.lr / scalars.bias_correction1,
                              scalars.gradient_scale,
                              single(1 / std::sqrt(scalars.bias_correction2)), 0};
  update(context, tensors.size(), plain_of, &step,
         {single(constants.beta1), single(1 - constants.beta1), single(constants.beta2),
          single(1 - constants.beta2), single(constants.eps)},
         &UpdateKernels::adamw);
}

void lion_update(Context& context, std::span<const UpdateTensor> tensors,
                 const LionConstants& constants, double lr, float gradient_scale) {
  const OpSpan span(context.op_trace(), "lion_update", work_of(tensors, Moments::kOne));
  const ArgumentChecker check("lion_update");
  const auto plain_of = [&](std::size_t i) {
    check.absent("exp_avg_sq", tensors[i].exp_avg_sq, "in Lion");
    return plain(check, context, tensors[i], Moments::kOne);
  };
  const UpdateScalars step = {lr, lr, gradient_scale, 1, 0};
  update(context, tensors.size(), plain_of, &step,
         {single(constants.beta1), single(1 - constants.beta1), single(constants.beta2),
          single(1 - constants.beta2), 0},
         &UpdateKernels::lion);
}

namespace {

/// schedule-free's y, in either type that products read.
void place_copy(const ArgumentChecker& check, UpdateTensorArgs& args, const TensorView& copy) {
  if (!copy.given()) return;
  const bool rounded = copy.dtype == DType::kBF16;
  check.elements("copy", copy, rounded ? DType::kBF16 : DType::kF32, args.count);
  args.copy = rounded ? copy.as<BFloat16>() : nullptr;
  args.copy_f32 = rounded ? nullptr : copy.as<float>();
}

}  // namespace

void schedule_free_update(Context& context, std::span<const UpdateTensor> tensors,
                          const ScheduleFreeConstants& constants,
                          const ScheduleFreeScalars& scalars) {
  const OpSpan span(context.op_trace(), "schedule_free_update", work_of(tensors, Moments::kTwo));
  const ArgumentChecker check("schedule_free_update");
  check.that(scalars.bias_correction2 > 0, "scalars",
             "the bias correction must be positive: t counts the update that is made");
  const auto plain_of = [&](std::size_t i) {
    UpdateTensor tensor = tensors[i];
    const TensorView copy = std::exchange(tensor.copy, {});
    UpdateTensorArgs args = plain(check, context, tensor, Moments::kTwo);
    place_copy(check, args, copy);
    return args;
  };
  const UpdateScalars step = {scalars.lr, scalars.lr, scalars.gradient_scale,
                              single(1 / std::sqrt(scalars.bias_correction2)),
                              single(scalars.share)};
  update(context, tensors.size(), plain_of, &step,
         {single(constants.beta1), single(1 - constants.beta1), single(constants.beta2),
          single(1 - constants.beta2), single(constants.eps)},
         &UpdateKernels::schedule_free);
}

void schedule_free_copy(Context& context, std::span<const UpdateTensor> tensors, double beta1) {
  OpWork work;
  for (const UpdateTensor& each : tensors)
    work.bytes += bytes_of(each.parameter, each.exp_avg, each.copy);
  const OpSpan span(context.op_trace(), "schedule_free_copy", work);
  const ArgumentChecker check("schedule_free_copy");
  const auto plain_of = [&](std::size_t i) {
    const UpdateTensor& tensor = tensors[i];
    UpdateTensorArgs args = {};
    args.count = args.row = tensor.parameter.count();
    check.elements("parameter", tensor.parameter, DType::kF32, args.count);
    check.elements("exp_avg", tensor.exp_avg, DType::kF32, args.count);
    args.parameter = tensor.parameter.as<float>();
    args.exp_avg = tensor.exp_avg.as<float>();
    place_copy(check, args, tensor.copy);
    return args;
  };
  update(context, tensors.size(), plain_of, nullptr, {0, single(1 - beta1), 0, 0, 0},
         &UpdateKernels::schedule_free_copy);
}

void average_update(Context& context, std::span<const AveragedTensor> tensors, double decay) {
  OpWork work;
  for (const AveragedTensor& each : tensors)
    work.bytes += 2 * bytes_of(each.average) + bytes_of(each.parameter);
  const OpSpan span(context.op_trace(), "average_update", work);
  const ArgumentChecker check("average_update");
  const auto plain_of = [&](std::size_t i) {
    const AveragedTensor& tensor = tensors[i];
    const std::int64_t count = tensor.average.count();
    check.elements("average", tensor.average, DType::kF32, count);
    check.elements("parameter", tensor.parameter, DType::kF32, count);
    UpdateTensorArgs args = {};
    args.parameter = const_cast<float*>(tensor.parameter.as<float>());  // read alone
    args.exp_avg = tensor.average.as<float>();
    args.count = args.row = count;
    return args;
  };
  update(context, tensors.size(), plain_of, nullptr, {0, single(1 - decay), 0, 0, 0},
         &UpdateKernels::average);
}

}  // namespace trireme
