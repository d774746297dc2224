#pragma once
// Tensor maps, and the bulk copies that use them.
#include <cstdint>

#include "kernels/ptx_host/decode.h"

namespace trireme::ptx {

/// What this machine keeps in the 128 bytes of a CUtensorMap.
struct TensorMap {
  static constexpr std::uint32_t kMark = 0x54505458;
  std::uint32_t mark = kMark;
  std::uint8_t rank = 0, row_bytes = 16;  // of the swizzle; 16: none
  std::uint8_t nan_fill = 0, type = 0;    // CUtensorMapDataType
  std::uint64_t unused = 0;               // CuTe clears a bit here, of what the driver writes
  std::uint64_t address = 0;
  std::uint64_t strides[4] = {};  // bytes, of dims 1..
  std::uint32_t dims[5] = {}, box[5] = {};
};
static_assert(sizeof(TensorMap) <= 128);

struct ElementType {
  std::uint8_t bytes;
  Type type;
};
/// By its number in CUtensorMapDataType; bytes 0 where it is not known.
ElementType element_type(std::uint8_t type);

/// cp.async.bulk and cp.reduce.async.bulk, behind those words.
void decode_bulk(Decoder& decoder, bool reduces);

}  // namespace trireme::ptx
