#include "kernels/update/update_8bit.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/common/tensor_table.h"
#include "kernels/update/update_8bit_table.h"
#include "kernels/update/update_gradient.h"

namespace trireme {
namespace {

/// What an op is: its name, its table's function, and how many moments it has.
struct Op {
  const char* name;
  void (*CodedUpdateKernels::*kernel)(const CodedUpdateArgs&, CodedPass);
  bool two_moments;
  bool maxima;
};

CodedMomentArgs plain(const ArgumentChecker& check, const char* name, const CodedMoment& moment,
                      const CodedTensor& tensor) {
  const std::int64_t count = tensor.parameter.count();
  const bool parts = !tensor.parts.empty();
  const auto flat = [](const TensorView& view) { return view.reshape({view.count()}); };
  check.tensor(name, flat(moment.codes), DType::kU8, {count});
  const std::int64_t blocks = parts ? moment.absmax.count() : ceil_div(count, kMomentBlock);
  check.tensor(name, flat(moment.absmax), DType::kF32, {blocks});
  if (parts) {
    check.tensor(name, flat(moment.next), DType::kI32, {blocks});
  } else {
    check.absent(name, moment.next, "without parts");
  }
  return {reinterpret_cast<std::uint8_t*>(moment.codes.data), moment.absmax.as<float>(),
          parts ? moment.next.as<std::int32_t>() : nullptr};
}

/// All of a tensor that has no parts.
CodedTensorArgs plain(const ArgumentChecker& check, const Context& context,
                      const CodedTensor& tensor, const Op& op) {
  const std::int64_t count = tensor.parameter.count();
  check.tensor("parameter", tensor.parameter, DType::kF32, tensor.parameter.shape);
  check_gradient(check, context, {tensor.parameter, tensor.gradient, tensor.gradient_slots});
  if (tensor.copy.given())
    check.tensor("copy", tensor.copy.reshape({tensor.copy.count()}), DType::kBF16, {count});
  CodedTensorArgs args = {};
  args.parameter = tensor.parameter.as<float>();
  if (tensor.copy.given()) args.copy = tensor.copy.as<BFloat16>();
  args.gradient = tensor.gradient.as<float>();
  if (tensor.gradient_slots.given()) args.slots = tensor.gradient_slots.as<std::int32_t>();
  args.row = tensor.parameter.shape.rank() == 2 ? tensor.parameter.shape[1] : 1;
  args.exp_avg = plain(check, "exp_avg", tensor.exp_avg, tensor);
  if (op.two_moments) {
    args.exp_avg_sq = plain(check, "exp_avg_sq", tensor.exp_avg_sq, tensor);
  } else {
    check.absent("exp_avg_sq", tensor.exp_avg_sq.codes, "in Lion");
  }
  args.width = args.stride = args.whole_stride = args.count = count;
  args.lr_scale = tensor.lr_scale;
  args.decay = tensor.weight_decay * tensor.lr_scale;
  return args;
}

CodedTensorArgs part_of(const ArgumentChecker& check, CodedTensorArgs whole, const MomentPart& part,
                        std::int64_t blocks) {
  const std::int64_t rows = part.rows.size, columns = part.columns.size;
  const bool inside = part.rows.begin >= 0 && part.columns.begin >= 0 && rows >= 0 && columns >= 0;
  check.that(inside && (part.rows.begin + rows) * whole.row <= whole.count &&
                 part.columns.begin + columns <= whole.row,
             "parts", "a part outside of the tensor");
  whole.offset = part.rows.begin * whole.row + part.columns.begin;
  whole.count = rows * columns;
  whole.begin = part.begin;
  whole.width = columns;
  whole.stride = whole.row;
  whole.whole_stride = part.stride;
  if (rows * columns == 0) return whole;
  const std::int64_t last = part.begin + (rows - 1) * part.stride + columns - 1;
  check.that(part.begin >= 0 && last / kMomentBlock < blocks, "parts",
             "a part outside of the blocks");
  if (columns == whole.row && columns == part.stride) whole.width = whole.count;  // one run
  return whole;
}

/// Parameter and moments are read and written, the gradient read, the copy written; for maxima
/// gradient and codes are read.
OpWork work_of(std::span<const CodedTensor> tensors, const Op& op) {
  std::int64_t bytes = 0;
  for (const CodedTensor& each : tensors) {
    std::int64_t moments = bytes_of(each.exp_avg.codes, each.exp_avg.absmax);
    if (op.two_moments) moments += bytes_of(each.exp_avg_sq.codes, each.exp_avg_sq.absmax);
    bytes += bytes_of(each.gradient) + moments;
    if (!op.maxima) bytes += 2 * bytes_of(each.parameter) + bytes_of(each.copy) + moments;
  }
  return {0, bytes};
}

void run(Context& context, const Op& op, std::span<const CodedTensor> tensors,
         const UpdateScalars& step, const UpdateConstants& constants) {
  const OpSpan span(context.op_trace(), op.name, work_of(tensors, op));
  const ArgumentChecker check(op.name);
  std::size_t most = 0;
  for (const CodedTensor& each : tensors) most += std::max<std::size_t>(1, each.parts.size());
  TensorTable<CodedTensorArgs> table(context, most);
  std::int64_t units = 0, blocks = 0;
  const auto add = [&](CodedTensorArgs args) {
    if (args.count == 0) return;
    args.first_unit = units;
    args.first_block = blocks;
    table.add(args);
    const std::int64_t more = ceil_div(args.count, kMomentBlock);
    units += more;
    blocks += ceil_div(more, kMomentBlocksPerBlock);
  };
  const bool parts = !tensors.empty() && !tensors.front().parts.empty();
  check.that(parts || !op.maxima, "parts", "maxima are of parts");
  for (const CodedTensor& each : tensors) {
    check.that(parts == !each.parts.empty(), "parts", "all tensors have parts, or none");
    const CodedTensorArgs whole = plain(check, context, each, op);
    if (!parts) add(whole);
    for (const MomentPart& part : each.parts)
      add(part_of(check, whole, part, each.exp_avg.absmax.count()));
  }
  if (table.count() == 0) return;
  const MomentTables* codes = &moment_tables();
  UpdateScalars on_host = {};
  UpdateScalars* in_place = &on_host;
  if (context.on_gpu()) {
    codes = reinterpret_cast<const MomentTables*>(
        context.device_constant(std::as_bytes(std::span(codes, 1))));
    in_place = reinterpret_cast<UpdateScalars*>(context.scratch(sizeof(UpdateScalars)));
  }
  choose_table("update", context, update_cpu, &GpuKernels::update)
      .write_step(context.exec(), in_place, step);
  const CodedUpdateKernels& kernels =
      choose_table("update_8bit", context, update_8bit_cpu, &GpuKernels::update_8bit);
  const CodedPass pass = op.maxima ? CodedPass::kMaxima
                         : parts   ? CodedPass::kGiven
                                   : CodedPass::kWhole;
  (kernels.*op.kernel)(
      {context.exec(), table.placed(), in_place, codes, table.count(), units, blocks, constants},
      pass);
}

float single(double x) { return static_cast<float>(x); }

void adamw(Context& context, const Op& op, std::span<const CodedTensor> tensors,
           const AdamWConstants& of, const AdamWScalars& scalars) {
  ArgumentChecker(op.name).that(
      scalars.bias_correction1 > 0 && scalars.bias_correction2 > 0, "scalars",
      "the bias corrections must be positive: t counts the update that is made");
  run(context, op, tensors,
      {scalars.lr, scalars.lr / scalars.bias_correction1, scalars.gradient_scale,
       single(1 / std::sqrt(scalars.bias_correction2)), 0},
      {single(of.beta1), single(1 - of.beta1), single(of.beta2), single(1 - of.beta2),
       single(of.eps)});
}

void lion(Context& context, const Op& op, std::span<const CodedTensor> tensors,
          const LionConstants& of, double lr, float gradient_scale) {
  run(context, op, tensors, {lr, lr, gradient_scale, 1, 0},
      {single(of.beta1), single(1 - of.beta1), single(of.beta2), single(1 - of.beta2), 0});
}

}  // namespace

void adamw_8bit_update(Context& context, std::span<const CodedTensor> tensors,
                       const AdamWConstants& constants, const AdamWScalars& scalars) {
  adamw(context, {"adamw_8bit_update", &CodedUpdateKernels::adamw, true, false}, tensors, constants,
        scalars);
}

void adamw_8bit_maxima(Context& context, std::span<const CodedTensor> tensors,
                       const AdamWConstants& constants, const AdamWScalars& scalars) {
  adamw(context, {"adamw_8bit_maxima", &CodedUpdateKernels::adamw, true, true}, tensors, constants,
        scalars);
}

void lion_8bit_update(Context& context, std::span<const CodedTensor> tensors,
                      const LionConstants& constants, double lr, float gradient_scale) {
  lion(context, {"lion_8bit_update", &CodedUpdateKernels::lion, false, false}, tensors, constants,
       lr, gradient_scale);
}

void lion_8bit_maxima(Context& context, std::span<const CodedTensor> tensors,
                      const LionConstants& constants, double lr, float gradient_scale) {
  lion(context, {"lion_8bit_maxima", &CodedUpdateKernels::lion, false, true}, tensors, constants,
       lr, gradient_scale);
}

}  // namespace trireme
