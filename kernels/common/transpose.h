#pragma once

#include <cstdint>

namespace trireme {

enum class Transpose : std::uint8_t { kNo, kYes };

}  // namespace trireme
