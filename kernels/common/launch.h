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
/// The same for a copy or a memset that op `name` asked the runtime for.
[[noreturn]] void fail_call(const char* name, const char* text, const char* error);

}  // namespace trireme::cuda
