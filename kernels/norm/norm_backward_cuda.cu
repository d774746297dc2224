#include "kernels/common/column_pieces.cuh"
#include "kernels/common/gpu_scratch.h"
#include "kernels/norm/norm_row.cuh"
#include "kernels/quantize/quantize_rows.cuh"

namespace trireme::cuda {
namespace {

constexpr int kElements = 16;  ///< of a row in registers, for each thread at most
constexpr std::int64_t kRegisterRow = 512 * kElements;
constexpr std::int64_t kWarpRow = 32 * kElements;

std::int64_t rows_at_a_time(const NormBackwardArgs& args) {
  return args.channels <= kWarpRow ? RowPlace<32>::kRows : 1;
}
std::int64_t pieces_of(const NormBackwardArgs& args) {
  return gpu_scratch::norm_backward_pieces(args.tokens, args.channels, rows_at_a_time(args));
}
/// As many as are there at once, where that is below a block for each piece.
std::int64_t blocks_of(const NormBackwardArgs& args) {
  return min(pieces_of(args),
             args.multiprocessors * gpu_scratch::norm_backward_blocks(args.channels));
}

/// One group of columns of one row.
template <class T, int kWidth>
struct Group {
  Vector<T, kWidth> dy, s, dresidual;
};

/// What a row has beside its columns.
struct RowScale {
  float mean, rstd;
};

__device__ __forceinline__ RowScale scale_of(const NormBackwardArgs& args, std::int64_t row) {
  return {args.mean != nullptr ? args.mean[row] : 0.0F, args.rstd[row]};
}

/// weight_offset + weight; the weights stay packed, which takes half the registers in bf16.
template <class T>
__device__ __forceinline__ float weight_of(const NormBackwardArgs& args, T weight) {
  return __fadd_rn(to_float(weight), args.weight_offset);
}

template <NormKind kKind, int kWidth, class T>
__device__ __forceinline__ NormSums sums_of(const NormBackwardArgs& args,
                                            const Group<T, kWidth>& in,
                                            const Vector<T, kWidth>& weight, RowScale scale) {
  NormSums sums{};
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float g = to_float(in.dy.at[k]) * weight_of(args, weight.at[k]);
    sums.gn = fmaf(g, normalised<kKind>(to_float(in.s.at[k]), scale.mean, scale.rstd), sums.gn);
    if (kKind == NormKind::kLayer) sums.g += g;
  }
  return sums;
}

/// means: sums_of over the row / channels.
template <NormKind kKind, int kWidth, class T>
__device__ __forceinline__ Vector<T, kWidth> dx_of(const NormBackwardArgs& args,
                                                   const Group<T, kWidth>& in,
                                                   const Vector<T, kWidth>& weight,
                                                   bool has_dresidual, RowScale scale,
                                                   NormSums means) {
  Vector<T, kWidth> dx;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float n = normalised<kKind>(to_float(in.s.at[k]), scale.mean, scale.rstd);
    float d = fmaf(-n, means.gn, to_float(in.dy.at[k]) * weight_of(args, weight.at[k]));
    if (kKind == NormKind::kLayer) d -= means.g;
    d *= scale.rstd;
    if (has_dresidual) d = __fadd_rn(d, to_float(in.dresidual.at[k]));
    dx.at[k] = from_float<T>(d);
  }
  return dx;
}

/// The forward's result; without bias the zeros are not added.
template <NormKind kKind, int kWidth, class T>
__device__ __forceinline__ void store_y(const NormBackwardArgs& args, std::int64_t row,
                                        std::int64_t column, const Vector<T, kWidth>& s,
                                        const Vector<T, kWidth>& weight, RowScale scale) {
  const auto* biases = static_cast<const T*>(args.bias);
  const bool has_bias = kKind == NormKind::kLayer && biases != nullptr;
  const Vector<T, kWidth> bias = has_bias ? load<kWidth>(biases + column) : Vector<T, kWidth>{};
  Vector<T, kWidth> y;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float n = normalised<kKind>(to_float(s.at[k]), scale.mean, scale.rstd);
    y.at[k] = from_float<T>(
        scaled<kKind>(n, weight_of(args, weight.at[k]), has_bias, to_float(bias.at[k])));
  }
  store(row_of<T>(args.y, row, args.channels) + column, y);
}

/// Turns in which a block goes through a piece's rows.
struct RowPieces {
  int pieces, turns;
};

/// The sums of parts of pieces: of dweight, then of dbias.
__host__ __device__ __forceinline__ float* sums_of_dweight(const NormBackwardArgs& args) {
  return args.partial_sums;
}
__host__ __device__ __forceinline__ float* sums_of_dbias(const NormBackwardArgs& args,
                                                         std::int64_t pieces) {
  return args.partial_sums + pieces * kParts * args.channels;
}

template <int kThreads>
struct Shared {
  // Rows in turn use one and the other: a slow warp may still read the sums of the row before.
  NormSums partials[2][kThreads / 32];
  float maxima[kThreads / 32];
};
/// The warps' sums of dweight or dbias, where they take rows of their own.
template <>
struct Shared<32> {
  NormSums partials[2][1];
  float maxima[1];
  float of_warp[RowPlace<32>::kRows][kWarpRow];
};

/// What a thread sums over the rows it sees: kVectors groups of columns.
template <int kVectors, int kWidth>
using ColumnSums = float[kVectors][kWidth];

/// Adds in order the sums of warps with rows of their own, or takes those of shared rows, and
/// begins new ones.
template <int kThreads, int kVectors, int kWidth>
__device__ __forceinline__ void end_part(const PartSums& part, ColumnSums<kVectors, kWidth>& sums,
                                         std::int64_t channels) {
  const RowPlace<kThreads> place;
  if constexpr (kThreads > 32) {
    for_vectors<kThreads, kVectors, kWidth>(place.thread, channels, [&](int v, int c) {
#pragma unroll
      for (int k = 0; k < kWidth; k += 4)
        part.put(c + k,
                 Vector<float, 4>{sums[v][k], sums[v][k + 1], sums[v][k + 2], sums[v][k + 3]});
    });
  } else {
    auto& shared = smem<Shared<32>>().of_warp;
    __syncthreads();  // dweight's readers are done when dbias comes
    for_vectors<kThreads, kVectors, kWidth>(place.thread, channels, [&](int v, int c) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) shared[place.row][c + k] = sums[v][k];
    });
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < channels; c += place.kBlock) {
      float sum = shared[0][c];
#pragma unroll
      for (int row = 1; row < place.kRows; ++row) sum += shared[row][c];
      part.put(c, Vector<float, 1>{sum});
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sums[v][k] = 0;
  }
}

/// A piece: every pieces-th row, or as many as a block has at a time. The next one is asked for
/// before this one is worked on, where registers allow: bf16 without the sums of dbias. 512 threads
/// to a multiprocessor at least, so 128 registers.
template <NormKind kKind, class T, int kThreads, int kVectors, bool kMaximum>
__global__ void __launch_bounds__(RowPlace<kThreads>::kBlock, 512 / RowPlace<kThreads>::kBlock)
    backward_kernel(NormBackwardArgs args, RowPieces rows) {
  constexpr int kWidth = kWide<T>;
  constexpr bool kAhead = sizeof(T) == 2 && kKind == NormKind::kRms;
  using Place = RowPlace<kThreads>;
  struct Row {
    Group<T, kWidth> groups[kVectors];
    RowScale scale;
  };
  auto& partials = smem<Shared<kThreads>>().partials;
  const Place place;
  const std::int64_t n = args.channels;
  const bool has_dresidual = args.dresidual != nullptr;
  const auto for_all = [&](auto body) {
    for_vectors<kThreads, kVectors, kWidth>(place.thread, n, body);
  };
  const auto load_row = [&](std::int64_t row) {
    Row loaded = {};
    const T *dy = row_of<T>(args.dy, row, n), *s = row_of<T>(args.s, row, n);
    for_all([&](int v, int c) { loaded.groups[v].dy = load<kWidth>(dy + c); });
    for_all([&](int v, int c) { loaded.groups[v].s = load<kWidth>(s + c); });
    if (has_dresidual) {
      const T* dresidual = row_of<T>(args.dresidual, row, n);
      for_all([&](int v, int c) { loaded.groups[v].dresidual = load<kWidth>(dresidual + c); });
    }
    loaded.scale = scale_of(args, row);
    return loaded;
  };

  Vector<T, kWidth> weight[kVectors] = {};
  for_all([&](int v, int c) { weight[v] = load<kWidth>(static_cast<const T*>(args.weight) + c); });
  ColumnSums<kVectors, kWidth> dweight = {}, dbias = {};
  float* kept_dweight = smem_tail<Shared<kThreads>, float>();
  const auto row_of_turn = [&](int piece, int turn) {
    return (turn * rows.pieces + piece) * place.kRows + place.row;
  };
  Row ahead = {};
  const auto look_ahead = [&](int piece, int turn) {
    if (!kAhead || turn < 0) return;
    const int row = row_of_turn(piece, turn);
    if (row < args.tokens) ahead = load_row(row);
  };
  int parity = 0;
  unsigned order = 0;
  const auto visit = [&](int piece, int turn, int next) {
    const int row = row_of_turn(piece, turn);
    if (row >= args.tokens) return;
    const Row now = kAhead ? ahead : load_row(row);
    look_ahead(piece, next);
    NormSums means{};
    for_all([&](int v, int) {
      means = means + sums_of<kKind, kWidth>(args, now.groups[v], weight[v], now.scale);
    });
    means = row_sum<kThreads>(means, partials[parity]);
    parity ^= 1;
    means.gn /= static_cast<float>(n);
    means.g /= static_cast<float>(n);
    T* dx = row_of<T>(args.dx, row, n);
    for_all([&](int v, int c) {
      const Group<T, kWidth>& group = now.groups[v];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        const float d = to_float(group.dy.at[k]);
        dweight[v][k] =
            fmaf(d, normalised<kKind>(to_float(group.s.at[k]), now.scale.mean, now.scale.rstd),
                 dweight[v][k]);
        if (kKind == NormKind::kLayer) dbias[v][k] += d;
      }
      const auto made =
          dx_of<kKind, kWidth>(args, group, weight[v], has_dresidual, now.scale, means);
      store(dx + c, made);
      if (kMaximum) order = max(order, order_of(made));
      if (args.y != nullptr) store_y<kKind, kWidth>(args, row, c, group.s, weight[v], now.scale);
    });
  };
  for_parts(rows.pieces, rows.turns, look_ahead, visit, [&](const Part& part) {
    if (args.dweight != nullptr) {
      end_part<kThreads, kVectors, kWidth>(part.of(sums_of_dweight(args), n, kept_dweight), dweight,
                                           n);
    }
    if (kKind == NormKind::kLayer && args.dbias != nullptr) {
      end_part<kThreads, kVectors, kWidth>(
          part.of(sums_of_dbias(args, rows.pieces), n, kept_dweight + n), dbias, n);
    }
  });
  if (kMaximum) join_maximum<kThreads>(args.amax, order, smem<Shared<kThreads>>().maxima);
}

/// Rows of any length and alignment, read twice. The sums of a part stand in shared memory where
/// they fit, else where they end up; each thread adds to columns of its own.
template <NormKind kKind, class T, int kThreads, int kWidth>
__global__ void __launch_bounds__(kThreads)
    long_backward_kernel(NormBackwardArgs args, RowPieces rows, bool sums_in_shared) {
  using Columns = Group<T, kWidth>;
  auto& shared = smem<Shared<kThreads>>();
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t n = args.channels;
  const bool has_dweight = args.dweight != nullptr,
             has_dbias = kKind == NormKind::kLayer && args.dbias != nullptr,
             has_dresidual = args.dresidual != nullptr;
  float *dweight = nullptr, *dbias = nullptr;
  if (sums_in_shared) {
    dweight = smem_tail<Shared<kThreads>, float>();
    dbias = dweight + n;
  }
  const auto for_all = [&](auto load_group, auto finish) {
    for_long_row<kThreads, kWidth>(thread, n, load_group, finish);
  };
  const auto for_sums = [&](auto body) {
    for (std::int64_t c = std::int64_t{thread} * kWidth; c < n; c += kThreads * kWidth)
      for (int k = 0; k < kWidth; ++k) body(c + k);
  };
  const auto begin_part = [&](int part) {  // of all pieces'
    if (!sums_in_shared) {
      const std::int64_t at = part * n;
      dweight = sums_of_dweight(args) + at;
      dbias = sums_of_dbias(args, rows.pieces) + at;
    }
    for_sums([&](std::int64_t c) {
      if (has_dweight) dweight[c] = 0;
      if (has_dbias) dbias[c] = 0;
    });
  };
  const auto* weights = static_cast<const T*>(args.weight);
  int parity = 0;
  unsigned order = 0;
  const auto visit = [&](int piece, int turn, int) {
    const int row = turn * rows.pieces + piece;
    if (row >= args.tokens) return;
    const T *dy = row_of<T>(args.dy, row, n), *s = row_of<T>(args.s, row, n);
    const RowScale scale = scale_of(args, row);
    NormSums means{};
    for_all(
        [&](std::int64_t c) {
          return Columns{load<kWidth>(dy + c), load<kWidth>(s + c), {}};
        },
        [&](std::int64_t c, const Columns& in) {
          means = means + sums_of<kKind, kWidth>(args, in, load<kWidth>(weights + c), scale);
        });
    means = row_sum<kThreads>(means, shared.partials[parity]);
    parity ^= 1;
    means.gn /= static_cast<float>(n);
    means.g /= static_cast<float>(n);
    T* dx = row_of<T>(args.dx, row, n);
    const T* dresidual = has_dresidual ? row_of<T>(args.dresidual, row, n) : nullptr;
    for_all(
        [&](std::int64_t c) {
          Columns in{load<kWidth>(dy + c), load<kWidth>(s + c), {}};
          if (has_dresidual) in.dresidual = load<kWidth>(dresidual + c);
          return in;
        },
        [&](std::int64_t c, const Columns& in) {
          const Vector<T, kWidth> weight = load<kWidth>(weights + c);
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            const float d = to_float(in.dy.at[k]);
            if (has_dweight)
              dweight[c + k] =
                  fmaf(d, normalised<kKind>(to_float(in.s.at[k]), scale.mean, scale.rstd),
                       dweight[c + k]);
            if (has_dbias) dbias[c + k] += d;
          }
          const auto made = dx_of<kKind, kWidth>(args, in, weight, has_dresidual, scale, means);
          store(dx + c, made);
          order = max(order, order_of(made));
          if (args.y != nullptr) store_y<kKind, kWidth>(args, row, c, in.s, weight, scale);
        });
  };
  const auto end_part = [&](float* sums, const float* of_part, const Part& part) {
    float* first =
        sums + std::int64_t{part.piece} * kParts * n;  // of all parts that this block adds
    float* to = part.begin == 0 ? first : first + part.part * n;
    const bool add = part.begin == 0 && part.part > 0;
    if (of_part == to) return;
    for_sums([&](std::int64_t c) { to[c] = add ? to[c] + of_part[c] : of_part[c]; });
  };
  const auto begin = static_cast<int>(first_part(blockIdx.x, gridDim.x, rows.pieces)),
             end =
                 static_cast<int>(first_part(std::int64_t{blockIdx.x} + 1, gridDim.x, rows.pieces));
  if (begin < end) begin_part(begin);
  for_parts(
      rows.pieces, rows.turns, [](int, int) {}, visit,
      [&](const Part& part) {
        if (has_dweight) end_part(sums_of_dweight(args), dweight, part);
        if (has_dbias) end_part(sums_of_dbias(args, rows.pieces), dbias, part);
        const int next = part.piece * kParts + part.part + 1;
        if (next < end) begin_part(next);
      });
  if (args.amax != nullptr) join_maximum<kThreads>(args.amax, order, shared.maxima);
}

/// Where a block has `rows` at a time.
RowPieces row_pieces(const NormBackwardArgs& args, int rows) {
  const std::int64_t pieces = pieces_of(args);
  return {static_cast<int>(pieces), static_cast<int>(blocks_for(args.tokens, pieces * rows))};
}

/// Of a row of sums of dweight and, with a layer norm, of dbias.
template <NormKind kKind>
std::size_t sums_bytes(const NormBackwardArgs& args) {
  return (kKind == NormKind::kLayer ? 2 : 1) * static_cast<std::size_t>(args.channels) *
         sizeof(float);
}

template <NormKind kKind, class T, int kThreads, int kVectors>
void launch_rows(const NormBackwardArgs& args) {
  launch(args.amax == nullptr ? backward_kernel<kKind, T, kThreads, kVectors, false>
                              : backward_kernel<kKind, T, kThreads, kVectors, true>,
         {.grid = static_cast<unsigned>(blocks_of(args)),
          .block = RowPlace<kThreads>::kBlock,
          .smem_bytes = sizeof(Shared<kThreads>) + sums_bytes<kKind>(args),
          .stream = stream_of(args.exec),
          .name = "norm_backward"},
         args, row_pieces(args, RowPlace<kThreads>::kRows));
}

template <NormKind kKind, class T, int kThreads, int kWidth>
void launch_long_rows(const NormBackwardArgs& args) {
  constexpr std::size_t kPartialBytes = sizeof(Shared<kThreads>);
  constexpr std::size_t kSharedMax = std::size_t{96} << 10;  // every GPU since sm_80 has as much
  const std::size_t bytes = sums_bytes<kKind>(args);
  const bool in_shared = bytes + kPartialBytes <= kSharedMax;
  launch(long_backward_kernel<kKind, T, kThreads, kWidth>,
         {.grid = static_cast<unsigned>(blocks_of(args)),
          .block = kThreads,
          .smem_bytes = kPartialBytes + (in_shared ? bytes : 0),
          .stream = stream_of(args.exec),
          .name = "norm_backward"},
         args, row_pieces(args, 1), in_shared);
}

template <NormKind kKind>
void backward(const NormBackwardArgs& args) {
  const std::int64_t n = args.channels;
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWidth = kWide<T>, kVectors = kElements / kWidth;
    const bool aligned = n % kWidth == 0 && aligned_to_16(args.dx, args.y, args.dy, args.dresidual,
                                                          args.s, args.weight, args.bias);
    if (aligned && n <= kRegisterRow) {
      if (n <= kWarpRow) return launch_rows<kKind, T, 32, kVectors>(args);
      if (n <= 1024) return launch_rows<kKind, T, 128, kVectors / 2>(args);
      if (n <= 2048) return launch_rows<kKind, T, 128, kVectors>(args);
      if (n <= 4096) return launch_rows<kKind, T, 256, kVectors>(args);
      return launch_rows<kKind, T, 512, kVectors>(args);
    }
    if (aligned) return launch_long_rows<kKind, T, 512, kWidth>(args);
    if (n <= 1024) return launch_long_rows<kKind, T, 128, 1>(args);
    launch_long_rows<kKind, T, 512, 1>(args);
  });
  const std::int64_t pieces = pieces_of(args), blocks = blocks_of(args);
  const auto add = [&](float* to, const float* sums) {
    if (to != nullptr) add_pieces(args.exec, to, {sums, pieces, n, blocks}, "norm_backward");
  };
  add(args.dweight, sums_of_dweight(args));
  add(args.dbias, sums_of_dbias(args, pieces));
}

}  // namespace

void norm_rms_backward(const NormBackwardArgs& args) { backward<NormKind::kRms>(args); }
void norm_layer_backward(const NormBackwardArgs& args) { backward<NormKind::kLayer>(args); }
std::int64_t norm_backward_scratch_floats(const NormBackwardArgs& args) {
  return gpu_scratch::norm_backward_floats(args.tokens, args.channels, rows_at_a_time(args));
}

}  // namespace trireme::cuda
