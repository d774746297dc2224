#include <type_traits>

#include "kernels/activation_codes/activation_codes_table.h"
#include "kernels/common/activation.cuh"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/quantize/quantize_forms.cuh"
#include "kernels/quantize/quantize_rows.cuh"
#include "kernels/quantize/waiting_values.cuh"

namespace trireme::cuda {
namespace {

template <ActivationKind kKind>
inline constexpr int kParts = static_cast<int>(parts_of(kKind));

/// What is made of one column of x's parts.
template <ActivationKind kKind>
__device__ __forceinline__ float act_of(const float (&x)[kParts<kKind>]) {
  if constexpr (kKind == ActivationKind::kSwiglu)
    return swiglu(x[0], x[1]);
  else if constexpr (kKind == ActivationKind::kGeglu)
    return geglu(x[0], x[1]);
  else
    return gelu(x[0]);
}
template <ActivationKind kKind>
struct Made {
  float dx[kParts<kKind>], act;
};
template <ActivationKind kKind>
__device__ __forceinline__ Made<kKind> made_of(const float (&x)[kParts<kKind>], float dact) {
  if constexpr (kKind == ActivationKind::kGelu) {
    return {{dact * gelu_slope(x[0])}, gelu(x[0])};
  } else {
    const GluGradient of = kKind == ActivationKind::kSwiglu ? swiglu_gradient(x[0], x[1], dact)
                                                            : geglu_gradient(x[0], x[1], dact);
    return {{of.gate, of.up}, of.act};
  }
}

/// Eight columns of each part, and of the gradient behind.
template <ActivationKind kKind>
struct Eight {
  Vector<bf16, kOwn> part[kParts<kKind>];

  template <int kWidth>
  __device__ __forceinline__ void load(const bf16* x, std::int64_t ffn) {
#pragma unroll
    for (int p = 0; p < kParts<kKind>; ++p) part[p] = load_eight<kWidth>(x + p * ffn);
  }
  __device__ __forceinline__ void get(float (&x)[kParts<kKind>], int j) const {
#pragma unroll
    for (int p = 0; p < kParts<kKind>; ++p) x[p] = to_float(part[p].at[j]);
  }
};

// ---- forward ----

template <ActivationKind kKind>
inline constexpr int kForwardTurns = 4 / kParts<kKind>;

constexpr std::int64_t kItemsMax =
    (std::int64_t{1} << 31) - 64;  ///< of FastDivide, for whole warps

/// Items are groups of 8 columns of rows of codes, of whole blocks.
struct Rows {
  FastDivide items_per_row;
  std::int64_t ffn;
};

/// Whole warps come to each.
template <ActivationKind kKind, int kWidth>
__global__ void __launch_bounds__(kTurnThreads)
    forward_kernel(RowCodes to, const bf16* x, Rows rows, std::int64_t items) {
  struct Item {
    std::int64_t row, column;
    bool here;
  };
  const auto find = [&](std::int64_t item) {
    const auto row = rows.items_per_row.quotient(static_cast<unsigned>(item));
    const std::int64_t column = item * 8 - row * to.width;
    return Item{row, column, item < items && column < rows.ffn};
  };
  for_each_item<kForwardTurns<kKind>>(
      (items + 31) / 32 * 32,
      [&](std::int64_t item) {
        const Item at = find(item);
        Eight<kKind> in = {};
        if (at.here)
          in.template load<kWidth>(x + at.row * kParts<kKind> * rows.ffn + at.column, rows.ffn);
        return in;
      },
      [&](std::int64_t item, const Eight<kKind>& in) {
        const Item at = find(item);
        Vector<bf16, 8> act;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float of[kParts<kKind>];
          in.get(of, j);
          act.at[j] = from_float<bf16>(act_of<kKind>(of));
        }
        leave_codes<kWidth == 8>(to, at.row, item < items ? at.column : to.width, act);
      });
}

template <ActivationKind kKind>
void forward_of(const ActivationForwardCodesArgs& args) {
  const std::int64_t per_row = args.act.width / 8, tokens_max = kItemsMax / per_row;
  const auto* x = static_cast<const bf16*>(args.x);
  for (std::int64_t token = 0; token < args.tokens; token += tokens_max) {
    const std::int64_t left = args.tokens - token,
                       items = (left < tokens_max ? left : tokens_max) * per_row;
    RowCodes to = args.act;
    to.codes += token * to.width;
    to.scales += token * (to.width / RowCodes::kBlock);
    const auto run = [&](auto width) {
      launch(forward_kernel<kKind, decltype(width)::value>,
             config_of_turns(args.exec, kForwardTurns<kKind>, items, forward_codes_name(kKind)), to,
             x + kParts<kKind> * token * args.ffn, Rows{FastDivide(per_row), args.ffn}, items);
    };
    aligned_to_16(x, args.act.codes) ? run(Width<8>()) : run(Width<1>());
  }
}

// ---- backward ----

template <ActivationKind kKind>
struct BackwardMemory {
  union {
    WaitingValues first;  ///< of dx's parts, until its own turn
    TileForms<Scales::kOfRows, Scales::kOfColumns> forms;
  };
  WaitingValues behind[kParts<kKind>];  ///< the other part, then the activation

  __device__ __forceinline__ WaitingValues& part(int p) { return p == 0 ? first : behind[p - 1]; }
  __device__ __forceinline__ WaitingValues& act() { return behind[kParts<kKind> - 1]; }
};

/// Of a thread's rows of a tile, some at a time; 0 where there is none.
template <ActivationKind kKind, bool kAligned>
__device__ __forceinline__ void make_gradients(BackwardMemory<kKind>& memory,
                                               const ActivationBackwardCodesArgs& args,
                                               const Tile& tile) {
  constexpr int kWidth = kAligned ? kOwn : 1;
  constexpr int kAtOnce = kKind == ActivationKind::kSwiglu ? 4 : 2;  // more would spill
  const std::int64_t row = tile.rows.origin + tile.row, column = tile.columns.origin + tile.column;
  const std::int64_t stride = kParts<kKind> * args.ffn;
  const bf16* const xs = static_cast<const bf16*>(args.x) + row * stride + column;
  const bf16* const dacts = static_cast<const bf16*>(args.dact) + row * args.ffn + column;
#pragma unroll 1
  for (int first = 0; first < kOwn; first += kAtOnce) {
    Eight<kKind> in[kAtOnce] = {};
    Vector<bf16, kOwn> dact[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int k = first + i;
      if (!tile.has_row(k) || !tile.has_all_columns()) continue;
      in[i].template load<kWidth>(xs + k * stride, args.ffn);
      dact[i] = load_eight<kWidth>(dacts + k * args.ffn);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      Vector<bf16, kOwn> dx[kParts<kKind>], act;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        float of[kParts<kKind>];
        in[i].get(of, j);
        const Made<kKind> made = made_of<kKind>(of, to_float(dact[i].at[j]));
#pragma unroll
        for (int p = 0; p < kParts<kKind>; ++p) dx[p].at[j] = from_float<bf16>(made.dx[p]);
        act.at[j] = from_float<bf16>(made.act);
      }
#pragma unroll
      for (int p = 0; p < kParts<kKind>; ++p) memory.part(p).put(first + i, dx[p]);
      memory.act().put(first + i, act);
    }
  }
}

/// A part's rows. They may be x's, which the same thread has read.
template <ActivationKind kKind, bool kAligned>
__device__ __forceinline__ void store_rows(const ActivationBackwardCodesArgs& args,
                                           const Tile& tile, int part, const Own<bf16>& dx) {
  const std::int64_t stride = kParts<kKind> * args.ffn;
  bf16* const to = static_cast<bf16*>(args.rows) + (tile.rows.origin + tile.row) * stride +
                   part * args.ffn + tile.columns.origin + tile.column;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (!tile.has_row(k) || !tile.has_all_columns()) continue;
    Vector<bf16, kOwn> row;
    __builtin_memcpy(row.at, dx.words[k], sizeof row.at);
    if constexpr (kAligned) {
      store(to + k * stride, row);
    } else {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) to[k * stride + j] = row.at[j];
    }
  }
}

/// A tile of dact's: of each part's columns both orders, then the activation across.
template <ActivationKind kKind, class F8, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, 2)
    backward_kernel(const __grid_constant__ ActivationBackwardCodesArgs args) {
  auto& memory = smem<BackwardMemory<kKind>>();
  const QuantizeArgs &along = args.dx.along, &across = args.dx.across;
  const auto tiles = static_cast<unsigned>(args.act.columns.tiles);
  const auto tile_of = [&](const QuantizeArgs& of, unsigned part) {
    return Tile(side_of(of.rows, blockIdx.x / tiles),
                side_of(of.columns, part * tiles + blockIdx.x % tiles));
  };
  Own<bf16> x;
  make_gradients<kKind, kAligned>(memory, args, tile_of(args.act, 0));
#pragma unroll
  for (int p = 0; p < kParts<kKind>; ++p) {
    memory.part(p).take(x);
    if (p == 0) __syncthreads();  // forms lie there
    if (args.rows != nullptr) store_rows<kKind, kAligned>(args, tile_of(args.act, 0), p, x);
    quantize_tile<Scales::kOfRows, Scales::kOfColumns, F8>(
        memory.forms, x, {tile_of(along, p), along}, {tile_of(across, p), across});
  }
  memory.act().take(x);
  const Tile tile = tile_of(args.act, 0);
  quantize_tile<Scales::kNone, Scales::kOfColumns, F8E4M3>(memory.forms, x, {tile, args.act},
                                                           {tile, args.act});
}

template <ActivationKind kKind>
void backward_of(const ActivationBackwardCodesArgs& args) {
  for_format(args.dx.along.format, [&](auto f8) {
    const auto run = [&](auto aligned) {
      launch(backward_kernel<kKind, decltype(f8), decltype(aligned)::value>,
             config_of_tiles(args.act.exec, args.act.rows, args.act.columns,
                             sizeof(BackwardMemory<kKind>), backward_codes_name(kKind)),
             args);
    };
    aligned_to_16(args.x, args.dact, args.rows) ? run(std::true_type()) : run(std::false_type());
  });
}

// ---- of any kind ----

template <ActivationKind kKind>
using Kind = std::integral_constant<ActivationKind, kKind>;
template <class Call>
void for_kind(ActivationKind kind, Call call) {
  if (kind == ActivationKind::kSwiglu) return call(Kind<ActivationKind::kSwiglu>());
  if (kind == ActivationKind::kGeglu) return call(Kind<ActivationKind::kGeglu>());
  call(Kind<ActivationKind::kGelu>());
}

void forward(const ActivationForwardCodesArgs& args) {
  for_kind(args.kind, [&](auto kind) { forward_of<decltype(kind)::value>(args); });
}
void backward(const ActivationBackwardCodesArgs& args) {
  for_kind(args.kind, [&](auto kind) { backward_of<decltype(kind)::value>(args); });
}

}  // namespace

const ActivationCodesKernels activation_codes_cuda = {forward, backward};

}  // namespace trireme::cuda
