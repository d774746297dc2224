#pragma once

#include <cstdint>

namespace trireme {

/// Bytes of the host's memory, cut to the cgroup's limit, that nobody uses now; what files keep in
/// memory counts as free.
std::int64_t memory_bytes_free();

}  // namespace trireme
