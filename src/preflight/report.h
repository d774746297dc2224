#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "preflight/findings.h"

namespace trireme {

/// What was measured of a rank; 0: not measured.
struct RankSpeeds {
  std::int64_t rank = 0;
  std::string host, device, cores;
  std::int64_t threads = 1;
  double flops_per_second = 0, copy_bytes_per_second = 0, host_copy_bytes_per_second = 0;
};

struct HostMemory {
  std::string name;
  std::vector<int> ranks;
  std::int64_t memory_bytes = 0, free_memory_bytes = 0;
};

/// Of all ranks, on rank 0; on others the checks alone, without their texts.
struct PreflightReport {
  std::vector<RankSpeeds> ranks;
  std::vector<HostMemory> hosts;
  std::vector<Finding> checks;

  [[nodiscard]] bool ok() const;
  /// "products: rank 2 on b: 41 GFLOP/s (median 85 GFLOP/s); 1 more": why it is not.
  [[nodiscard]] std::string reason() const;
};

/// {ranks, hosts, checks: [{name, status, ranks, found, expected, advice}], ok}
Json preflight_json(const PreflightReport& report);

/// Two tables, and a line for each finding that is not well; above 64 ranks the slowest of each
/// host.
std::string preflight_text(const PreflightReport& report);

/// "412 GFLOP/s", "1.27 GB/s".
std::string flops_text(double flops_per_second);
std::string bandwidth_text(double bytes_per_second);

}  // namespace trireme
