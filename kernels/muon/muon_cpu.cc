#include "kernels/common/simd.h"
#include "kernels/common/tensor_parts.h"
#include "kernels/muon/muon_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 2;

template <class T>
void momentum_of(const MuonArgs& args) {
  const F32 scale = F32::broadcast(args.gradient_scale), share = F32::broadcast(args.momentum),
            rest = F32::broadcast(args.one_minus_momentum);
  for_each_tensor_part(
      args, kWorkPerElement, [&](const MuonTensorArgs& tensor, std::int64_t from, std::int64_t to) {
        const float* gradient = static_cast<const float*>(tensor.in);
        T* update = static_cast<T*>(tensor.out);
        for_each_vector(from, to, [&](std::int64_t i, auto lanes) {
          const F32 g = F32::load(gradient + i, lanes) * scale;
          const F32 old = F32::load(tensor.state + i, lanes), m = fma(rest, g - old, old);
          m.store(tensor.state + i, lanes);
          if (update != nullptr) fma(share, m - g, g).store(update + i, lanes);
        });
      });
}

void momentum(const MuonArgs& args) {
  if (args.update_type == DType::kF32) return momentum_of<float>(args);
  momentum_of<BFloat16>(args);
}

template <class T>
void update_of(const MuonArgs& args) {
  for_each_tensor_part(
      args, kWorkPerElement, [&](const MuonTensorArgs& tensor, std::int64_t from, std::int64_t to) {
        const F32 decay = F32::broadcast(static_cast<float>(args.lr * tensor.decay)),
                  step = F32::broadcast(static_cast<float>(args.lr * tensor.step));
        const T* update = static_cast<const T*>(tensor.in);
        BFloat16* copy = static_cast<BFloat16*>(tensor.out);
        for_each_vector(from, to, [&](std::int64_t i, auto lanes) {
          const F32 old = F32::load(tensor.state + i, lanes);
          const F32 p = fnma(step, F32::load(update + i, lanes), fnma(decay, old, old));
          p.store(tensor.state + i, lanes);
          if (copy != nullptr) p.store(copy + i, lanes);
        });
      });
}

void update(const MuonArgs& args) {
  if (args.update_type == DType::kF32) return update_of<float>(args);
  update_of<BFloat16>(args);
}

template <class T>
void operand_of(const NewtonSchulzOperandArgs& args) {
  T* operand = static_cast<T*>(args.operand);
  const F32 scale = F32::broadcast(args.scale), factor = F32::broadcast(args.factor);
  parallel_ranges(args.exec, args.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
      (F32::load(args.sum + i, lanes) * scale).store(operand + i, lanes);
      (F32::load(operand + i, lanes) * factor).store(args.sum + i, lanes);
    });
  });
}

void operand(const NewtonSchulzOperandArgs& args) {
  if (args.operand_type == DType::kF32) return operand_of<float>(args);
  operand_of<BFloat16>(args);
}

template <class T>
void polynomial_of(const NewtonSchulzPolynomialArgs& args) {
  T* gram = static_cast<T*>(args.gram);
  const F32 linear = F32::broadcast(args.linear), quadratic = F32::broadcast(args.quadratic);
  parallel_ranges(args.exec, args.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
      fma(quadratic, F32::load(args.square + i, lanes), F32::load(gram + i, lanes) * linear)
          .store(gram + i, lanes);
    });
  });
}

void polynomial(const NewtonSchulzPolynomialArgs& args) {
  if (args.gram_type == DType::kF32) return polynomial_of<float>(args);
  polynomial_of<BFloat16>(args);
}

}  // namespace

const MuonKernels muon_cpu = {momentum, update, operand, polynomial};

}  // namespace trireme::TRIREME_ISA
