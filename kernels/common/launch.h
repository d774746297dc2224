#pragma once

#include <cstddef>

namespace trireme::cuda {

/// What could not be launched, in words that need no CUDA header.
struct LaunchFailure {
  const char* name;
  unsigned grid[3], threads;
  std::size_t smem_bytes;
  const char *text, *error;
};
[[noreturn]] void fail_launch(const LaunchFailure& failure);

}  // namespace trireme::cuda
