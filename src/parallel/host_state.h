#pragma once

#include <vector>

#include "device/context.h"
#include "parallel/state.h"

namespace trireme {

/// A state whose tensors stand contiguous in host memory, for who reads and writes files: the
/// tensors themselves where they do, copies of a GPU's and of parts of wider rows.
class HostState {
 public:
  /// The tensors of `state` are the context's device's.
  HostState(Context& context, State state);

  /// A caller may take tensors out of the list or move them in it.
  [[nodiscard]] State& state() { return host_; }
  /// Brings the copies up to date.
  void fetch();
  /// Gives the device what stands in the copies: zeros, where nobody has written.
  void store();

 private:
  struct Copy {
    std::byte *device, *host;
    std::size_t row_bytes, device_stride_bytes;
    std::int64_t rows;
  };
  enum class Direction : std::uint8_t { kToHost, kToDevice };
  void copy_all(Direction direction);

  Context& context_;
  State host_;
  std::vector<Copy> copies_;  // of all tensors that were given; empty on the CPU
  HostBuffer memory_;
};

}  // namespace trireme
