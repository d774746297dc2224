#pragma once

#include <vector>

#include "device/context.h"
#include "store/state.h"

namespace trireme {

/// A state whose tensors stand contiguous in host memory, for who reads files: the tensors
/// themselves where they do, else room for what a GPU's and parts of wider rows are given.
///
/// A GPU's bytes go by way of two pieces of pinned memory, one from which they are under way while
/// the other is filled; both are given back when a call ends.
class HostState {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{64} << 20;
  /// The tensors of `state` are on the context's device. `piece_bytes` > 0: the most of each piece.
  HostState(Context& context, State state, std::size_t piece_bytes = kPieceBytes);

  /// A caller may take tensors out of the list or move them in it.
  [[nodiscard]] State& state() { return host_; }
  /// Gives the device what stands in the copies: zeros, where nobody has written.
  void store();

 private:
  struct Copy {
    std::byte *device, *host;
    std::size_t row_bytes, device_stride_bytes;
    std::int64_t rows;
  };

  /// Rows of a tensor or a part of one, and where they stand in a piece of pinned memory.
  struct Part {
    std::byte *host, *device;
    std::size_t device_stride_bytes, offset, row_bytes, rows;
    [[nodiscard]] std::size_t bytes() const { return row_bytes * rows; }
  };
  class Parts;
  void store_by_pieces();
  static void fill(std::byte* piece, const std::vector<Part>& parts);

  Context& context_;
  std::size_t piece_bytes_;
  State host_;
  std::vector<Copy> copies_;  // of all tensors that were given; empty on the CPU
  HostBuffer memory_;
};

}  // namespace trireme
