#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/update/update_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kElementsPerUnit =
    64;  // whole cache lines to a thread where tensors begin on one
constexpr std::int64_t kWorkPerElement = 4;

struct Constants {
  F32 gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_sqrt_correction2, eps,
      share;
  double lr, step_size;
};

enum class Rule : std::uint8_t { kAdamW, kLion, kScheduleFree };
enum class Copy : std::uint8_t { kNone, kBf16, kF32 };

TRIREME_INLINE F32 sign(F32 x) {
  const F32 zero = F32::zero(), one = F32::broadcast(1.0F);
  return select(zero < x, one, select(x < zero, zero - one, x));
}

/// Schedule-free's y.
TRIREME_INLINE F32 between(F32 x, F32 z, F32 one_minus_beta1) {
  return fma(one_minus_beta1, z - x, x);
}

template <Rule kRule, Copy kCopy, bool kKept>
void update_part(const UpdateTensorArgs& tensor, const Constants& c, std::int64_t begin,
                 std::int64_t end) {
  const F32 lr_decay = F32::broadcast(static_cast<float>(c.lr * tensor.decay)),
            step_size = F32::broadcast(static_cast<float>(c.step_size * tensor.lr_scale));
  for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
    const F32 g = F32::load(tensor.gradient + i, lanes) * c.gradient_scale;
    const F32 p_old = F32::load(tensor.parameter + i, lanes),
              m_old = F32::load(tensor.exp_avg + i, lanes);
    const F32 decayed = fnma(lr_decay, p_old, p_old);
    if constexpr (kKept) {
      p_old.store(tensor.kept + i, lanes);
      m_old.store(tensor.kept + tensor.count + i, lanes);
    }
    F32 p, m;
    if constexpr (kRule != Rule::kLion) {
      const F32 v_old = F32::load(tensor.exp_avg_sq + i, lanes);
      if constexpr (kKept) v_old.store(tensor.kept + 2 * tensor.count + i, lanes);
      const F32 v = fma(c.beta2, v_old, c.one_minus_beta2 * g * g);
      const F32 denominator = fma(sqrt(v), c.inverse_sqrt_correction2, c.eps);
      if constexpr (kRule == Rule::kAdamW) {
        m = fma(c.one_minus_beta1, g - m_old, m_old);
        p = fnma(step_size, m / denominator, decayed);
      } else {
        const F32 y = between(p_old, m_old, c.one_minus_beta1);
        m = fnma(step_size, g / denominator, fnma(lr_decay, y, m_old));
        p = fma(c.share, m - p_old, p_old);
      }
      v.store(tensor.exp_avg_sq + i, lanes);
    } else {
      p = fnma(step_size, sign(fma(c.beta1, m_old, c.one_minus_beta1 * g)), decayed);
      m = fma(c.beta2, m_old, c.one_minus_beta2 * g);
    }
    m.store(tensor.exp_avg + i, lanes);
    p.store(tensor.parameter + i, lanes);
    const F32 read = kRule == Rule::kScheduleFree ? between(p, m, c.one_minus_beta1) : p;
    if constexpr (kCopy == Copy::kBf16) read.store(tensor.copy + i, lanes);
    if constexpr (kCopy == Copy::kF32) read.store(tensor.copy_f32 + i, lanes);
  });
}

template <Rule kRule, bool kKept>
void update_copied(const UpdateTensorArgs& tensor, const Constants& c, std::int64_t begin,
                   std::int64_t end) {
  if (tensor.copy != nullptr) return update_part<kRule, Copy::kBf16, kKept>(tensor, c, begin, end);
  if constexpr (kRule == Rule::kScheduleFree) {
    if (tensor.copy_f32 != nullptr)
      return update_part<kRule, Copy::kF32, kKept>(tensor, c, begin, end);
  }
  update_part<kRule, Copy::kNone, kKept>(tensor, c, begin, end);
}

template <Rule kRule>
void update_whole(const UpdateTensorArgs& tensor, const Constants& c, std::int64_t begin,
                  std::int64_t end) {
  if (tensor.kept != nullptr) return update_copied<kRule, true>(tensor, c, begin, end);
  update_copied<kRule, false>(tensor, c, begin, end);
}

template <Rule kRule>
void update_rows(const UpdateTensorArgs& tensor, const Constants& c, std::int64_t begin,
                 std::int64_t end) {
  if (tensor.slots == nullptr) return update_whole<kRule>(tensor, c, begin, end);
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t r = at / tensor.row, first = r * tensor.row;
    const std::int64_t last = end < first + tensor.row ? end : first + tensor.row;
    UpdateTensorArgs row = tensor;
    row.parameter += first;
    row.exp_avg += first;
    if (row.exp_avg_sq != nullptr) row.exp_avg_sq += first;
    row.gradient += tensor.slots[r] * tensor.row;
    if (row.copy != nullptr) row.copy += first;
    if (row.copy_f32 != nullptr) row.copy_f32 += first;
    if (row.kept != nullptr) row.kept += first;
    update_whole<kRule>(row, c, at - first, last - first);
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

/// Calls `body(tensor, from, to)` for elements of all tensors, by all threads.
template <class Body>
void for_each_part(const UpdateArgs& args, const Body& body) {
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
                      body(tensor, from, to);
                    }
                  });
}

template <Rule kRule>
void update(const UpdateArgs& args) {
  const UpdateScalars& step = *args.step;
  const UpdateConstants& of = args.constants;
  const Constants constants = {F32::broadcast(step.gradient_scale),
                               F32::broadcast(of.beta1),
                               F32::broadcast(of.one_minus_beta1),
                               F32::broadcast(of.beta2),
                               F32::broadcast(of.one_minus_beta2),
                               F32::broadcast(step.inverse_sqrt_correction2),
                               F32::broadcast(of.eps),
                               F32::broadcast(step.share),
                               step.lr,
                               step.step_size};
  for_each_part(args, [&](const UpdateTensorArgs& tensor, std::int64_t from, std::int64_t to) {
    update_rows<kRule>(tensor, constants, from, to);
  });
}

void schedule_free_copy(const UpdateArgs& args) {
  const F32 one_minus_beta1 = F32::broadcast(args.constants.one_minus_beta1);
  for_each_part(args, [&](const UpdateTensorArgs& tensor, std::int64_t from, std::int64_t to) {
    for_each_vector(from, to, [&](std::int64_t i, auto lanes) {
      const F32 y = between(F32::load(tensor.parameter + i, lanes),
                            F32::load(tensor.exp_avg + i, lanes), one_minus_beta1);
      if (tensor.copy != nullptr) y.store(tensor.copy + i, lanes);
      if (tensor.copy_f32 != nullptr) y.store(tensor.copy_f32 + i, lanes);
    });
  });
}

void average(const UpdateArgs& args) {
  const F32 share = F32::broadcast(args.constants.one_minus_beta1);
  for_each_part(args, [&](const UpdateTensorArgs& tensor, std::int64_t from, std::int64_t to) {
    for_each_vector(from, to, [&](std::int64_t i, auto lanes) {
      const F32 e = F32::load(tensor.exp_avg + i, lanes);
      fma(share, F32::load(tensor.parameter + i, lanes) - e, e).store(tensor.exp_avg + i, lanes);
    });
  });
}

void write_step(const Exec&, UpdateScalars* to, const UpdateScalars& step) { *to = step; }

}  // namespace

const UpdateKernels update_cpu = {write_step,          update<Rule::kAdamW>,
                                  update<Rule::kLion>, update<Rule::kScheduleFree>,
                                  schedule_free_copy,  average};

}  // namespace trireme::TRIREME_ISA
