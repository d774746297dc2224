#include "kernels/common/fast_divide.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/glu/glu_gate.cuh"
#include "kernels/glu/glu_table.h"
#include "kernels/quantize/quantize_forms.cuh"
#include "kernels/quantize/quantize_rows.cuh"
#include "kernels/quantize/waiting_values.cuh"

namespace trireme::cuda {
namespace {

constexpr int kForwardTurns = 4, kBackwardTurns = 2;

constexpr std::int64_t kItemsMax =
    (std::int64_t{1} << 31) - 64;  ///< of FastDivide, for whole warps

/// Items are groups of kWidth columns, rows after rows; a row has ffn / kWidth.
struct Rows {
  FastDivide items_per_row;
  std::int64_t ffn;
};

/// Where an item's elements stand in [T, F] and in [T, 2F].
struct Place {
  std::int64_t narrow, wide;
};
template <int kWidth>
__device__ __forceinline__ Place place_of(const Rows& rows, std::int64_t item) {
  const unsigned row = rows.items_per_row.quotient(static_cast<unsigned>(item));
  return {item * kWidth, item * kWidth + row * rows.ffn};
}

template <GluGate kGate, int kWidth, class T>
__global__ void __launch_bounds__(kTurnThreads)
    forward_kernel(T* act, const T* gate_up, Rows rows, std::int64_t items) {
  for_each_item<kForwardTurns>(
      items,
      [&](std::int64_t item) {
        const T* gate = gate_up + place_of<kWidth>(rows, item).wide;
        return GateUp<T, kWidth>{load<kWidth>(gate), load<kWidth>(gate + rows.ffn)};
      },
      [&](std::int64_t item, const GateUp<T, kWidth>& in) {
        Vector<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          out.at[k] = from_float<T>(glu<kGate>(to_float(in.gate.at[k]), to_float(in.up.at[k])));
        }
        store(act + item * kWidth, out);
      });
}

/// act may be null. An item is read, then written: dgate_up may be gate_up and act dact.
template <GluGate kGate, int kWidth, class T>
__global__ void __launch_bounds__(kTurnThreads)
    backward_kernel(T* dgate_up, T* act, const T* dact, const T* gate_up, Rows rows,
                    std::int64_t items) {
  for_each_item<kBackwardTurns>(
      items,
      [&](std::int64_t item) {
        const Place at = place_of<kWidth>(rows, item);
        return GateUpGradient<T, kWidth>{load<kWidth>(gate_up + at.wide),
                                         load<kWidth>(gate_up + at.wide + rows.ffn),
                                         load<kWidth>(dact + at.narrow)};
      },
      [&](std::int64_t item, const GateUpGradient<T, kWidth>& in) {
        const Place at = place_of<kWidth>(rows, item);
        Vector<T, kWidth> out, dgate, dup;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const GluGradient gradient = gradient_of<kGate>(
              to_float(in.gate.at[k]), to_float(in.up.at[k]), to_float(in.dact.at[k]));
          out.at[k] = from_float<T>(gradient.act);
          dgate.at[k] = from_float<T>(gradient.gate);
          dup.at[k] = from_float<T>(gradient.up);
        }
        if (act != nullptr) store(act + at.narrow, out);
        store(dgate_up + at.wide, dgate);
        store(dgate_up + at.wide + rows.ffn, dup);
      });
}

/// call(width constant, first token, items, rows): whole vectors where every row is aligned. In
/// parts where there are more items than FastDivide takes.
template <int kWidth, class Call>
void for_tokens(std::int64_t tokens, std::int64_t ffn, bool aligned, Call call) {
  if (tokens == 0 || ffn == 0) return;
  const auto in_parts = [&](auto width) {
    const std::int64_t per_row = ffn / decltype(width)::value;
    const std::int64_t tokens_max = kItemsMax / per_row;
    const Rows rows{FastDivide(per_row), ffn};
    for (std::int64_t token = 0; token < tokens; token += tokens_max) {
      const std::int64_t part = tokens - token < tokens_max ? tokens - token : tokens_max;
      call(width, token, part * per_row, rows);
    }
  };
  if (aligned && ffn % kWidth == 0) {
    in_parts(Width<kWidth>());
  } else {
    in_parts(Width<1>());
  }
}

template <GluGate kGate>
void forward_gated(const GluForwardArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    auto* act = static_cast<T*>(args.act);
    const auto* gate_up = static_cast<const T*>(args.gate_up);
    for_tokens<kWide<T>>(
        args.tokens, args.ffn, aligned_to_16(act, gate_up),
        [&](auto width, std::int64_t token, std::int64_t items, const Rows& rows) {
          launch(forward_kernel<kGate, decltype(width)::value, T>,
                 config_of_turns(args.exec, kForwardTurns, items,
                                 kGate == GluGate::kSilu ? "swiglu_forward" : "geglu_forward"),
                 act + token * args.ffn, gate_up + 2 * token * args.ffn, rows, items);
        });
  });
}

template <GluGate kGate>
void backward_gated(const GluBackwardArgs& args) {
  for_type(args.type, [&](auto type) {
    using T = decltype(type);
    auto *dgate_up = static_cast<T*>(args.dgate_up), *act = static_cast<T*>(args.act);
    const auto *dact = static_cast<const T*>(args.dact),
               *gate_up = static_cast<const T*>(args.gate_up);
    for_tokens<kWide<T>>(
        args.tokens, args.ffn, aligned_to_16(dgate_up, act, dact, gate_up),
        [&](auto width, std::int64_t token, std::int64_t items, const Rows& rows) {
          const std::int64_t narrow = token * args.ffn;
          launch(backward_kernel<kGate, decltype(width)::value, T>,
                 config_of_turns(args.exec, kBackwardTurns, items,
                                 kGate == GluGate::kSilu ? "swiglu_backward" : "geglu_backward"),
                 dgate_up + 2 * narrow, act == nullptr ? nullptr : act + narrow, dact + narrow,
                 gate_up + 2 * narrow, rows, items);
        });
  });
}

void forward(const GluForwardArgs& args) {
  if (args.gate == GluGate::kSilu) return forward_gated<GluGate::kSilu>(args);
  forward_gated<GluGate::kGelu>(args);
}
void backward(const GluBackwardArgs& args) {
  if (args.gate == GluGate::kSilu) return backward_gated<GluGate::kSilu>(args);
  backward_gated<GluGate::kGelu>(args);
}

// ---- codes ----

/// Items are groups of 8 columns of rows of codes, of whole blocks; whole warps come to each.
template <GluGate kGate, int kWidth>
__global__ void __launch_bounds__(kTurnThreads)
    forward_codes_kernel(RowCodes to, const bf16* gate_up, Rows rows, std::int64_t items) {
  struct Item {
    std::int64_t row, column;
    bool here;
  };
  const auto find = [&](std::int64_t item) {
    const auto row = rows.items_per_row.quotient(static_cast<unsigned>(item));
    const std::int64_t column = item * 8 - row * to.width;
    return Item{row, column, item < items && column < rows.ffn};
  };
  for_each_item<kBackwardTurns>(
      (items + 31) / 32 * 32,
      [&](std::int64_t item) {
        const Item at = find(item);
        const bf16* gate = gate_up + at.row * 2 * rows.ffn + at.column;
        return at.here
                   ? GateUp<bf16, 8>{load_eight<kWidth>(gate), load_eight<kWidth>(gate + rows.ffn)}
                   : GateUp<bf16, 8>{};
      },
      [&](std::int64_t item, const GateUp<bf16, 8>& in) {
        const Item at = find(item);
        Vector<bf16, 8> act;
#pragma unroll
        for (int k = 0; k < 8; ++k)
          act.at[k] = from_float<bf16>(glu<kGate>(to_float(in.gate.at[k]), to_float(in.up.at[k])));
        leave_codes<kWidth == 8>(to, at.row, item < items ? at.column : to.width, act);
      });
}

template <GluGate kGate>
void forward_codes_gated(const GluForwardCodesArgs& args) {
  const std::int64_t per_row = args.act.width / 8, tokens_max = kItemsMax / per_row;
  const auto* gate_up = static_cast<const bf16*>(args.gate_up);
  for (std::int64_t token = 0; token < args.tokens; token += tokens_max) {
    const std::int64_t left = args.tokens - token,
                       items = (left < tokens_max ? left : tokens_max) * per_row;
    RowCodes to = args.act;
    to.codes += token * to.width;
    to.scales += token * (to.width / RowCodes::kBlock);
    const auto run = [&](auto width) {
      launch(
          forward_codes_kernel<kGate, decltype(width)::value>,
          config_of_turns(args.exec, kBackwardTurns, items,
                          kGate == GluGate::kSilu ? "swiglu_forward_codes" : "geglu_forward_codes"),
          to, gate_up + 2 * token * args.ffn, Rows{FastDivide(per_row), args.ffn}, items);
    };
    aligned_to_16(gate_up, args.act.codes) ? run(Width<8>()) : run(Width<1>());
  }
}
void forward_codes(const GluForwardCodesArgs& args) {
  if (args.gate == GluGate::kSilu) return forward_codes_gated<GluGate::kSilu>(args);
  forward_codes_gated<GluGate::kGelu>(args);
}

struct BackwardCodesMemory {
  union {
    WaitingValues dgate;  ///< until its own turn, the first
    TileForms<Scales::kOfRows, Scales::kOfColumns> forms;
  };
  WaitingValues dup, act;
};

/// Of a thread's rows of a tile, some at a time; 0 where there is none.
template <GluGate kGate, bool kAligned>
__device__ __forceinline__ void make_gradients(BackwardCodesMemory& memory,
                                               const GluBackwardCodesArgs& args, const Tile& tile) {
  constexpr int kWidth = kAligned ? kOwn : 1;
  constexpr int kAtOnce = kGate == GluGate::kSilu ? 4 : 2;  // more would spill
  const std::int64_t row = tile.rows.origin + tile.row, column = tile.columns.origin + tile.column;
  const bf16* const gates = static_cast<const bf16*>(args.gate_up) + row * 2 * args.ffn + column;
  const bf16* const dacts = static_cast<const bf16*>(args.dact) + row * args.ffn + column;
#pragma unroll 1
  for (int first = 0; first < kOwn; first += kAtOnce) {
    GateUpGradient<bf16, kOwn> in[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int k = first + i;
      if (!tile.has_row(k) || !tile.has_all_columns()) continue;
      in[i].gate = load_eight<kWidth>(gates + k * 2 * args.ffn);
      in[i].up = load_eight<kWidth>(gates + k * 2 * args.ffn + args.ffn);
      in[i].dact = load_eight<kWidth>(dacts + k * args.ffn);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      Vector<bf16, kOwn> dgate, dup, act;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const GluGradient gradient = gradient_of<kGate>(
            to_float(in[i].gate.at[j]), to_float(in[i].up.at[j]), to_float(in[i].dact.at[j]));
        dgate.at[j] = from_float<bf16>(gradient.gate);
        dup.at[j] = from_float<bf16>(gradient.up);
        act.at[j] = from_float<bf16>(gradient.act);
      }
      memory.dgate.put(first + i, dgate);
      memory.dup.put(first + i, dup);
      memory.act.put(first + i, act);
    }
  }
}

/// A tile of dact's: of gate's columns and up's both orders, then the activation across.
template <GluGate kGate, class F8, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, 2)
    backward_codes_kernel(const __grid_constant__ GluBackwardCodesArgs args) {
  auto& memory = smem<BackwardCodesMemory>();
  const QuantizeArgs &along = args.dgate_up.along, &across = args.dgate_up.across;
  const auto tiles = static_cast<unsigned>(args.act.columns.tiles);
  const auto tile_of = [&](const QuantizeArgs& of, unsigned before) {
    return Tile(side_of(of.rows, blockIdx.x / tiles),
                side_of(of.columns, before + blockIdx.x % tiles));
  };
  Own<bf16> x;
  make_gradients<kGate, kAligned>(memory, args, tile_of(args.act, 0));
  memory.dgate.take(x);
  __syncthreads();
  quantize_tile<Scales::kOfRows, Scales::kOfColumns, F8>(
      memory.forms, x, {tile_of(along, 0), along}, {tile_of(across, 0), across});
  memory.dup.take(x);
  quantize_tile<Scales::kOfRows, Scales::kOfColumns, F8>(
      memory.forms, x, {tile_of(along, tiles), along}, {tile_of(across, tiles), across});
  memory.act.take(x);
  const Tile tile = tile_of(args.act, 0);
  quantize_tile<Scales::kNone, Scales::kOfColumns, F8E4M3>(memory.forms, x, {tile, args.act},
                                                           {tile, args.act});
}

template <GluGate kGate, bool kAligned>
void backward_codes_by(const GluBackwardCodesArgs& args) {
  for_format(args.dgate_up.along.format, [&](auto f8) {
    launch(
        backward_codes_kernel<kGate, decltype(f8), kAligned>,
        config_of_tiles(args.act.exec, args.act.rows, args.act.columns, sizeof(BackwardCodesMemory),
                        kGate == GluGate::kSilu ? "swiglu_backward_codes" : "geglu_backward_codes"),
        args);
  });
}
template <GluGate kGate>
void backward_codes_gated(const GluBackwardCodesArgs& args) {
  if (aligned_to_16(args.gate_up, args.dact)) return backward_codes_by<kGate, true>(args);
  backward_codes_by<kGate, false>(args);
}
void backward_codes(const GluBackwardCodesArgs& args) {
  if (args.gate == GluGate::kSilu) return backward_codes_gated<GluGate::kSilu>(args);
  backward_codes_gated<GluGate::kGelu>(args);
}

}  // namespace

const GluKernels glu_cuda = {forward, backward, forward_codes, backward_codes};

}  // namespace trireme::cuda
