#include "kernels/grad_norm/grad_norm.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/math.h"
#include "device/gpu.h"
#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/common/tensor_table.h"
#include "kernels/grad_norm/grad_norm_table.h"

namespace trireme {
namespace {

std::int64_t rows_of(const ConstTensorView& gradient) {
  return gradient.shape.rank() == 1 ? 1 : gradient.shape[0];
}

OpWork work_of(std::span<const ConstTensorView> gradients) {
  std::int64_t bytes = 0;
  for (const ConstTensorView& each : gradients) bytes += bytes_of(each);
  return {0, bytes};
}

/// Some rows at a time.
void add_rows(const GradNormKernels& kernels, ExactSum& sum, const ConstTensorView& gradient,
              Slice rows) {
  std::array<double, 64> squares;
  const std::int64_t columns = gradient.count() / rows_of(gradient);
  const float* row = gradient.as<float>() + rows.begin * columns;
  for (std::int64_t left = rows.size; left > 0;) {
    const auto count = std::min(left, static_cast<std::int64_t>(squares.size()));
    kernels.row_squares(squares.data(), row, count, columns);
    for (std::int64_t r = 0; r < count; ++r) sum.add(squares[static_cast<std::size_t>(r)]);
    row += count * columns;
    left -= count;
  }
}

/// One parallel region for all tensors, of which a model has many small ones.
void add_on_host(const Context& context, ExactSum& sum,
                 std::span<const ConstTensorView> gradients) {
  constexpr std::int64_t kElementsPerThreadMin = 16384;
  const GradNormKernels& kernels = choose_by_isa(context, grad_norm_cpu);
  std::int64_t elements = 0;
  for (const ConstTensorView& each : gradients) elements += each.count();
  const auto parts = static_cast<int>(
      std::clamp<std::int64_t>(elements / kElementsPerThreadMin, 1, context.threads()));
#pragma omp parallel for num_threads(parts) schedule(static)
  for (int part = 0; part < parts; ++part) {
    ExactSum of_part;
    for (const ConstTensorView& each : gradients) {
      if (each.count() == 0) continue;
      add_rows(kernels, of_part, each, even_slice(rows_of(each), parts, part));
    }
#pragma omp critical(trireme_grad_norm)
    sum.add(of_part);
  }
}

void add_on_gpu(Context& context, std::uint64_t* words,
                std::span<const ConstTensorView> gradients) {
  TensorTable<GradNormTensorArgs> table(context, gradients.size());
  std::int64_t blocks = 0;
  for (const ConstTensorView& each : gradients) {
    const std::int64_t rows = each.count() == 0 ? 0 : rows_of(each);
    table.add({each.as<float>(), rows, rows == 0 ? 0 : each.count() / rows, blocks});
    blocks += ceil_div(rows, kGradNormRowsPerBlock);
  }
  if (blocks == 0) return;
  gpu_table("grad_norm", &GpuKernels::grad_norm)
      .squares({context.exec(), words, table.placed(), table.count(), blocks});
}

void add_from_gpu(Context& context, ExactSum& sum, std::span<const ConstTensorView> gradients) {
  ExactSum part;
  auto& words = part.words();
  auto* device_words = reinterpret_cast<std::uint64_t*>(context.scratch(sizeof(words)));
  gpu::clear(device_words, sizeof(words), context.exec().stream);
  add_on_gpu(context, device_words, gradients);
  // A row puts less than 2^32 into a word: below 2^30 rows no word comes near its sign.
  gpu::copy(words.data(), device_words, sizeof(words), context.exec().stream);
  context.synchronize();
  sum.add(part);
}

void check_gradients(const ArgumentChecker& check, std::span<const ConstTensorView> gradients) {
  for (const ConstTensorView& each : gradients) {
    if (each.shape.rank() != 1) check.rank("gradient", each, 2);
    check.tensor("gradient", each, DType::kF32, each.shape);
  }
}

}  // namespace

void grad_norm_accumulate(Context& context, ExactSum& sum,
                          std::span<const ConstTensorView> gradients) {
  const OpSpan span(context.op_trace(), "grad_norm", work_of(gradients));
  check_gradients(ArgumentChecker("grad_norm_accumulate"), gradients);
  if (context.on_gpu()) return add_from_gpu(context, sum, gradients);
  add_on_host(context, sum, gradients);
}

void add_squares(Context& context, TensorView words, std::span<const ConstTensorView> gradients) {
  const OpSpan span(context.op_trace(), "grad_norm", work_of(gradients));
  const ArgumentChecker check("add_squares");
  check_gradients(check, gradients);
  check.tensor("words", words, DType::kF64, {ExactSum::kWords});
  if (context.on_gpu())
    return add_on_gpu(context, reinterpret_cast<std::uint64_t*>(words.data), gradients);
  ExactSum sum, part;
  std::memcpy(sum.words().data(), words.data, words.bytes());
  add_on_host(context, part, gradients);
  sum.add(part);
  std::memcpy(words.data, sum.words().data(), words.bytes());
}

}  // namespace trireme
