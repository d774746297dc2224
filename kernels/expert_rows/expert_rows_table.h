#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"
#include "kernels/glu/glu_gate.h"

namespace trireme {

inline constexpr std::int64_t kExpertsHereMax = 1024, kExpertSlotsMax = 256;

struct ExpertRowsArgs {
  Exec exec;
  std::int32_t *begins, *row_slot, *slot_row;
  const std::int32_t *chosen, *place, *sources;
  std::int64_t tokens, slots, experts_here, source_count;  ///< T, k, G, P
  std::int64_t rows_max;
  std::byte* scratch;
};

/// row_count stands in the device's memory; null: all rows.
struct GatherRowsArgs {
  Exec exec;
  void* rows;
  const void* x;
  const std::int32_t *row_slot, *row_count;
  std::int64_t rows_max, slots, channels;
  DType type;
};

/// addend may be null, or y.
struct CombineRowsArgs {
  Exec exec;
  void* y;
  const void *rows, *addend;
  const std::int32_t* slot_row;
  std::int64_t tokens, slots, channels;
  DType type;
};

/// Whose rows are whose: those of expert g begin at begins[g * sources].
struct RowExperts {
  const std::int32_t* begins = nullptr;
  std::int64_t count = 0, sources = 1;
};

/// Without row_slot and row_count, weights are those of all rows_max rows.
struct WeightedGluRows {
  GluGate gate;
  const void* gate_up;
  const float* weights;
  const std::int32_t *row_slot, *row_count;
  std::int64_t rows_max, ffn;
  DType type;
  const void* bias = nullptr;  ///< given: a clamped unit
  RowExperts experts = {};
  float alpha = 0, limit = 0;
};

struct WeightedGluForwardArgs {
  Exec exec;
  void* h;
  WeightedGluRows rows;
};

struct WeightedGluBackwardArgs {
  Exec exec;
  void* dgate_up;
  float* dweights;
  void* h;
  const void* dh;
  WeightedGluRows rows;
};

/// Weights are read forward, dweights added to backward.
struct ExpertBiasArgs {
  Exec exec;
  void* y;
  const void *dy, *bias;
  float* dweights;
  const float* weights;
  const std::int32_t *row_slot, *row_count;
  RowExperts experts;
  std::int64_t rows_max, channels;
  DType type;
};

/// Without weights all are 1.
struct RowFactorsArgs {
  Exec exec;
  void* factors;
  const float* weights;
  const std::int32_t *row_slot, *row_count;
  std::int64_t rows_max;
  DType type;
};

struct ExpertRowsKernels {
  /// Where there are more rows than rows_max, a CPU stops when `begins` is written.
  void (*rows)(const ExpertRowsArgs&);
  std::size_t (*rows_scratch_bytes)(const ExpertRowsArgs&);
  void (*gather)(const GatherRowsArgs&);
  void (*combine)(const CombineRowsArgs&);
  void (*glu_forward)(const WeightedGluForwardArgs&);
  void (*glu_backward)(const WeightedGluBackwardArgs&);
  void (*bias_forward)(const ExpertBiasArgs&);
  void (*bias_backward)(const ExpertBiasArgs&);
  void (*factors)(const RowFactorsArgs&);
};
TRIREME_CPU_TABLES(ExpertRowsKernels, expert_rows_cpu);
namespace cuda {
extern const ExpertRowsKernels expert_rows_cuda;
}

}  // namespace trireme
