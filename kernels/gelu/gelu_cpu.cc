#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/gelu/gelu_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 8;
constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308F;
constexpr float kCubic = 0.044715F;

/// 0.5 (1 + tanh u) = sigmoid(2u), which does not cancel where tanh is near -1.
TRIREME_INLINE F32 twice_u(F32 x) {
  const F32 x2 = x * x;
  return F32::broadcast(kTwiceSqrtTwoOverPi) * fma(F32::broadcast(kCubic) * x2, x, x);
}

template <class T>
void forward_of(const GeluForwardArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* act = static_cast<T*>(args.act);
  parallel_ranges(args.exec, args.count, kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
                      const F32 value = F32::load(x + i, lanes);
                      (value * sigmoid(twice_u(value))).store(act + i, lanes);
                    });
                  });
}

/// gelu' = s + x s (1 - s) (2u)',  s = sigmoid(2u)
TRIREME_INLINE F32 slope(F32 x) {
  // Beyond +-64 the slope is 0 or 1 for all the digits there are; x^3 must not overflow to 0 * inf.
  const F32 c = max(F32::broadcast(-64.0F), min(F32::broadcast(64.0F), x));
  const F32 one = F32::broadcast(1.0F), s = sigmoid(twice_u(c));
  const F32 du = F32::broadcast(kTwiceSqrtTwoOverPi) * fma(F32::broadcast(3 * kCubic) * c, c, one);
  return fma(c * du, s * (one - s), s);
}

template <class T>
void backward_of(const GeluBackwardArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  const T* dact = static_cast<const T*>(args.dact);
  T* dx = static_cast<T*>(args.dx);
  T* act = static_cast<T*>(args.act);
  parallel_ranges(args.exec, args.count, 2 * kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
                      const F32 value = F32::load(x + i, lanes), d = F32::load(dact + i, lanes);
                      if (act != nullptr) (value * sigmoid(twice_u(value))).store(act + i, lanes);
                      (d * slope(value)).store(dx + i, lanes);
                    });
                  });
}

void forward(const GeluForwardArgs& args) {
  if (args.type == DType::kF32) return forward_of<float>(args);
  forward_of<BFloat16>(args);
}

void backward(const GeluBackwardArgs& args) {
  if (args.type == DType::kF32) return backward_of<float>(args);
  backward_of<BFloat16>(args);
}

}  // namespace

const GeluKernels gelu_cpu = {forward, backward};

}  // namespace trireme::TRIREME_ISA
