// Weighted units of which codes alone are left: those along by a warp for a row, as
// expert_rows_cuda.cu has it, those across by tiles of a segment's rows, from a reading of their
// own.

#include "kernels/expert_rows/expert_rows.cuh"
#include "kernels/expert_rows/weighted_glu_codes_gpu_table.h"
#include "kernels/glu/glu_gate.cuh"
#include "kernels/quantize/quantize_rows.cuh"
#include "kernels/quantize/quantize_segments.cuh"
#include "kernels/quantize/waiting_values.cuh"

namespace trireme::cuda {
namespace {

using namespace expert_rows;

// ---- along: eight columns of a row a lane; whole warps come to each block of columns. Behind the
// last one units are 0 times 0: a weight that is negative would give codes of -0 ----

constexpr std::int64_t kWarpColumns = 32 * kOwn;
constexpr int kForwardTurns = 4, kBackwardTurns = 2;

template <int kWidth>
__device__ __forceinline__ GateUp<bf16, kOwn> load_units(const bf16* gate, std::int64_t f,
                                                         std::int64_t ffn) {
  if (f >= ffn) return {};
  return {load_eight<kWidth>(gate + f), load_eight<kWidth>(gate + ffn + f)};
}

template <GluGate kGate, int kWidth>
__global__ void __launch_bounds__(kThreads)
    forward_codes_kernel(const __grid_constant__ WeightedGluForwardCodesArgs args) {
  constexpr std::int64_t kColumns = kWarpColumns * kForwardTurns;
  const WeightedGluRows& rows = args.rows;
  const std::int64_t ffn = rows.ffn, width = args.h.width;
  const auto [r, first] = share_of_warp(kColumns, width);
  if (!has_row(rows, r)) return;
  const float weight = weight_of(rows, r);
  const bf16* const gate = static_cast<const bf16*>(rows.gate_up) + r * 2 * ffn;
  const std::int64_t end = (width + kWarpColumns - 1) / kWarpColumns * kWarpColumns;
  in_turns<kForwardTurns>(
      first + threadIdx.x % 32 * kOwn, kWarpColumns, min(first + kColumns, end),
      [&](std::int64_t f) { return load_units<kWidth>(gate, f, ffn); },
      [&](std::int64_t f, const GateUp<bf16, kOwn>& in) {
        Vector<bf16, kOwn> h;
        const float by = f < ffn ? weight : 0.0F;
#pragma unroll
        for (int k = 0; k < kOwn; ++k)
          h.at[k] =
              from_float<bf16>(glu<kGate>(to_float(in.gate.at[k]), to_float(in.up.at[k])) * by);
        leave_codes<kWidth == kOwn>(args.h, r, f, h);
      });
}

/// A warp takes a row, for the sum over it, in the order of glu_backward_kernel.
template <GluGate kGate, class F8, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_codes_kernel(const __grid_constant__ WeightedGluBackwardCodesArgs args) {
  const WeightedGluRows& rows = args.rows;
  const std::int64_t r = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32, ffn = rows.ffn;
  if (!has_row(rows, r)) return;
  const float weight = weight_of(rows, r);
  const bf16* const gate = static_cast<const bf16*>(rows.gate_up) + r * 2 * ffn;
  const bf16* const dh = static_cast<const bf16*>(args.dh) + r * ffn;
  const std::int64_t width = args.dgate_up.width, half = width / 2;
  float dweight = 0;
  in_turns<kBackwardTurns>(
      threadIdx.x % 32 * kOwn, kWarpColumns,
      (half + kWarpColumns - 1) / kWarpColumns * kWarpColumns,
      [&](std::int64_t f) {
        const GateUp<bf16, kOwn> in = load_units<kWidth>(gate, f, ffn);
        return GateUpGradient<bf16, kOwn>{
            in.gate, in.up, f < ffn ? load_eight<kWidth>(dh + f) : Vector<bf16, kOwn>{}};
      },
      [&](std::int64_t f, const GateUpGradient<bf16, kOwn>& in) {
        Vector<bf16, kOwn> dgate, dup;
        const float by = f < ffn ? weight : 0.0F;
#pragma unroll
        for (int k = 0; k < kOwn; ++k) {
          const float d = to_float(in.dact.at[k]);
          const GluGradient gradient =
              gradient_of<kGate>(to_float(in.gate.at[k]), to_float(in.up.at[k]), d * by);
          dweight = fmaf(d, gradient.act, dweight);
          dgate.at[k] = from_float<bf16>(gradient.gate);
          dup.at[k] = from_float<bf16>(gradient.up);
        }
        leave_codes<kWidth == kOwn, F8>(args.dgate_up, r, f < half ? f : width, dgate);
        leave_codes<kWidth == kOwn, F8>(args.dgate_up, r, f < half ? half + f : width, dup);
      });
  dweight = warp_sum(dweight);
  if (threadIdx.x % 32 == 0) args.dweights[r] = dweight;
}

// ---- across ----

struct BackwardAcrossMemory {
  union {
    WaitingValues dgate;  ///< until its own turn, the first
    AcrossMemory across;
  };
  WaitingValues dup, h;
};

/// Of a thread's rows of a tile, some at a time; 0 where there is none.
template <GluGate kGate, bool kAligned>
__device__ __forceinline__ void make_gradients(BackwardAcrossMemory& memory,
                                               const WeightedGluBackwardCodesArgs& args,
                                               const Tile& tile) {
  constexpr int kWidth = kAligned ? kOwn : 1;
  constexpr int kAtOnce = kGate == GluGate::kSilu ? 4 : 2;  // more would spill
  const WeightedGluRows& rows = args.rows;
  const std::int64_t row = tile.rows.origin + tile.row, column = tile.columns.origin + tile.column;
  const bf16* const gates = static_cast<const bf16*>(rows.gate_up) + row * 2 * rows.ffn;
  const bf16* const dhs = static_cast<const bf16*>(args.dh) + row * rows.ffn + column;
#pragma unroll 1
  for (int first = 0; first < kOwn; first += kAtOnce) {
    GateUpGradient<bf16, kOwn> in[kAtOnce] = {};
    float weight[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int k = first + i;
      if (!tile.has_row(k) || !tile.has_all_columns()) continue;
      const auto units = load_units<kWidth>(gates + k * 2 * rows.ffn, column, rows.ffn);
      in[i] = {units.gate, units.up, load_eight<kWidth>(dhs + k * rows.ffn)};
      weight[i] = weight_of(rows, row + k);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      Vector<bf16, kOwn> dgate, dup, h;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const GluGradient gradient =
            gradient_of<kGate>(to_float(in[i].gate.at[j]), to_float(in[i].up.at[j]),
                               to_float(in[i].dact.at[j]) * weight[i]);
        dgate.at[j] = from_float<bf16>(gradient.gate);
        dup.at[j] = from_float<bf16>(gradient.up);
        h.at[j] = from_float<bf16>(gradient.act * weight[i]);
      }
      memory.dgate.put(first + i, dgate);
      memory.dup.put(first + i, dup);
      memory.h.put(first + i, h);
    }
  }
}

/// A tile of h's: the gradient of gate, of up, then h.
template <GluGate kGate, class F8, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, 2)
    backward_across_kernel(const __grid_constant__ WeightedGluBackwardCodesArgs args) {
  auto& memory = smem<BackwardAcrossMemory>();
  const std::int64_t ffn = args.rows.ffn;
  const auto tiles = static_cast<unsigned>((ffn + kSide - 1) / kSide);
  SegmentTile tile{0, 0, 0, Tile(TileSide{}, TileSide{})};
  if (!find_tile(args.begins, args.segments, tiles, tile)) return;
  const std::int64_t column = std::int64_t{blockIdx.x % tiles} * kSide;
  tile.of.columns = {.origin = column,
                     .at = column,
                     .block = 0,
                     .first = 0,
                     .last = static_cast<int>(min(std::int64_t{kSide}, ffn - column)),
                     .begins = column == 0};
  const CodesOfSegments dgate_up{args.dgate_up_across.codes, args.dgate_up_across.scales, 2 * ffn},
      h{args.h_across.codes, args.h_across.scales, ffn};
  make_gradients<kGate, kAligned>(memory, args, tile.of);
  Own<bf16> x;
  memory.dgate.take(x);
  __syncthreads();
  quantize_across<F8>(memory.across, x, tile, dgate_up);
  memory.dup.take(x);
  tile.of.columns.origin = ffn + column;
  quantize_across<F8>(memory.across, x, tile, dgate_up);
  memory.h.take(x);
  tile.of.columns.origin = column;
  quantize_across<F8E4M3>(memory.across, x, tile, h);
}

/// call(gate constant, width constant)
template <class Call>
void for_gate(GluGate gate, bool aligned, const Call& call) {
  const auto of_gate = [&](auto width) {
    if (gate == GluGate::kSilu)
      return call(std::integral_constant<GluGate, GluGate::kSilu>(), width);
    call(std::integral_constant<GluGate, GluGate::kGelu>(), width);
  };
  aligned ? of_gate(Width<kOwn>()) : of_gate(Width<1>());
}

void forward(const WeightedGluForwardCodesArgs& args) {
  const WeightedGluRows& rows = args.rows;
  for_gate(rows.gate, aligned_to_16(rows.gate_up, args.h.codes), [&](auto gate, auto width) {
    launch(forward_codes_kernel<decltype(gate)::value, decltype(width)::value>,
           config_of_shares(args.exec, rows.rows_max, args.h.width, kWarpColumns * kForwardTurns,
                            "weighted_glu_forward_codes"),
           args);
  });
}

void backward(const WeightedGluBackwardCodesArgs& args) {
  const WeightedGluRows& rows = args.rows;
  const bool aligned = aligned_to_16(rows.gate_up, args.dh, args.dgate_up.codes);
  for_gate(rows.gate, aligned, [&](auto gate, auto width) {
    for_format(args.format, [&](auto f8) {
      using F8 = decltype(f8);
      constexpr GluGate kGate = decltype(gate)::value;
      launch(backward_codes_kernel<kGate, F8, decltype(width)::value>,
             {.grid = static_cast<unsigned>(blocks_for(rows.rows_max, kWarps)),
              .block = kThreads,
              .stream = stream_of(args.exec),
              .name = "weighted_glu_backward_codes"},
             args);
      launch(
          backward_across_kernel<kGate, F8, decltype(width)::value == kOwn>,
          config_of_segments(args.exec, rows.rows_max, args.segments, blocks_for(rows.ffn, kSide),
                             sizeof(BackwardAcrossMemory), "weighted_glu_backward_codes"),
          args);
    });
  });
}

}  // namespace

const WeightedGluCodesGpuKernels weighted_glu_codes_cuda = {forward, backward};

}  // namespace trireme::cuda
