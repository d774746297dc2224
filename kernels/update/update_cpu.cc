#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/update/update_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kElementsPerUnit =
    64;  // whole cache lines to a thread where tensors begin on one
constexpr std::int64_t kWorkPerElement = 4;

struct Constants {
  F32 gradient_scale, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_correction2, eps;
  double lr, step_size;
};

template <bool kCopy, bool kKept>
void update_part(const UpdateTensorArgs& tensor, const Constants& c, std::int64_t begin,
                 std::int64_t end) {
  const F32 lr_decay = F32::broadcast(static_cast<float>(c.lr * tensor.decay)),
            step_size = F32::broadcast(static_cast<float>(c.step_size * tensor.lr_scale));
  for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
    const F32 g = F32::load(tensor.gradient + i, lanes) * c.gradient_scale;
    const F32 p_old = F32::load(tensor.parameter + i, lanes),
              m_old = F32::load(tensor.exp_avg + i, lanes),
              v_old = F32::load(tensor.exp_avg_sq + i, lanes);
    if constexpr (kKept) {
      p_old.store(tensor.kept + i, lanes);
      m_old.store(tensor.kept + tensor.count + i, lanes);
      v_old.store(tensor.kept + 2 * tensor.count + i, lanes);
    }
    const F32 m = fma(c.one_minus_beta1, g - m_old, m_old);
    const F32 v = fma(c.beta2, v_old, c.one_minus_beta2 * g * g);
    const F32 denominator = fma(sqrt(v), c.inverse_sqrt_correction2, c.eps);
    const F32 p = fnma(step_size, m / denominator, fnma(lr_decay, p_old, p_old));
    m.store(tensor.exp_avg + i, lanes);
    v.store(tensor.exp_avg_sq + i, lanes);
    p.store(tensor.parameter + i, lanes);
    if constexpr (kCopy) p.store(tensor.copy + i, lanes);
  });
}

void update_whole(const UpdateTensorArgs& tensor, const Constants& c, std::int64_t begin,
                  std::int64_t end) {
  if (tensor.kept != nullptr) {
    if (tensor.copy != nullptr) return update_part<true, true>(tensor, c, begin, end);
    return update_part<false, true>(tensor, c, begin, end);
  }
  if (tensor.copy != nullptr) return update_part<true, false>(tensor, c, begin, end);
  update_part<false, false>(tensor, c, begin, end);
}

void update_part(const UpdateTensorArgs& tensor, const Constants& c, std::int64_t begin,
                 std::int64_t end) {
  if (tensor.slots == nullptr) return update_whole(tensor, c, begin, end);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t r = at / tensor.row, first = r * tensor.row;
    const std::int64_t last = end < first + tensor.row ? end : first + tensor.row;
    UpdateTensorArgs row = tensor;
    row.parameter += first;
    row.exp_avg += first;
    row.exp_avg_sq += first;
    row.gradient += tensor.slots[r] * tensor.row;
    if (row.copy != nullptr) row.copy += first;
    if (row.kept != nullptr) row.kept += first;
    update_whole(row, c, at - first, last - first);
    at = last;
  }
}

/// The first tensor that ends after element `begin`.
std::int64_t first_tensor(const UpdateArgs& args, std::int64_t begin) {
  std::int64_t low = 0, high = args.tensor_count - 1;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (args.tensors[middle].begin + args.tensors[middle].count > begin) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void update(const UpdateArgs& args) {
  const UpdateStep& step = *args.step;
  const Constants constants = {F32::broadcast(step.gradient_scale),
                               F32::broadcast(args.one_minus_beta1),
                               F32::broadcast(args.beta2),
                               F32::broadcast(args.one_minus_beta2),
                               F32::broadcast(step.inverse_sqrt_correction2),
                               F32::broadcast(args.eps),
                               step.lr,
                               step.step_size};
  const std::int64_t units = (args.element_count + kElementsPerUnit - 1) / kElementsPerUnit;
  parallel_ranges(args.exec, units, kElementsPerUnit * kWorkPerElement,
                  [&](std::int64_t first, std::int64_t last) {
                    const std::int64_t begin = first * kElementsPerUnit;
                    const std::int64_t end = last * kElementsPerUnit < args.element_count
                                                 ? last * kElementsPerUnit
                                                 : args.element_count;
                    for (std::int64_t t = first_tensor(args, begin); t < args.tensor_count; ++t) {
                      const UpdateTensorArgs& tensor = args.tensors[t];
                      if (tensor.begin >= end) break;
                      const std::int64_t from = begin > tensor.begin ? begin - tensor.begin : 0;
                      const std::int64_t to =
                          end - tensor.begin < tensor.count ? end - tensor.begin : tensor.count;
                      update_part(tensor, constants, from, to);
                    }
                  });
}

void write_step(const Exec&, UpdateStep* to, const UpdateStep& step) { *to = step; }

}  // namespace

const UpdateKernels update_cpu = {write_step, update};

}  // namespace trireme::TRIREME_ISA
