#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "parallel/mesh_shape.h"
#include "plan/step_cost.h"

namespace trireme {

/// What one rank has taken and sent, beside what the plan says of it.
struct RankFigures {
  std::int64_t memory_bytes = 0;   ///< by which the process has grown since before the runtime
  std::int64_t code_bytes = 0;     ///< likewise, of programs and libraries: read when first called
  std::int64_t heap_bytes = 0;     ///< of memory_bytes: what libraries have
  std::int64_t scratch_bytes = 0;  ///< of memory_bytes: areas that ops ask for
  /// Not in memory_bytes: of what is planned or scratch, pages that no step has touched.
  std::int64_t untouched_bytes = 0;
  std::int64_t planned_memory_bytes = 0;
  ByAxis sent_bytes, planned_sent_bytes;  ///< in a step
  ByAxis exposed_ns;                      ///< of a step, waiting for other ranks
};

/// What `train benchmark` has measured, ready to be shown.
struct BenchmarkResult {
  std::string model;  ///< family and parameters
  std::string cpu, isa;
  DType compute = DType::kF32;
  std::string precision;               ///< "fp32", "bf16", "fp8"
  int world = 1, threads = 1;          ///< threads of a rank
  std::vector<double> step_seconds;    ///< ascending, at least one
  double tokens = 0, model_flops = 0;  ///< of a step, all ranks
  std::optional<double> peak_flops;    ///< a second, all ranks: as the config says
  std::int64_t memory_bytes = 0;       ///< of the largest rank
  std::vector<RankFigures> ranks;
  StepCost cost;
  MachineRates rates;  ///< of all ranks together

  [[nodiscard]] double median_seconds() const { return step_seconds[step_seconds.size() / 2]; }
  [[nodiscard]] double mean_seconds() const;
  /// The model's arithmetic as a part of what the machine's products reach; none if not measured.
  [[nodiscard]] std::optional<double> of_product_rate() const;
};

/// Rates and seconds are of all ranks together and of a mean rank.
Json benchmark_json(const BenchmarkResult& result);

/// At most 100 columns, with a line feed at the end.
std::string benchmark_text(const BenchmarkResult& result);

}  // namespace trireme
