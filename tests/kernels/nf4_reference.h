#pragma once
// kernels/nf4 read like its header: an element after the other.

#include <cstdint>
#include <vector>

namespace trireme::reference {

struct Nf4 {
  std::vector<double> codes, absmax;  ///< bytes; magnitudes
};
Nf4 nf4_quantize(const std::vector<double>& x);

/// In f32.
std::vector<double> nf4_dequantize(const Nf4& from, std::size_t count);

/// The level of a code.
float nf4_level(int code);

}  // namespace trireme::reference
