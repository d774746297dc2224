#pragma once
// Memory that NCCL may let other ranks read and write: registered on all ranks of a communicator.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::simt {

struct Window {
  const char* begin;
  std::size_t bytes;
  std::uint64_t number;  ///< 1, 2, ... of its communicator
};

/// Where an operand begins: in which window, and how far from its begin; 0: in none.
inline std::uint64_t place_of(const std::vector<Window*>& windows, const void* operand) {
  const auto* at = static_cast<const char*>(operand);
  for (const Window* window : windows) {
    if (at >= window->begin && at < window->begin + window->bytes)
      return (window->number << 48) + static_cast<std::uint64_t>(at - window->begin);
  }
  return 0;
}
inline std::string text_of_place(std::uint64_t place) {
  if (place == 0) return "in no window";
  return "at byte " + std::to_string(place & ((std::uint64_t{1} << 48) - 1)) + " of window " +
         std::to_string(place >> 48);
}

}  // namespace trireme::simt
