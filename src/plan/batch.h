#pragma once

#include <cstdint>

namespace trireme {

/// global = micro x accumulation x data_ranks.
struct ResolvedBatch {
  std::int64_t global = 1, micro = 1, accumulation = 1, data_ranks = 1;
  friend bool operator==(const ResolvedBatch&, const ResolvedBatch&) = default;
};

}  // namespace trireme
