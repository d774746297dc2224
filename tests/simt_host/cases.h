#pragma once
// Kernels with one fault each, and the same kernels without it.

#include <cuda_bf16.h>

#include <span>

#include "kernels/simt_host/runtime.h"

namespace trireme::simt_cases {

/// Device memory, initialised but for `unset`.
struct Buffers {
  static constexpr int kFloats = 256, kSide = 64;
  float *out, *in, *unset;    ///< kFloats each
  __nv_bfloat16 *a, *b, *to;  ///< kSide x kSide each
  float* host;                ///< kFloats in memory of the host
  float* freed;
};

struct Case {
  const char* name;
  simt::FaultKind kind;
  /// Launches the kernel, with the fault or without. The fault's report names the line that ends in
  /// "// fault: NAME", where there is one.
  void (*run)(bool faulty, const Buffers&);
  /// What may be found instead in other orders: a thread may come to a byte before the copy into it
  /// was even asked for.
  simt::FaultKind other = kind;
};

std::span<const Case> memory_cases();
std::span<const Case> barrier_cases();
std::span<const Case> async_cases();
std::span<const Case> hopper_cases();
std::span<const Case> cluster_cases();
std::span<const Case> turn_cases();

}  // namespace trireme::simt_cases
