#include "kernels/update/update_cpu.h"

#include "kernels/common/tensor_parts.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 4;

enum class Copy : std::uint8_t { kNone, kBf16, kF32 };

template <UpdateRule kRule, Copy kCopy, bool kKept>
void update_part(const UpdateTensorArgs& tensor, const StepConstants& c, std::int64_t begin,
                 std::int64_t end) {
  constexpr bool kTwo = kRule != UpdateRule::kLion;
  const Rates rates = rates_of(c, tensor.lr_scale, tensor.decay);
  for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
    F32 p = F32::load(tensor.parameter + i, lanes), m = F32::load(tensor.exp_avg + i, lanes),
        v = kTwo ? F32::load(tensor.exp_avg_sq + i, lanes) : F32::zero();
    if constexpr (kKept) {
      p.store(tensor.kept + i, lanes);
      m.store(tensor.kept + tensor.count + i, lanes);
      if constexpr (kTwo) v.store(tensor.kept + 2 * tensor.count + i, lanes);
    }
    update<kRule>(p, m, v, F32::load(tensor.gradient + i, lanes), c, rates);
    p.store(tensor.parameter + i, lanes);
    m.store(tensor.exp_avg + i, lanes);
    if constexpr (kTwo) v.store(tensor.exp_avg_sq + i, lanes);
    const F32 read = kRule == UpdateRule::kScheduleFree ? between(p, m, c.one_minus_beta1) : p;
    if constexpr (kCopy == Copy::kBf16) read.store(tensor.copy + i, lanes);
    if constexpr (kCopy == Copy::kF32) read.store(tensor.copy_f32 + i, lanes);
  });
}

template <UpdateRule kRule, bool kKept>
void update_copied(const UpdateTensorArgs& tensor, const StepConstants& c, std::int64_t begin,
                   std::int64_t end) {
  if (tensor.copy != nullptr) return update_part<kRule, Copy::kBf16, kKept>(tensor, c, begin, end);
  if constexpr (kRule == UpdateRule::kScheduleFree) {
    if (tensor.copy_f32 != nullptr)
      return update_part<kRule, Copy::kF32, kKept>(tensor, c, begin, end);
  }
  update_part<kRule, Copy::kNone, kKept>(tensor, c, begin, end);
}

template <UpdateRule kRule>
void update_whole(const UpdateTensorArgs& tensor, const StepConstants& c, std::int64_t begin,
                  std::int64_t end) {
  if (tensor.kept != nullptr) return update_copied<kRule, true>(tensor, c, begin, end);
  update_copied<kRule, false>(tensor, c, begin, end);
}

template <UpdateRule kRule>
void update_rows(const UpdateTensorArgs& tensor, const StepConstants& c, std::int64_t begin,
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

template <UpdateRule kRule>
void update_all(const UpdateArgs& args) {
  const StepConstants constants = step_constants(*args.step, args.constants);
  for_each_tensor_part(args, kWorkPerElement,
                       [&](const UpdateTensorArgs& tensor, std::int64_t from, std::int64_t to) {
                         update_rows<kRule>(tensor, constants, from, to);
                       });
}

void schedule_free_copy(const UpdateArgs& args) {
  const F32 one_minus_beta1 = F32::broadcast(args.constants.one_minus_beta1);
  for_each_tensor_part(args, kWorkPerElement,
                       [&](const UpdateTensorArgs& tensor, std::int64_t from, std::int64_t to) {
                         for_each_vector(from, to, [&](std::int64_t i, auto lanes) {
                           const F32 y =
                               between(F32::load(tensor.parameter + i, lanes),
                                       F32::load(tensor.exp_avg + i, lanes), one_minus_beta1);
                           if (tensor.copy != nullptr) y.store(tensor.copy + i, lanes);
                           if (tensor.copy_f32 != nullptr) y.store(tensor.copy_f32 + i, lanes);
                         });
                       });
}

void average(const UpdateArgs& args) {
  const F32 share = F32::broadcast(args.constants.one_minus_beta1);
  for_each_tensor_part(args, kWorkPerElement,
                       [&](const UpdateTensorArgs& tensor, std::int64_t from, std::int64_t to) {
                         for_each_vector(from, to, [&](std::int64_t i, auto lanes) {
                           const F32 e = F32::load(tensor.exp_avg + i, lanes);
                           fma(share, F32::load(tensor.parameter + i, lanes) - e, e)
                               .store(tensor.exp_avg + i, lanes);
                         });
                       });
}

void write_step(const Exec&, UpdateScalars* to, const UpdateScalars& step) { *to = step; }

}  // namespace

const UpdateKernels update_cpu = {write_step,
                                  update_all<UpdateRule::kAdamW>,
                                  update_all<UpdateRule::kLion>,
                                  update_all<UpdateRule::kScheduleFree>,
                                  schedule_free_copy,
                                  average};

}  // namespace trireme::TRIREME_ISA
