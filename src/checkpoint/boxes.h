#pragma once
// Boxes of global tensors as files and ranks hold them: split, divided among replicas, copied
// from one to another. Pure arithmetic; every buffer is row-major over its own box.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/shape.h"

namespace trireme {

/// The box split into boxes of at most `count_max` elements (at least 1). Each is one contiguous
/// run of the box's buffer; they come in the order of that buffer. None where the box is empty.
std::vector<Box> cut_box(const Box& box, std::int64_t count_max);

/// What rank `replica` of the `replicas` that hold `box` writes, so that together they write it
/// once: its rows where each gets at least 64 KiB, else all or nothing, by a hash of the name. A
/// function of this tensor alone: ranks need not agree first.
struct ReplicaShare {
  std::string_view name;
  Box box;
  std::int64_t element_bytes = 4;
  int replica = 0, replicas = 1;
};
Box share_of_replica(const ReplicaShare& share);

/// Where `inner` (inside `outer`) is one contiguous run of outer's buffer: its first element.
std::optional<std::int64_t> contiguous_offset(const Box& outer, const Box& inner);

struct ConstBoxBuffer {
  const std::byte* data = nullptr;
  Box box;
};
struct BoxBuffer {
  std::byte* data = nullptr;
  Box box;
};

/// Copies `common`, which lies inside both boxes. The buffers do not overlap.
void copy_box(const ConstBoxBuffer& from, const BoxBuffer& to, const Box& common,
              std::size_t element_bytes);

/// Whether `inner` lies inside a tensor of shape `outer`; no negative sizes, other ranks, overflow.
bool lies_inside(const Box& inner, const Shape& outer);

/// The whole of a tensor.
Box whole(const Shape& shape);

}  // namespace trireme
