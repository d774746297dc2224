#include "kernels/common/parallel.h"
#include "kernels/common/partial_sums.h"
#include "kernels/common/simd.h"
#include "kernels/quantize/quantize_blocks.h"
#include "kernels/rope/rope_table.h"

namespace trireme::TRIREME_ISA {
namespace {

/// Two elements of a head: j and j + R/2, which rotate together, or two that do not rotate.
struct Pair {
  F32 low, high;
};

/// The pairs of elements `begin` + j and `begin` + half + j of a head, j < half.
struct Pairs {
  std::int64_t begin, half;
  bool rotate;
};
/// `visit(pairs)` of those that rotate, then of the others.
template <class Args, class Visit>
TRIREME_INLINE void for_all_pairs(const Args& args, const Visit& visit) {
  visit(Pairs{0, args.rotated / 2, true});
  if (args.rotated < args.head_dim)
    visit(Pairs{args.rotated, (args.head_dim - args.rotated) / 2, false});
}

template <class T, class Lanes>
TRIREME_INLINE Pair load_pair(const T* head, std::int64_t half, std::int64_t j, Lanes lanes) {
  return {F32::load(head + j, lanes), F32::load(head + half + j, lanes)};
}
template <class T, class Lanes>
TRIREME_INLINE void store_pair(Pair x, T* head, std::int64_t half, std::int64_t j, Lanes lanes) {
  x.low.store(head + j, lanes);
  x.high.store(head + half + j, lanes);
}
TRIREME_INLINE Pair operator*(Pair a, Pair b) { return {a.low * b.low, a.high * b.high}; }
TRIREME_INLINE Pair operator*(Pair a, F32 b) { return {a.low * b, a.high * b}; }
TRIREME_INLINE Pair operator+(Pair a, F32 b) { return {a.low + b, a.high + b}; }

/// By the angle whose cosine and sine are given; the high half of `angle` is the sine.
TRIREME_INLINE Pair rotate(Pair x, Pair angle) {
  return {fnma(x.high, angle.high, x.low * angle.low), fma(x.low, angle.high, x.high * angle.low)};
}
TRIREME_INLINE Pair rotate_back(Pair x, Pair angle) {
  return {fma(x.high, angle.high, x.low * angle.low), fnma(x.low, angle.high, x.high * angle.low)};
}

template <class T>
void forward_head(const RopeForwardArgs& args, T* out, const T* in, const float* angles,
                  std::int64_t row) {
  const auto turned = [&](Pair x, const Pairs& of, std::int64_t j, auto lanes) {
    return of.rotate ? rotate(x, load_pair(angles, of.half, j, lanes)) : x;
  };
  if (args.weight == nullptr) {
    for_all_pairs(args, [&](const Pairs& of) {
      for_each_vector(0, of.half, [&](std::int64_t j, auto lanes) {
        const Pair x = load_pair(in + of.begin, of.half, j, lanes);
        store_pair(turned(x, of, j, lanes), out + of.begin, of.half, j, lanes);
      });
    });
    return;
  }
  const float squares = sum_over(0, args.head_dim, [&](std::int64_t d, auto lanes) {
    const F32 x = F32::load(in + d, lanes);
    return x * x;
  });
  const auto rstd = static_cast<float>(
      1.0 /
      __builtin_sqrt(static_cast<double>(squares) / static_cast<double>(args.head_dim) + args.eps));
  args.rstd[row] = rstd;
  const F32 scale = F32::broadcast(rstd), offset = F32::broadcast(args.weight_offset);
  const T* weight = static_cast<const T*>(args.weight);
  for_all_pairs(args, [&](const Pairs& of) {
    for_each_vector(0, of.half, [&](std::int64_t j, auto lanes) {
      const Pair w = load_pair(weight + of.begin, of.half, j, lanes) + offset;
      const Pair n = load_pair(in + of.begin, of.half, j, lanes) * scale * w;
      // The norm apart from the rotation would have stored n.
      const Pair stored{as_stored(n.low, in), as_stored(n.high, in)};
      store_pair(turned(stored, of, j, lanes), out + of.begin, of.half, j, lanes);
    });
  });
}

template <class T>
void forward_of(const RopeForwardArgs& args) {
  const std::int64_t width = args.heads * args.head_dim;
  parallel_ranges(args.exec, args.tokens, 2 * width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* angles = args.cos_sin + args.positions[t] * args.rotated;
      T* out = static_cast<T*>(args.out) + t * args.out_stride;
      const T* in = static_cast<const T*>(args.in) + t * args.in_stride;
      for (std::int64_t h = 0; h < args.heads; ++h) {
        forward_head(args, out + h * args.head_dim, in + h * args.head_dim, angles,
                     t * args.heads + h);
      }
    }
  });
}

void forward(const RopeForwardArgs& args) {
  if (args.dtype == DType::kF32) return forward_of<float>(args);
  forward_of<BFloat16>(args);
}

/// Sums: of dout's elements.
template <class T, class Sums>
struct HeadGradient {
  T* din;
  const Sums* dout;
  const T *in, *weight;
  const float* angles;
  float rstd, weight_offset;
};

/// The rotation undone.
template <class T, class Sums, class Lanes>
TRIREME_INLINE Pair turned_back(const HeadGradient<T, Sums>& head, const Pairs& of, std::int64_t j,
                                Lanes lanes) {
  Pair d = load_pair(head.dout + of.begin, of.half, j, lanes);
  if constexpr (sizeof(Sums) > sizeof(T))
    d = {as_stored(d.low, head.din), as_stored(d.high, head.din)};
  return of.rotate ? rotate_back(d, load_pair(head.angles, of.half, j, lanes)) : d;
}

template <class T, class Sums>
void backward_head_plain(const RopeBackwardArgs& args, const HeadGradient<T, Sums>& head) {
  for_all_pairs(args, [&](const Pairs& of) {
    for_each_vector(0, of.half, [&](std::int64_t j, auto lanes) {
      store_pair(turned_back(head, of, j, lanes), head.din + of.begin, of.half, j, lanes);
    });
  });
}

template <class T, class Sums>
void backward_head_norm(const RopeBackwardArgs& args, const HeadGradient<T, Sums>& head,
                        const PartialSum* dweight) {
  const F32 rstd = F32::broadcast(head.rstd), offset = F32::broadcast(head.weight_offset);
  const auto input = [&](const Pairs& of, std::int64_t j, auto lanes) {
    return load_pair(head.in + of.begin, of.half, j, lanes) * rstd;
  };
  const auto weight = [&](const Pairs& of, std::int64_t j, auto lanes) {
    return load_pair(head.weight + of.begin, of.half, j, lanes) + offset;
  };
  float sum = 0;
  for_all_pairs(args, [&](const Pairs& of) {
    sum += sum_over(0, of.half, [&](std::int64_t j, auto lanes) {
      const Pair gn = turned_back(head, of, j, lanes) * weight(of, j, lanes) * input(of, j, lanes);
      return gn.low + gn.high;
    });
  });
  const F32 mean = F32::broadcast(sum / static_cast<float>(args.head_dim));
  for_all_pairs(args, [&](const Pairs& of) {
    for_each_vector(0, of.half, [&](std::int64_t j, auto lanes) {
      const Pair dn = turned_back(head, of, j, lanes), n = input(of, j, lanes);
      if (dweight != nullptr) {
        dweight->add(of.begin + j, lanes, dn.low * n.low);
        dweight->add(of.begin + of.half + j, lanes, dn.high * n.high);
      }
      const Pair g = dn * weight(of, j, lanes);
      const Pair d{fnma(n.low, mean, g.low), fnma(n.high, mean, g.high)};
      store_pair(d * rstd, head.din + of.begin, of.half, j, lanes);
    });
  });
}

int pieces_of(const RopeBackwardArgs& args) {
  return piece_count(args.exec.threads, args.tokens, 4 * args.heads * args.head_dim);
}

std::int64_t backward_scratch_floats(const RopeBackwardArgs& args) {
  return args.dweight == nullptr ? 0 : pieces_of(args) * PartialSum::floats(args.head_dim);
}

/// The bits of their largest magnitude, where that is asked for.
template <class T, class Sums>
std::int32_t backward_tokens(const RopeBackwardArgs& args, std::int64_t begin, std::int64_t end,
                             const PartialSum* dweight) {
  const std::int64_t dim = args.head_dim;
  const bool norm = args.weight != nullptr;
  std::int32_t most = 0;
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t h = 0; h < args.heads; ++h) {
      const HeadGradient<T, Sums> head{
          static_cast<T*>(args.din) + t * args.din_stride + h * dim,
          static_cast<const Sums*>(args.dout) + t * args.dout_stride + h * dim,
          norm ? static_cast<const T*>(args.in) + t * args.in_stride + h * dim : nullptr,
          static_cast<const T*>(args.weight),
          args.cos_sin + args.positions[t] * args.rotated,
          norm ? args.rstd[t * args.heads + h] : 1.0F,
          args.weight_offset};
      if (!norm) {
        backward_head_plain(args, head);
        continue;
      }
      backward_head_norm(args, head, dweight);
      const std::int64_t row = (t - begin) * args.heads + h;
      if (dweight != nullptr) dweight->finish_row(row, row + 1 == (end - begin) * args.heads);
    }
    if (args.amax == nullptr) continue;
    const T* din = static_cast<const T*>(args.din) + t * args.din_stride;
    const std::int32_t of_token = max_of_run(din, 0, args.heads * dim);
    most = most < of_token ? of_token : most;
  }
  return most;
}

void backward(const RopeBackwardArgs& args) {
  const int pieces = pieces_of(args);
  const bool sums = args.weight != nullptr && args.dweight != nullptr;
  parallel_pieces(pieces, args.tokens, [&](int piece, std::int64_t begin, std::int64_t end) {
    PartialSum sum{};
    if (sums) sum = PartialSum::of_piece(args.partial_sums, piece, args.head_dim);
    const auto tokens = [&](auto of_tokens) {
      return of_tokens(args, begin, end, sums ? &sum : nullptr);
    };
    const std::int32_t most =
        tokens(args.dtype == DType::kF32        ? backward_tokens<float, float>
               : args.dout_dtype == DType::kF32 ? backward_tokens<BFloat16, float>
                                                : backward_tokens<BFloat16, BFloat16>);
    if (args.amax != nullptr) join_maximum(args.amax, most);
  });
  if (sums) add_pieces(args.dweight, args.partial_sums, pieces, args.head_dim);
}

// ---- codes ----

/// A part of a token's row, whose heads begin at column `part`.
template <class Sums>
struct PartOfRow {
  const Sums* dout;     ///< of the row
  const float* angles;  ///< null: nothing rotates
  std::int64_t part;
};

/// Columns [begin, end) of it, to `to`.
template <class Sums>
TRIREME_INLINE void turn_columns(const RopeCodesArgs& args, BFloat16* to,
                                 const PartOfRow<Sums>& row, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = args.rotated / 2;
  const auto rounded = [&](std::int64_t c, auto lanes) {
    return as_stored(F32::load(row.dout + c, lanes), to);
  };
  for (std::int64_t c = begin; c < end;) {
    const std::int64_t d = (c - row.part) % args.head_dim;
    const bool rotates = row.angles != nullptr && d < args.rotated, low = d < half;
    const std::int64_t stop =
        smaller(end, c - d + (rotates ? (low ? half : args.rotated) : args.head_dim));
    if (!rotates) {
      for_each_vector(c, stop, [&](std::int64_t i, auto lanes) {
        rounded(i, lanes).store(to + i - begin, lanes);
      });
    } else if (low) {
      for_each_vector(c, stop, [&](std::int64_t i, auto lanes) {
        const std::int64_t j = d + i - c;
        const Pair x{rounded(i, lanes), rounded(i + half, lanes)};
        rotate_back(x, load_pair(row.angles, half, j, lanes)).low.store(to + i - begin, lanes);
      });
    } else {
      for_each_vector(c, stop, [&](std::int64_t i, auto lanes) {
        const std::int64_t j = d - half + i - c;
        const Pair x{rounded(i - half, lanes), rounded(i, lanes)};
        rotate_back(x, load_pair(row.angles, half, j, lanes)).high.store(to + i - begin, lanes);
      });
    }
    c = stop;
  }
}

template <class Sums>
void backward_codes_of(const RopeCodesArgs& args) {
  quantize_made<BFloat16>(args.codes, [&](BFloat16* to, std::int64_t first, std::int64_t last,
                                          std::int64_t begin, std::int64_t end) {
    const bool of_q = begin < args.k_begin, of_v = begin >= args.v_begin;
    const std::int64_t part = of_q ? 0 : of_v ? args.v_begin : args.k_begin;
    const float* table = of_q ? args.q_cos_sin : of_v ? nullptr : args.k_cos_sin;
    for (std::int64_t t = first; t < last; ++t) {
      const PartOfRow<Sums> row{static_cast<const Sums*>(args.dout) + t * args.columns,
                                of_v ? nullptr : table + args.positions[t] * args.rotated, part};
      turn_columns(args, to + (t - first) * kPanelColumns, row, begin, end);
    }
  });
}

void backward_codes(const RopeCodesArgs& args) {
  if (args.dout_dtype == DType::kF32) return backward_codes_of<float>(args);
  backward_codes_of<BFloat16>(args);
}

}  // namespace

const RopeKernels rope_cpu = {forward, backward, backward_scratch_floats, backward_codes};

}  // namespace trireme::TRIREME_ISA
