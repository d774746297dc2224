#pragma once

#include <vector>

#include "device/context.h"
#include "parallel/state.h"

namespace trireme {

/// A state whose tensors stand in host memory, for who reads and writes files: the tensors
/// themselves on the CPU, copies of a GPU's.
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
  Context& context_;
  State host_;
  struct Copy {
    std::byte *device, *host;
    std::size_t bytes;
  };
  std::vector<Copy> copies_;  // of all tensors that were given; empty on the CPU
  HostBuffer memory_;
};

}  // namespace trireme
