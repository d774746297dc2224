#include "kernels/common/activation.h"
#include "kernels/common/parallel.h"
#include "kernels/gelu/gelu_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 8;

template <class T>
void forward_of(const GeluForwardArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  T* act = static_cast<T*>(args.act);
  parallel_ranges(args.exec, args.count, kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_vector(begin, end, [&](std::int64_t i, auto lanes) {
                      const F32 value = F32::load(x + i, lanes);
                      gelu(value).store(act + i, lanes);
                    });
                  });
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
                      if (act != nullptr) gelu(value).store(act + i, lanes);
                      (d * gelu_slope(value)).store(dx + i, lanes);
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
