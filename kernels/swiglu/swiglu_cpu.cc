#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/swiglu/swiglu_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 8;

/// body(token, first column, end column) over the rows, or parts of a row, that stand in [begin,
/// end) of T * F elements: one long row is shared out just as many short ones are.
template <class Body>
TRIREME_INLINE void for_each_row(std::int64_t begin, std::int64_t end, std::int64_t ffn,
                                 const Body& body) {
  while (begin < end) {
    const std::int64_t token = begin / ffn, first = begin - token * ffn;
    const std::int64_t last = first + (end - begin) < ffn ? first + (end - begin) : ffn;
    body(token, first, last);
    begin += last - first;
  }
}

template <class T>
void forward_of(const SwigluForwardArgs& args) {
  parallel_ranges(args.exec, args.tokens * args.ffn, kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_row(
                        begin, end, args.ffn,
                        [&](std::int64_t t, std::int64_t first, std::int64_t last) {
                          const T* gate = static_cast<const T*>(args.gate_up) + t * 2 * args.ffn;
                          const T* up = gate + args.ffn;
                          T* act = static_cast<T*>(args.act) + t * args.ffn;
                          for_each_vector(first, last, [&](std::int64_t f, auto lanes) {
                            const F32 g = F32::load(gate + f, lanes), u = F32::load(up + f, lanes);
                            __builtin_prefetch(act + args.ffn + f, 1);  // the next row's
                            (g * sigmoid(g) * u).store(act + f, lanes);
                          });
                        });
                  });
}

template <class T>
TRIREME_INLINE void backward_row(const SwigluBackwardArgs& args, std::int64_t t, std::int64_t first,
                                 std::int64_t last) {
  const T* gate = static_cast<const T*>(args.gate_up) + t * 2 * args.ffn;
  const T* dact = static_cast<const T*>(args.dact) + t * args.ffn;
  T* dgate = static_cast<T*>(args.dgate_up) + t * 2 * args.ffn;
  T* act = args.act == nullptr ? nullptr : static_cast<T*>(args.act) + t * args.ffn;
  for_each_vector(first, last, [&](std::int64_t f, auto lanes) {
    const F32 one = F32::broadcast(1.0F);
    // The next row's: short rows end before a CPU foresees them, 3 % of a product at ffn 352.
    __builtin_prefetch(gate + 2 * args.ffn + f);
    __builtin_prefetch(gate + 3 * args.ffn + f);
    if (act != nullptr) __builtin_prefetch(act + args.ffn + f, 1);
    const F32 g = F32::load(gate + f, lanes), u = F32::load(gate + args.ffn + f, lanes);
    const F32 d = F32::load(dact + f, lanes), s = sigmoid(g), gs = g * s;
    if (act != nullptr) (gs * u).store(act + f, lanes);
    (d * u * s * fma(g, one - s, one)).store(dgate + f, lanes);
    (d * gs).store(dgate + args.ffn + f, lanes);
  });
}

template <class T>
void backward_of(const SwigluBackwardArgs& args) {
  parallel_ranges(args.exec, args.tokens * args.ffn, 2 * kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_row(begin, end, args.ffn,
                                 [&](std::int64_t t, std::int64_t first, std::int64_t last) {
                                   backward_row<T>(args, t, first, last);
                                 });
                  });
}

void forward(const SwigluForwardArgs& args) {
  if (args.type == DType::kF32) return forward_of<float>(args);
  forward_of<BFloat16>(args);
}

void backward(const SwigluBackwardArgs& args) {
  if (args.type == DType::kF32) return backward_of<float>(args);
  backward_of<BFloat16>(args);
}

}  // namespace

const SwigluKernels swiglu_cpu = {forward, backward};

}  // namespace trireme::TRIREME_ISA
