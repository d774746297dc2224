#include "plan/matrix_time.h"

#include <algorithm>
#include <cmath>

#include "model/param_table.h"

namespace trireme {

namespace {

constexpr double kSteps = 5;  // of orthogonalize

double real(std::int64_t value) { return static_cast<double>(value); }

/// Products, and passes over the matrix and its Gram matrix (optim/orthogonalize.h).
double orthogonalize_seconds(const Shape& matrix, DType type, const OpTime& ops) {
  const std::int64_t r = std::min(matrix[0], matrix[1]), c = std::max(matrix[0], matrix[1]);
  const double element = real(static_cast<std::int64_t>(size_of(type)));
  const double step = ops.product({r, r, c, type, element}) + ops.product({r, r, r, type, 4}) +
                      ops.product({r, c, r, type, 8}) + ops.memory((8 + element) * real(r * c)) +
                      ops.memory((4 + 2 * element) * real(r * r));
  return kSteps * step + ops.memory((4 + element) * real(r * c)) +  // in, its norm, out
         ops.memory(4 * real(r * c)) + ops.memory((4 + element) * real(r * c));
}

}  // namespace

MatrixWork& MatrixWork::operator+=(const MatrixWork& other) {
  seconds += other.seconds;
  elements += other.elements;
  count += other.count;
  return *this;
}

MatrixWorks matrix_work(const ModelConfig& model, std::int64_t index, const StepLayout& layout,
                        const OpTime& ops) {
  const ChunkRange layer{index, 1, false, false};
  const ModelParams params = declare_params(model, {&layer, 1}, {{}, nullptr});
  MatrixWorks works;
  for (const ParamMeta& param : params.metas) {
    if (!param.matrix || !param.trainable) continue;
    const double share = param.view == MeshView::kExpert ? 1 / real(layout.expert) : 1;
    works[static_cast<std::size_t>(param.view)] +=
        {share * orthogonalize_seconds(param.shape, layout.compute, ops),
         share * real(param.shape.count()), share};
  }
  return works;
}

double shared_seconds(const MatrixWork& work, std::int64_t ranks) {
  if (work.count == 0) return 0;
  // Whole matrices: who works on most of them is waited for.
  return work.seconds / work.count * std::ceil(work.count / real(ranks));
}

PassTime parts_time(const MatrixWork& work, const LinkTime& ranks, DType type, Axis axis) {
  PassTime pass;
  const double n = real(ranks.ranks());
  if (n == 1 || work.count == 0) return pass;
  const double rounds = std::ceil(work.count / n);
  const double one_way =
      work.elements / n * (1 - 1 / n) * real(static_cast<std::int64_t>(size_of(type)));
  pass.bytes[axis] = 2 * one_way;
  pass.exposed[axis] = ranks.to_all(2 * one_way, 2 * rounds);
  return pass;
}

}  // namespace trireme
