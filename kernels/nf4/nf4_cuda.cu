#include "kernels/common/float8.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/nf4/nf4_table.h"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 64, kWarp = 32, kTurns = 4;

struct Pair {
  float even, odd;
};

__device__ __forceinline__ std::uint32_t magnitude_bits(float x) {
  return bits_of(x) & 0x7fffffffU;
}

__device__ __forceinline__ int code_of(const Nf4Levels& levels, float v) {
  int code = 15;
#pragma unroll
  for (int i = 0; i < 15; ++i) code -= v <= levels.midpoint[i] ? 1 : 0;
  return code;
}

/// A warp has a block of 64, a lane two neighbours.
__global__ void __launch_bounds__(kTurnThreads)
    quantize_kernel(const __grid_constant__ Nf4QuantizeArgs args,
                    const __grid_constant__ Nf4Levels levels) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kWarps = kTurnThreads / kWarp;
  const std::int64_t first = std::int64_t{blockIdx.x} * (kTurns * kWarps),
                     blocks = (args.count + kBlock - 1) / kBlock;
  in_turns<kTurns>(
      first + warp, kWarps, min(first + kTurns * kWarps, blocks),
      [&](std::int64_t block) {
        const std::int64_t i = block * kBlock + 2 * lane;
        return Pair{i < args.count ? args.x[i] : 0.0F, i + 1 < args.count ? args.x[i + 1] : 0.0F};
      },
      [&](std::int64_t block, const Pair& x) {
        const std::uint32_t bits = warp_max(max(magnitude_bits(x.even), magnitude_bits(x.odd)));
        const float absmax = float_of_bits(bits), most = absmax < kNf4Least ? kNf4Least : absmax;
        const bool whole = (block + 1) * kBlock <= args.count;
        if (lane == 0) args.absmax[block] = whole ? absmax : most;
        const std::int64_t i = block * kBlock + 2 * lane;
        if (i >= args.count) return;
        const float factor = __fdiv_rn(1.0F, most);
        const int high =
                      code_of(levels, whole ? __fmul_rn(x.even, factor) : __fdiv_rn(x.even, most)),
                  low = code_of(levels, whole ? __fmul_rn(x.odd, factor) : __fdiv_rn(x.odd, most));
        args.codes[i / 2] = static_cast<std::uint8_t>(high << 4 | low);
      });
}

struct Table {
  float level[16];
};

/// An item is kBytes bytes of codes, from byte `from` on.
template <class T, int kBytes>
__global__ void __launch_bounds__(kTurnThreads)
    dequantize_kernel(const __grid_constant__ Nf4DequantizeArgs args,
                      const __grid_constant__ Nf4Levels levels, std::int64_t from,
                      std::int64_t items) {
  auto& table = smem<Table>();
  if (threadIdx.x < 16) table.level[threadIdx.x] = levels.level[threadIdx.x];
  __syncthreads();
  constexpr int kElements = 2 * kBytes;
  struct Item {
    Vector<std::uint8_t, kBytes> codes;
    float absmax;
  };
  for_each_item<kTurns>(
      items,
      [&](std::int64_t item) {
        const std::int64_t byte = from + item * kBytes;
        return Item{load<kBytes>(args.codes + byte), args.absmax[2 * byte / kBlock]};
      },
      [&](std::int64_t item, const Item& in) {
        const std::int64_t first = 2 * from + item * kElements;
        T* x = static_cast<T*>(args.x) + first;
        Vector<T, kElements> out;
#pragma unroll
        for (int k = 0; k < kElements; ++k) {
          const int code = k % 2 == 0 ? in.codes.at[k / 2] >> 4 : in.codes.at[k / 2] & 15;
          out.at[k] = from_float<T>(__fmul_rn(table.level[code], in.absmax));
        }
        if constexpr (kBytes > 1) {
          store(x, out);
        } else {
          x[0] = out.at[0];
          if (first + 1 < args.count) x[1] = out.at[1];
        }
      });
}

void quantize(const Nf4QuantizeArgs& args) {
  const std::int64_t blocks = blocks_for(args.count, kBlock);
  launch(quantize_kernel, config_of_turns(args.exec, kTurns, blocks * kWarp, "nf4_quantize"), args,
         kNf4Levels);
}

template <class T, int kBytes>
void dequantize_items(const Nf4DequantizeArgs& args, std::int64_t from, std::int64_t items) {
  if (items == 0) return;
  LaunchConfig config = config_of_turns(args.exec, kTurns, items, "nf4_dequantize");
  config.smem_bytes = sizeof(Table);
  launch(dequantize_kernel<T, kBytes>, config, args, kNf4Levels, from, items);
}

void dequantize(const Nf4DequantizeArgs& args) {
  for_type(args.x_type, [&](auto type) {
    using T = decltype(type);
    constexpr int kBytes = kWide<T> / 2;  // whose elements are a 16-byte access
    const bool aligned = aligned_to_16(static_cast<const T*>(args.x)) &&
                         reinterpret_cast<std::uintptr_t>(args.codes) % kBytes == 0;
    const std::int64_t wide = aligned ? args.count / kWide<T> : 0;
    dequantize_items<T, kBytes>(args, 0, wide);
    dequantize_items<T, 1>(args, wide * kBytes, blocks_for(args.count, 2) - wide * kBytes);
  });
}

}  // namespace

const Nf4Kernels nf4_cuda = {quantize, dequantize};

}  // namespace trireme::cuda
