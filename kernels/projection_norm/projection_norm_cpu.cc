#include "kernels/common/parallel.h"
#include "kernels/common/partial_sums.h"
#include "kernels/common/simd.h"
#include "kernels/projection_norm/projection_norm_table.h"

namespace trireme::TRIREME_ISA {
namespace {

template <class T>
void dots_of(const HeadDotsArgs& args) {
  parallel_ranges(args.exec, args.tokens, 2 * args.width,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      const T *a = static_cast<const T*>(args.a) + t * args.a_stride,
                              *b = static_cast<const T*>(args.b) + t * args.b_stride;
                      args.dots[t] = sum_over(0, args.width, [&](std::int64_t c, auto lanes) {
                        return F32::load(a + c, lanes) * F32::load(b + c, lanes);
                      });
                    }
                  });
}
void dots(const HeadDotsArgs& args) {
  if (args.dtype == DType::kF32) return dots_of<float>(args);
  dots_of<BFloat16>(args);
}

F32 rstd_of(float squares, double columns, double eps) {
  return F32::broadcast(
      static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(squares) / columns + eps)));
}

template <class T>
void forward_of(const ProjectionNormForwardArgs& args) {
  const T* weight = static_cast<const T*>(args.weight);
  parallel_ranges(
      args.exec, args.tokens, 2 * args.width, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          const F32 rstd = rstd_of(args.squares[t], args.columns, args.eps);
          const T* in = static_cast<const T*>(args.in) + t * args.in_stride;
          T* out = static_cast<T*>(args.out) + t * args.out_stride;
          for_each_vector(0, args.width, [&](std::int64_t c, auto lanes) {
            (F32::load(in + c, lanes) * rstd * F32::load(weight + c, lanes)).store(out + c, lanes);
          });
        }
      });
}
void forward(const ProjectionNormForwardArgs& args) {
  if (args.dtype == DType::kF32) return forward_of<float>(args);
  forward_of<BFloat16>(args);
}

int pieces_of(const ProjectionNormBackwardArgs& args) {
  return piece_count(args.exec.threads, args.tokens, 4 * args.width);
}
std::int64_t backward_scratch_floats(const ProjectionNormBackwardArgs& args) {
  return args.dweight == nullptr ? 0 : pieces_of(args) * PartialSum::floats(args.width);
}

template <class T>
void backward_row(const ProjectionNormBackwardArgs& args, std::int64_t t,
                  const PartialSum* dweight) {
  const F32 rstd = rstd_of(args.squares[t], args.columns, args.eps);
  const F32 mean =
      F32::broadcast(static_cast<float>(static_cast<double>(args.dots[t]) / args.columns));
  const T* weight = static_cast<const T*>(args.weight);
  const T *dout = static_cast<const T*>(args.dout) + t * args.dout_stride,
          *in = static_cast<const T*>(args.in) + t * args.in_stride;
  T* din = static_cast<T*>(args.din) + t * args.din_stride;
  for_each_vector(0, args.width, [&](std::int64_t c, auto lanes) {
    const F32 d = F32::load(dout + c, lanes), n = F32::load(in + c, lanes) * rstd;
    if (dweight != nullptr) dweight->add(c, lanes, d * n);
    (fnma(n, mean, d * F32::load(weight + c, lanes)) * rstd).store(din + c, lanes);
  });
}

void backward(const ProjectionNormBackwardArgs& args) {
  const int pieces = pieces_of(args);
  const bool sums = args.dweight != nullptr;
  parallel_pieces(pieces, args.tokens, [&](int piece, std::int64_t begin, std::int64_t end) {
    PartialSum sum{};
    if (sums) sum = PartialSum::of_piece(args.partial_sums, piece, args.width);
    const PartialSum* dweight = sums ? &sum : nullptr;
    for (std::int64_t t = begin; t < end; ++t) {
      if (args.dtype == DType::kF32) {
        backward_row<float>(args, t, dweight);
      } else {
        backward_row<BFloat16>(args, t, dweight);
      }
      if (sums) sum.finish_row(t - begin, t + 1 == end);
    }
  });
  if (sums) add_pieces(args.dweight, args.partial_sums, pieces, args.width);
}

}  // namespace

const ProjectionNormKernels projection_norm_cpu = {dots, forward, backward,
                                                   backward_scratch_floats};

}  // namespace trireme::TRIREME_ISA
