#pragma once
// kernels/update/moment_codes.h read like its header: an element after the other.

#include <cstdint>
#include <vector>

namespace trireme::reference {

/// In order of their codes.
const std::vector<float>& moment_map(bool of_signed);

struct Moments {
  std::vector<double> codes, absmax;
};
Moments encode_moments(const std::vector<double>& x, bool of_signed);
/// In f32.
std::vector<double> decode_moments(const Moments& from, bool of_signed);

}  // namespace trireme::reference
