#include "kernels/ptx_host/shared_matrix.h"

namespace trireme::ptx {

SharedMatrix SharedMatrix::of(std::uint64_t descriptor) {
  constexpr std::uint32_t kSwizzles[] = {16, 128, 64, 32};
  const auto field = [&](int from) { return std::uint32_t(descriptor >> from & 0x3fff) << 4; };
  SharedMatrix matrix;
  matrix.start = field(0);
  matrix.leading = field(16);
  matrix.stride = field(32);
  matrix.base_offset = std::uint32_t(descriptor >> 49 & 7);
  matrix.row_bytes = kSwizzles[descriptor >> 62];
  return matrix;
}

std::uint32_t SharedMatrix::address(std::uint32_t mn, std::uint32_t k, std::uint32_t size,
                                    bool mn_major) const {
  std::uint32_t offset = 0;
  if (!mn_major) {
    // Groups of 8 rows; a row of the swizzle's width, or chunks of 16 bytes side by side.
    const std::uint32_t byte = k * size;
    offset = mn / 8 * stride + mn % 8 * row_bytes;
    offset += row_bytes == 16 ? byte / 16 * leading + byte % 16 : byte;
  } else {
    // Rows run along MN: 8 of them, one for each k; the next 8 k and the next row's width of MN
    // elsewhere.
    const std::uint32_t width = row_bytes / size;
    const bool plain = row_bytes == 16;
    offset = mn % width * size + k % 8 * row_bytes;
    offset += mn / width * (plain ? stride : leading) + k / 8 * (plain ? leading : stride);
  }
  return swizzled(start + offset, row_bytes);
}

}  // namespace trireme::ptx
