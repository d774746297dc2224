#include "kernels/common/fast_divide.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/glu/glu_gate.cuh"
#include "kernels/glu/glu_table.h"

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

}  // namespace

const GluKernels glu_cuda = {forward, backward};

}  // namespace trireme::cuda
