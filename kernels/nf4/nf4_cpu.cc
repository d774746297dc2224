#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/nf4/nf4_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kBlock = 64;

TRIREME_INLINE std::int64_t block_size(std::int64_t count, std::int64_t block) {
  const std::int64_t left = count - block * kBlock;
  return left < kBlock ? left : kBlock;
}

TRIREME_INLINE float absmax_of(const float* x, std::int64_t count) {
  F32 most = F32::zero();
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    most = max_bits(most, abs(F32::load(x + i, lanes)));  // lanes that a tail leaves out are 0
  });
  const std::int32_t bits = reduce_max_bits(most);
  float absmax;
  __builtin_memcpy(&absmax, &bits, sizeof absmax);
  return absmax;
}

/// Codes, as floats, of what `scaled` makes of x.
template <class Scaled>
TRIREME_INLINE void find_codes(float* codes, const float* x, std::int64_t count,
                               const Scaled& scaled) {
  const F32 one = F32::broadcast(1.0F);
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    const F32 v = scaled(F32::load(x + i, lanes));
    F32 code = F32::broadcast(15.0F);
    for (const float midpoint : kNf4Levels.midpoint)
      code = code - select(v <= F32::broadcast(midpoint), one, F32::zero());
    code.store(codes + i, lanes);
  });
}

void quantize_block(const Nf4QuantizeArgs& args, std::int64_t block) {
  const float* x = args.x + block * kBlock;
  const std::int64_t count = block_size(args.count, block);
  const float absmax = absmax_of(x, count), most = absmax < kNf4Least ? kNf4Least : absmax;
  alignas(64) float codes[kBlock];
  if (count == kBlock) {
    const F32 factor = F32::broadcast(1.0F / most);
    find_codes(codes, x, count, [factor](F32 value) { return value * factor; });
    args.absmax[block] = absmax;
  } else {
    for (float& code : codes) code = kNf4ZeroCode;
    const F32 divisor = F32::broadcast(most);
    find_codes(codes, x, count, [divisor](F32 value) { return value / divisor; });
    args.absmax[block] = most;
  }
  std::uint8_t* out = args.codes + block * kBlock / 2;
  for (std::int64_t i = 0; 2 * i < count; ++i) {
    const int high = static_cast<int>(codes[2 * i]), low = static_cast<int>(codes[2 * i + 1]);
    out[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
}

void quantize(const Nf4QuantizeArgs& args) {
  parallel_ranges(args.exec, (args.count + kBlock - 1) / kBlock, kBlock,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t block = first; block < last; ++block)
                      quantize_block(args, block);
                  });
}

template <class T>
void dequantize_of(const Nf4DequantizeArgs& args) {
  parallel_ranges(args.exec, (args.count + kBlock - 1) / kBlock, kBlock,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t block = first; block < last; ++block) {
                      T* x = static_cast<T*>(args.x) + block * kBlock;
                      const std::uint8_t* codes = args.codes + block * kBlock / 2;
                      const F32 absmax = F32::broadcast(args.absmax[block]);
                      for_each_vector(
                          0, block_size(args.count, block), [&](std::int64_t i, auto lanes) {
                            (look_up(kNf4Levels.level, half_bytes(codes + i / 2, lanes)) * absmax)
                                .store(x + i, lanes);
                          });
                    }
                  });
}

void dequantize(const Nf4DequantizeArgs& args) {
  if (args.x_type == DType::kF32) return dequantize_of<float>(args);
  dequantize_of<BFloat16>(args);
}

}  // namespace

const Nf4Kernels nf4_cpu = {quantize, dequantize};

}  // namespace trireme::TRIREME_ISA
