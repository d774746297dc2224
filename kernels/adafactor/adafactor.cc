#include "kernels/adafactor/adafactor.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "kernels/adafactor/adafactor_grid.h"
#include "kernels/adafactor/adafactor_table.h"
#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/common/tensor_table.h"

namespace trireme {
namespace {

bool is_vector(const AdafactorTensor& tensor) { return tensor.parameter.shape.rank() == 1; }

AdafactorLinesArgs lines_args(const AdafactorLines& lines) {
  return {lines.variance.as<float>(), lines.largest.as<std::int32_t>(), lines.sums.as<double>(),
          lines.terms};
}

void check_lines(const ArgumentChecker& check, const AdafactorLines& lines, std::int64_t count) {
  check.tensor("lines.variance", lines.variance, DType::kF32, {count});
  check.tensor("lines.largest", lines.largest, DType::kI32, {count});
  check.tensor("lines.sums", lines.sums, DType::kF64, {count});
  check.that(lines.terms > 0, "lines.terms", "a whole line has elements");
}

void check_tensor(const Context& context, const ArgumentChecker& check,
                  const AdafactorTensor& tensor) {
  const Shape& shape = tensor.parameter.shape;
  if (!is_vector(tensor)) check.rank("parameter", tensor.parameter, 2);
  check.tensor("parameter", tensor.parameter, DType::kF32, shape);
  if (tensor.gradient_slots.given()) {
    if (context.on_gpu()) check.absent("gradient_slots", tensor.gradient_slots, "on a GPU");
    check.rank("gradient", tensor.gradient, 2);
    check.tensor("gradient", tensor.gradient, DType::kF32,
                 {tensor.gradient.shape[0], shape[shape.rank() - 1]});
    check.tensor("gradient_slots", tensor.gradient_slots, DType::kI32, {shape[0]});
    check.indices("gradient_slots", tensor.gradient_slots, tensor.gradient.shape[0]);
  } else {
    check.tensor("gradient", tensor.gradient, DType::kF32, shape);
  }
  check.optional("copy", tensor.copy, DType::kBF16, shape);
  check.tensor("words", tensor.words, DType::kF64, {ExactSum::kWords});
  check.tensor("scalars", tensor.scalars, DType::kF32, {3});
  if (is_vector(tensor)) return check.tensor("variance", tensor.variance, DType::kF32, shape);
  check.absent("variance", tensor.variance, "of a matrix");
  check_lines(check, tensor.rows, shape[0]);
  check_lines(check, tensor.columns, shape[1]);
}

/// The tensors as kernels take them, in memory of the device.
AdafactorArgs args_of(Context& context, const ArgumentChecker& check,
                      std::span<const AdafactorTensor> tensors, const AdafactorStep& step) {
  TensorTable<AdafactorTensorArgs> table(context, tensors.size());
  std::int64_t blocks = 0;
  for (const AdafactorTensor& tensor : tensors) {
    check_tensor(context, check, tensor);
    const bool vector = is_vector(tensor);
    AdafactorTensorArgs args = {};
    args.parameter = tensor.parameter.as<float>();
    args.variance = vector ? tensor.variance.as<float>() : nullptr;
    args.gradient = tensor.gradient.as<float>();
    args.copy = tensor.copy.given() ? tensor.copy.as<BFloat16>() : nullptr;
    args.slots = tensor.gradient_slots.given() ? tensor.gradient_slots.as<std::int32_t>() : nullptr;
    args.words = reinterpret_cast<std::uint64_t*>(tensor.words.data);
    args.scalars = tensor.scalars.as<float>();
    args.rows = vector ? 1 : tensor.parameter.shape[0];
    args.columns = tensor.parameter.shape[vector ? 0 : 1];
    if (!vector) args.row = lines_args(tensor.rows);
    if (!vector) args.column = lines_args(tensor.columns);
    args.first_block = blocks;
    blocks +=
        ceil_div(args.rows, kAdafactorTileRows) * ceil_div(args.columns, kAdafactorTileColumns);
    table.add(args);
  }
  const auto scale = static_cast<double>(step.gradient_scale);
  return {context.exec(),
          table.placed(),
          table.count(),
          blocks,
          step.gradient_scale,
          scale * scale,
          static_cast<float>(step.share)};
}

OpWork work_of(std::span<const AdafactorTensor> tensors, int gradients, int parameters) {
  OpWork work;
  for (const AdafactorTensor& each : tensors)
    work.bytes += gradients * bytes_of(each.gradient) + parameters * bytes_of(each.parameter);
  return work;
}

/// Variances and sums are read and written.
OpWork work_of_lines(std::span<const AdafactorTensor> tensors) {
  OpWork work;
  for (const AdafactorTensor& each : tensors) {
    for (const AdafactorLines& lines : {each.rows, each.columns})
      work.bytes += 2 * bytes_of(lines.variance, lines.sums);
  }
  return work;
}

OpWork work_of_update(std::span<const AdafactorTensor> tensors) {
  OpWork work = work_of(tensors, 1, 2);
  for (const AdafactorTensor& each : tensors) work.bytes += bytes_of(each.copy);
  return work;
}

const AdafactorGpuKernels& on_gpu() { return gpu_table("adafactor", &GpuKernels::adafactor); }

/// words += what `squares` finds of each tensor's elements: by a few thousand, or one by one where
/// their sum would not be exact.
template <class Squares>
void add_on_host(const Context& context, const AdafactorArgs& args, int grid,
                 const Squares& squares) {
  constexpr std::int64_t kElements = 4096, kPartsPerThread = 4;
  const double bound = exact_below(grid);
  for (std::int64_t t = 0; t < args.tensor_count; ++t) {
    const AdafactorTensorArgs& tensor = args.tensors[t];
    const std::int64_t count = tensor.rows * tensor.columns, parts = ceil_div(count, kElements);
    const auto threads =
        static_cast<int>(std::clamp<std::int64_t>(parts / kPartsPerThread, 1, context.threads()));
    ExactSum sum;
    std::memcpy(sum.words().data(), tensor.words, sizeof(sum.words()));
#pragma omp parallel num_threads(threads)
    {
      ExactSum mine;
#pragma omp for schedule(static)
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t begin = part * kElements, end = std::min(begin + kElements, count);
        const double all = squares(tensor, begin, end);
        if (all < bound) {
          mine.add(all);
          continue;
        }
        for (std::int64_t i = begin; i < end; ++i) mine.add(squares(tensor, i, i + 1));
      }
#pragma omp critical(trireme_adafactor)
      sum.add(mine);
    }
    std::memcpy(tensor.words, sum.words().data(), sizeof(sum.words()));
  }
}

}  // namespace

void adafactor_largest(Context& context, std::span<const AdafactorTensor> tensors) {
  const OpSpan span(context.op_trace(), "adafactor_largest", work_of(tensors, 1, 0));
  const AdafactorArgs args = args_of(context, ArgumentChecker("adafactor_largest"), tensors, {});
  if (args.block_count == 0) return;
  context.on_gpu() ? on_gpu().largest(args) : choose_by_isa(context, adafactor_cpu).largest(args);
}

void adafactor_sums(Context& context, std::span<const AdafactorTensor> tensors) {
  const OpSpan span(context.op_trace(), "adafactor_sums", work_of(tensors, 1, 1));
  const AdafactorArgs args = args_of(context, ArgumentChecker("adafactor_sums"), tensors, {});
  if (args.block_count == 0) return;
  if (context.on_gpu()) return on_gpu().sums(args);
  const AdafactorKernels& kernels = choose_by_isa(context, adafactor_cpu);
  kernels.sums(args);
  add_on_host(context, args, kWeightGrid, kernels.weight_squares);
}

void adafactor_lines(Context& context, std::span<const AdafactorTensor> tensors,
                     const AdafactorStep& step) {
  const OpSpan span(context.op_trace(), "adafactor_lines", work_of_lines(tensors));
  const AdafactorArgs args = args_of(context, ArgumentChecker("adafactor_lines"), tensors, step);
  if (args.tensor_count == 0) return;
  context.on_gpu() ? on_gpu().lines(args) : choose_by_isa(context, adafactor_cpu).lines(args);
}

void adafactor_squares(Context& context, std::span<const AdafactorTensor> tensors,
                       const AdafactorStep& step) {
  const OpSpan span(context.op_trace(), "adafactor_squares", work_of(tensors, 1, 0));
  const AdafactorArgs args = args_of(context, ArgumentChecker("adafactor_squares"), tensors, step);
  if (args.block_count == 0) return;
  if (context.on_gpu()) return on_gpu().squares(args);
  const AdafactorKernels& kernels = choose_by_isa(context, adafactor_cpu);
  kernels.variances(args);
  add_on_host(context, args, kStepGrid,
              [&](const AdafactorTensorArgs& tensor, std::int64_t begin, std::int64_t end) {
                return kernels.step_squares(tensor, args.gradient_scale, begin, end);
              });
}

void adafactor_update(Context& context, std::span<const AdafactorTensor> tensors,
                      float gradient_scale) {
  const OpSpan span(context.op_trace(), "adafactor_update", work_of_update(tensors));
  const AdafactorArgs args =
      args_of(context, ArgumentChecker("adafactor_update"), tensors, {gradient_scale, 1});
  if (args.block_count == 0) return;
  context.on_gpu() ? on_gpu().update(args) : choose_by_isa(context, adafactor_cpu).update(args);
}

}  // namespace trireme
