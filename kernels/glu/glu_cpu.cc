#include "kernels/common/activation.h"
#include "kernels/common/parallel.h"
#include "kernels/glu/glu_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kWorkPerElement = 8;

/// What a gate gives.
template <GluGate kGate>
struct Activation;
template <>
struct Activation<GluGate::kSilu> {
  F32 gate, s;
  TRIREME_INLINE explicit Activation(F32 g) : gate(g), s(sigmoid(g)) {}
  [[nodiscard]] TRIREME_INLINE F32 value() const { return gate * s; }
  /// d, the gradient of value, times its slope.
  [[nodiscard]] TRIREME_INLINE F32 gradient(F32 d) const {
    const F32 one = F32::broadcast(1.0F);
    return d * s * fma(gate, one - s, one);
  }
};
template <>
struct Activation<GluGate::kGelu> {
  F32 gate;
  TRIREME_INLINE explicit Activation(F32 g) : gate(g) {}
  [[nodiscard]] TRIREME_INLINE F32 value() const { return gelu(gate); }
  [[nodiscard]] TRIREME_INLINE F32 gradient(F32 d) const { return d * gelu_slope(gate); }
};

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

template <GluGate kGate, class T>
void forward_of(const GluForwardArgs& args) {
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
                            (Activation<kGate>(g).value() * u).store(act + f, lanes);
                          });
                        });
                  });
}

template <GluGate kGate, class T>
TRIREME_INLINE void backward_row(const GluBackwardArgs& args, std::int64_t t, std::int64_t first,
                                 std::int64_t last) {
  const T* gate = static_cast<const T*>(args.gate_up) + t * 2 * args.ffn;
  const T* dact = static_cast<const T*>(args.dact) + t * args.ffn;
  T* dgate = static_cast<T*>(args.dgate_up) + t * 2 * args.ffn;
  T* act = args.act == nullptr ? nullptr : static_cast<T*>(args.act) + t * args.ffn;
  for_each_vector(first, last, [&](std::int64_t f, auto lanes) {
    // The next row's: short rows end before a CPU foresees them, 3 % of a product at ffn 352.
    __builtin_prefetch(gate + 2 * args.ffn + f);
    __builtin_prefetch(gate + 3 * args.ffn + f);
    if (act != nullptr) __builtin_prefetch(act + args.ffn + f, 1);
    const F32 g = F32::load(gate + f, lanes), u = F32::load(gate + args.ffn + f, lanes);
    const F32 d = F32::load(dact + f, lanes);
    const Activation<kGate> activation(g);
    const F32 value = activation.value();
    if (act != nullptr) (value * u).store(act + f, lanes);
    activation.gradient(d * u).store(dgate + f, lanes);
    (d * value).store(dgate + args.ffn + f, lanes);
  });
}

template <GluGate kGate, class T>
void backward_of(const GluBackwardArgs& args) {
  parallel_ranges(args.exec, args.tokens * args.ffn, 2 * kWorkPerElement,
                  [&](std::int64_t begin, std::int64_t end) {
                    for_each_row(begin, end, args.ffn,
                                 [&](std::int64_t t, std::int64_t first, std::int64_t last) {
                                   backward_row<kGate, T>(args, t, first, last);
                                 });
                  });
}

template <GluGate kGate>
void forward_gated(const GluForwardArgs& args) {
  if (args.type == DType::kF32) return forward_of<kGate, float>(args);
  forward_of<kGate, BFloat16>(args);
}
void forward(const GluForwardArgs& args) {
  if (args.gate == GluGate::kSilu) return forward_gated<GluGate::kSilu>(args);
  forward_gated<GluGate::kGelu>(args);
}

template <GluGate kGate>
void backward_gated(const GluBackwardArgs& args) {
  if (args.type == DType::kF32) return backward_of<kGate, float>(args);
  backward_of<kGate, BFloat16>(args);
}
void backward(const GluBackwardArgs& args) {
  if (args.gate == GluGate::kSilu) return backward_gated<GluGate::kSilu>(args);
  backward_gated<GluGate::kGelu>(args);
}

}  // namespace

const GluKernels glu_cpu = {forward, backward};

}  // namespace trireme::TRIREME_ISA
