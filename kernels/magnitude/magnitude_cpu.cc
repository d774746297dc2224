#include "kernels/common/parallel.h"
#include "kernels/common/partial_sums.h"
#include "kernels/common/simd.h"
#include "kernels/magnitude/magnitude_table.h"

namespace trireme::TRIREME_ISA {
namespace {

template <class T>
void gains_of(const MagnitudeGainsArgs& args) {
  const T* magnitude = static_cast<const T*>(args.magnitude);
  for (std::int64_t n = 0; n < args.count; ++n)
    args.inverse[n] =
        static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(args.squares[n])));
  for_each_vector(0, args.count, [&](std::int64_t n, auto lanes) {
    const F32 inverse = F32::load(args.inverse + n, lanes);
    (magnitude == nullptr ? F32::broadcast(1) : F32::load(magnitude + n, lanes) * inverse)
        .store(args.gain + n, lanes);
  });
}
void gains(const MagnitudeGainsArgs& args) {
  if (args.dtype == DType::kF32) return gains_of<float>(args);
  gains_of<BFloat16>(args);
}

void gradient(const MagnitudeGradientArgs& args) {
  for_each_vector(0, args.count, [&](std::int64_t n, auto lanes) {
    const F32 added = F32::load(args.dgain + n, lanes) * F32::load(args.inverse + n, lanes);
    (F32::load(args.dmagnitude + n, lanes) + added).store(args.dmagnitude + n, lanes);
  });
}

template <class T>
void forward_of(const MagnitudeForwardArgs& args) {
  const T *all = static_cast<const T*>(args.v), *bias = static_cast<const T*>(args.bias);
  T* out = static_cast<T*>(args.y);
  parallel_ranges(args.exec, args.tokens, 2 * args.columns,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      const T* v = all + t * args.columns;
                      T* y = out + t * args.columns;
                      for_each_vector(0, args.columns, [&](std::int64_t n, auto lanes) {
                        const F32 gain = F32::load(args.gain + n, lanes);
                        F32 value = F32::load(v + n, lanes) * gain;
                        if (bias != nullptr) value = value + F32::load(bias + n, lanes);
                        value.store(y + n, lanes);
                      });
                    }
                  });
}
void forward(const MagnitudeForwardArgs& args) {
  if (args.dtype == DType::kF32) return forward_of<float>(args);
  forward_of<BFloat16>(args);
}

int pieces_of(const MagnitudeBackwardArgs& args) {
  return piece_count(args.exec.threads, args.tokens, 4 * args.columns);
}
std::int64_t backward_scratch_floats(const MagnitudeBackwardArgs& args) {
  return pieces_of(args) * PartialSum::floats(args.columns);
}

template <class T>
void backward_row(const MagnitudeBackwardArgs& args, std::int64_t t, const PartialSum& dgain) {
  const T *dy = static_cast<const T*>(args.dy) + t * args.columns,
          *v = static_cast<const T*>(args.v) + t * args.columns;
  T* dv = args.dv == nullptr ? nullptr : static_cast<T*>(args.dv) + t * args.columns;
  for_each_vector(0, args.columns, [&](std::int64_t n, auto lanes) {
    const F32 d = F32::load(dy + n, lanes);
    dgain.add(n, lanes, d * F32::load(v + n, lanes));
    if (dv != nullptr) (d * F32::load(args.gain + n, lanes)).store(dv + n, lanes);
  });
}

void backward(const MagnitudeBackwardArgs& args) {
  const int pieces = pieces_of(args);
  parallel_pieces(pieces, args.tokens, [&](int piece, std::int64_t begin, std::int64_t end) {
    const PartialSum sum = PartialSum::of_piece(args.partial_sums, piece, args.columns);
    for (std::int64_t t = begin; t < end; ++t) {
      if (args.dtype == DType::kF32)
        backward_row<float>(args, t, sum);
      else
        backward_row<BFloat16>(args, t, sum);
      sum.finish_row(t - begin, t + 1 == end);
    }
  });
  add_pieces(args.dgain, args.partial_sums, pieces, args.columns);
}

}  // namespace

const MagnitudeKernels magnitude_cpu = {gains, gradient, forward, backward,
                                        backward_scratch_floats};

}  // namespace trireme::TRIREME_ISA
