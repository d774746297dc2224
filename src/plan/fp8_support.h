#pragma once
// Whether a GPU has the products in fp8 that a config asks for: the table of docs/fp8.md.

#include <optional>
#include <string>
#include <string_view>

#include "config/problem.h"
#include "config/run_config.h"
#include "plan/cluster_file.h"

namespace trireme {

struct Fp8Gpu {
  std::string name;
  int capability = 0;  ///< 90 of 9.0
  /// Why it has no products of a recipe, as clauses; "" where it has.
  std::string tensor_missing, block_missing;
  bool experts = true;
};

/// What a GPU of this name can have, whatever its machine and build lack; nothing where the name is
/// not known (device/gpu_peak.h).
std::optional<Fp8Gpu> fp8_gpu(std::string_view name);

/// `is "fp8" by the recipe "block", which L4 (compute capability 8.9) cannot do: why. Set what`, of
/// precision.compute; "" where the GPU can.
std::string fp8_refusal(const Fp8Gpu& gpu, const ModelConfig& model, const Fp8Precision& precision);

/// What a start on the cluster's GPUs would end with (exit 3); nothing where they are not known.
std::optional<Problem> fp8_fault(const RunConfig& config, const Cluster& cluster);

}  // namespace trireme
