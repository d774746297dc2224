#pragma once
// What this machine does at most, as the ruler for what a step or an op reaches.

#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "device/context.h"

namespace trireme {

/// A copy that reads and writes `bytes` in all, repeated: the rate of a cache of that size.
struct CopyRate {
  std::int64_t bytes = 0;
  double bytes_per_second = 0;
};

struct MachineRates {
  /// An fp32 product of 2048 x 2048 matrices, on a CPU by ours or oneDNN, if faster; 0 = not known.
  double sgemm_flops_per_second = 0;
  double bf16_flops_per_second = 0;  ///< the same in bf16; 0 = not measured
  double fp8_flops_per_second = 0;   ///< on a GPU of e4m3 with one scale each; 0 = not measured
  std::vector<CopyRate> copies;      ///< ascending sizes; the last is larger than the caches

  [[nodiscard]] bool known() const { return sgemm_flops_per_second > 0; }
  /// Of products of this type; a CPU multiplies the values of fp8 operands in fp32.
  [[nodiscard]] double flops_per_second(DType type) const;
  /// Of a copy that moves so many bytes: between two sizes by a line over their logarithm.
  [[nodiscard]] double copy_bytes_per_second(double bytes) const;
  [[nodiscard]] double memory_bytes_per_second() const { return copies.back().bytes_per_second; }
  [[nodiscard]] double cache_bytes_per_second() const;  ///< the best of all sizes

  /// Of this rank and another that ran at the same time, with equal sizes.
  void add(const MachineRates& other);
};

/// Bytes of a copy that no cache holds: four times the last one, from 128 MiB to 1 GiB.
std::int64_t copy_bytes_beyond_cache();

struct RateRequest {
  bool bf16 = false, fp8 = false;
  std::int64_t largest_copy = 0;
  /// Called before each repetition, so that all ranks of a machine work at once.
  std::function<void()> together = [] {};
};
/// The best of a few repetitions of each, with all threads of the context; one to three seconds and
/// `largest_copy` + 48 MiB of memory, which are given back. Collective through `together`.
MachineRates measure_rates(Context& context, const RateRequest& request);

}  // namespace trireme
