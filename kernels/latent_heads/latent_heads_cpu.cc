#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/latent_heads/latent_heads_table.h"

namespace trireme::TRIREME_ISA {
namespace {

// ---- heads that are moved ----

struct Pair {
  F32 low, high;
};
TRIREME_INLINE Pair rotate(Pair x, Pair angle) {
  return {fnma(x.high, angle.high, x.low * angle.low), fma(x.low, angle.high, x.high * angle.low)};
}
TRIREME_INLINE Pair rotate_back(Pair x, Pair angle) {
  return {fma(x.high, angle.high, x.low * angle.low), fnma(x.low, angle.high, x.high * angle.low)};
}

/// Pairs that stand side by side, taken apart in memory; `count` of them, at most a vector's lanes.
struct Interleaved {
  alignas(64) float both[2 * F32::kWidth] = {}, low[F32::kWidth], high[F32::kWidth];

  /// load_at(c, lanes): the elements from c on.
  template <class Load>
  TRIREME_INLINE Pair load(std::int64_t count, const Load& load_at) {
    const std::int64_t second = 2 * count - F32::kWidth;
    if (count == F32::kWidth) {
      load_at(0, Full{}).store(both);
      load_at(F32::kWidth, Full{}).store(both + F32::kWidth);
    } else {
      load_at(0, Tail(2 * count)).store(both);
      if (second > 0) load_at(F32::kWidth, Tail(second)).store(both + F32::kWidth);
    }
    for (int i = 0; i < F32::kWidth; ++i) {
      low[i] = both[2 * i];
      high[i] = both[2 * i + 1];
    }
    return {F32::load(low), F32::load(high)};
  }
  template <class T>
  TRIREME_INLINE void store(Pair x, std::int64_t count, T* to) {
    x.low.store(low);
    x.high.store(high);
    for (int i = 0; i < F32::kWidth; ++i) {
      both[2 * i] = low[i];
      both[2 * i + 1] = high[i];
    }
    const F32 first = F32::load(both), second = F32::load(both + F32::kWidth);
    if (count == F32::kWidth) {
      first.store(to);
      second.store(to + F32::kWidth);
      return;
    }
    first.store(to, Tail(2 * count));
    if (2 * count > F32::kWidth) second.store(to + F32::kWidth, Tail(2 * count - F32::kWidth));
  }
};

/// The part that turns, of one head or summed over several, in order.
template <class T>
struct Turned {
  const T* first;
  std::int64_t heads, head_stride, dims;

  template <class Lanes>
  TRIREME_INLINE F32 load(std::int64_t c, Lanes lanes) const {
    F32 sum = F32::load(first + c, lanes);
    for (std::int64_t h = 1; h < heads; ++h)
      sum = sum + F32::load(first + h * head_stride + c, lanes);
    return sum;
  }
};

template <class T>
void turn(T* out, const Turned<T>& in, const float* cos_sin, const LatentAngles& angles) {
  if (angles.turn == LatentTurn::kNone) {
    for_each_vector(0, in.dims,
                    [&](std::int64_t c, auto lanes) { in.load(c, lanes).store(out + c, lanes); });
    return;
  }
  const std::int64_t half = in.dims / 2;
  const bool back = angles.turn == LatentTurn::kBack;
  Interleaved beside;
  for_each_vector(0, half, [&](std::int64_t j, auto lanes) {
    const std::int64_t count = half - j < F32::kWidth ? half - j : F32::kWidth;
    const Pair angle{F32::load(cos_sin + j, lanes), F32::load(cos_sin + half + j, lanes)};
    const auto beside_at = [&](std::int64_t c, auto some) { return in.load(2 * j + c, some); };
    const Pair x = angles.interleaved && !back ? beside.load(count, beside_at)
                                               : Pair{in.load(j, lanes), in.load(half + j, lanes)};
    const Pair y = back ? rotate_back(x, angle) : rotate(x, angle);
    if (angles.interleaved && back) return beside.store(y, count, out + 2 * j);
    y.low.store(out + j, lanes);
    y.high.store(out + half + j, lanes);
  });
}

template <class T>
void token_of(const LatentHeadsArgs& args, std::int64_t t) {
  const LatentPart &copied = args.copied, &turned = args.turned;
  const std::int64_t filled = copied.dims + turned.dims;
  const float* cos_sin = args.angles.turn == LatentTurn::kNone
                             ? nullptr
                             : args.angles.cos_sin + args.angles.positions[t] * turned.dims;
  for (std::int64_t h = 0; h < args.heads; ++h) {
    T* out = static_cast<T*>(args.out) + t * args.token_stride + h * args.head_stride;
    if (copied.dims > 0) {
      __builtin_memcpy(
          static_cast<void*>(out),
          static_cast<const T*>(copied.data) + t * copied.token_stride + h * copied.head_stride,
          static_cast<std::size_t>(copied.dims) * sizeof(T));
    }
    if (turned.dims > 0) {
      const T* first =
          static_cast<const T*>(turned.data) + t * turned.token_stride + h * turned.head_stride;
      turn(out + copied.dims, Turned<T>{first, args.summed, turned.head_stride, turned.dims},
           cos_sin, args.angles);
    }
    if (args.dims > filled) {
      __builtin_memset(static_cast<void*>(out + filled), 0,
                       static_cast<std::size_t>(args.dims - filled) * sizeof(T));
    }
  }
}

void heads(const LatentHeadsArgs& args) {
  const std::int64_t work = args.heads * (args.dims + args.turned.dims * args.summed);
  parallel_ranges(args.exec, args.tokens, work, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (args.dtype == DType::kF32) {
        token_of<float>(args, t);
      } else {
        token_of<BFloat16>(args, t);
      }
    }
  });
}

// ---- products with w: of a head, for a few tokens at a time, so that w is read once for them ----

/// Columns whose sums stand in the first cache meanwhile.
constexpr std::int64_t kColumns = 512;
/// Rows of w between two visits of a sum.
constexpr std::int64_t kRows = 4;

template <class T>
struct Tokens {
  const T* in;
  std::int64_t in_token;
  T* out;
  std::int64_t out_token;
  int count;
};

template <class T>
Tokens<T> tokens_of(const LatentAbsorbedArgs& args, std::int64_t head, std::int64_t first) {
  const std::int64_t rest = args.tokens - first;
  return {static_cast<const T*>(args.in) + first * args.in_token + head * args.in_head,
          args.in_token, static_cast<T*>(args.out) + first * args.out_token + head * args.out_head,
          args.out_token, static_cast<int>(rest < kLatentTokens ? rest : kLatentTokens)};
}

/// sums += in[n] w[n] for the rows n, ascending; each sum is one chain of FMAs.
template <int kCount, class T>
TRIREME_INLINE void add_rows(float* sums, const float* in, const T* w, std::int64_t stride,
                             std::int64_t columns) {
  F32 factor[kCount];
  for (int n = 0; n < kCount; ++n) factor[n] = F32::broadcast(in[n]);
  for_each_vector(0, columns, [&](std::int64_t l, auto lanes) {
    F32 sum = F32::load(sums + l);
    for (int n = 0; n < kCount; ++n)
      sum = fma(factor[n], F32::load(w + n * stride + l, lanes), sum);
    sum.store(sums + l);
  });
}

template <class T>
void queries_columns(const LatentAbsorbedArgs& args, const Tokens<T>& tokens, const T* w,
                     std::int64_t columns) {
  alignas(64) float sums[kLatentTokens][kColumns];
  __builtin_memset(sums, 0, sizeof sums);
  for (std::int64_t n = 0; n < args.rows; n += kRows) {
    const std::int64_t count = args.rows - n < kRows ? args.rows - n : kRows;
    for (int t = 0; t < tokens.count; ++t) {
      float in[F32::kWidth];
      F32::load(tokens.in + t * tokens.in_token + n, Tail(count)).store(in);
      const T* rows = w + n * args.latent;
      if (count == kRows) {
        add_rows<kRows>(sums[t], in, rows, args.latent, columns);
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i)
        add_rows<1>(sums[t], in + i, rows + i * args.latent, args.latent, columns);
    }
  }
  for (int t = 0; t < tokens.count; ++t) {
    for_each_vector(0, columns, [&](std::int64_t l, auto lanes) {
      F32::load(sums[t] + l).store(tokens.out + t * tokens.out_token + l, lanes);
    });
  }
}

template <class T>
void queries_of(const LatentAbsorbedArgs& args, std::int64_t head) {
  const T* w = static_cast<const T*>(args.w) + head * args.w_stride;
  for (std::int64_t first = 0; first < args.tokens; first += kLatentTokens) {
    Tokens<T> tokens = tokens_of<T>(args, head, first);
    for (std::int64_t l = 0; l < args.latent; l += kColumns) {
      const std::int64_t rest = args.latent - l;
      queries_columns(args, tokens, w + l, rest < kColumns ? rest : kColumns);
      tokens.out += kColumns;
    }
  }
}

template <class T>
void values_of(const LatentAbsorbedArgs& args, std::int64_t head) {
  const T* w = static_cast<const T*>(args.w) + head * args.w_stride;
  for (std::int64_t first = 0; first < args.tokens; first += kLatentTokens) {
    const Tokens<T> tokens = tokens_of<T>(args, head, first);
    for (std::int64_t n = 0; n < args.rows; ++n) {
      const T* row = w + n * args.latent;
      for (int t = 0; t < tokens.count; ++t) {
        const T* in = tokens.in + t * tokens.in_token;
        const float sum = sum_over(0, args.latent, [&](std::int64_t l, auto lanes) {
          return F32::load(row + l, lanes) * F32::load(in + l, lanes);
        });
        F32::broadcast(sum).store(tokens.out + t * tokens.out_token + n, Tail(1));
      }
    }
  }
}

template <class OfHead>
TRIREME_INLINE void for_heads(const LatentAbsorbedArgs& args, const OfHead& of_head) {
  parallel_ranges(args.exec, args.heads, args.tokens * args.rows * args.latent,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t h = begin; h < end; ++h) of_head(h);
                  });
}

void queries(const LatentAbsorbedArgs& args) {
  for_heads(args, [&](std::int64_t h) {
    if (args.dtype == DType::kF32) return queries_of<float>(args, h);
    queries_of<BFloat16>(args, h);
  });
}
void values(const LatentAbsorbedArgs& args) {
  for_heads(args, [&](std::int64_t h) {
    if (args.dtype == DType::kF32) return values_of<float>(args, h);
    values_of<BFloat16>(args, h);
  });
}

}  // namespace

const LatentHeadsKernels latent_heads_cpu = {heads, queries, values};

}  // namespace trireme::TRIREME_ISA
