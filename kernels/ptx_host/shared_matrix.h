#pragma once
// How tiles lie in shared memory: swizzles, and the descriptors of wgmma operands (PTX ISA 9.7.16.5
// and 5.5.7).
#include <cstdint>

namespace trireme::ptx {

/// Chunks of 16 bytes change places within a row by the row's number: of 8 rows of 128, of 64, of
/// 32 bytes, the address' bits 7.. are added modulo 2 to its bits 4..
constexpr std::uint32_t swizzled(std::uint32_t address, std::uint32_t row_bytes) {
  const std::uint32_t mask = row_bytes < 32 ? 0 : row_bytes / 16 - 1;
  return address ^ ((address >> 7 & mask) << 4);
}

/// A wgmma operand: MN is the row of A or the column of B.
struct SharedMatrix {
  std::uint32_t start = 0, leading = 0, stride = 0, base_offset = 0;  // bytes
  std::uint32_t row_bytes = 16;                                       // of its swizzle; 16: none
  static SharedMatrix of(std::uint64_t descriptor);
  /// Bytes from shared address 0 of element (mn, k) of `size` bytes.
  std::uint32_t address(std::uint32_t mn, std::uint32_t k, std::uint32_t size, bool mn_major) const;
};

}  // namespace trireme::ptx
