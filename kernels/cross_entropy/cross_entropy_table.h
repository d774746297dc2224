#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// Rows of `columns` logits, the first `valid` of entries vocabulary_first, + 1, ...
struct CrossEntropyRows {
  std::int64_t tokens, columns, valid, vocabulary_first;
};

struct CrossEntropyStatisticsArgs {
  Exec exec;
  CrossEntropyRows rows;
  float *maximum, *sum, *target_logit;
  const void* logits;
  const std::int32_t* targets;
  DType logits_type;
};

/// parts is [part_count][3][tokens].
struct CrossEntropyMergeArgs {
  Exec exec;
  std::int64_t tokens, part_count;
  float *maximum, *sum, *target_logit;
  const float* parts;
};

struct CrossEntropyLossArgs {
  Exec exec;
  std::int64_t tokens;
  float *loss, *square;  ///< square: may be nullptr, or target_logit
  const float *maximum, *sum, *target_logit;
  const std::int32_t* targets;
};

struct CrossEntropyGradientArgs {
  Exec exec;
  CrossEntropyRows rows;
  void* dlogits;
  const void* logits;
  const float *maximum, *sum;
  const std::int32_t* targets;
  const float* scale;
  float z_loss;
  DType dlogits_type, logits_type;  ///< bf16 logits have a bf16 gradient
};

struct CrossEntropyKernels {
  void (*statistics)(const CrossEntropyStatisticsArgs&);
  void (*merge)(const CrossEntropyMergeArgs&);
  void (*loss)(const CrossEntropyLossArgs&);
  void (*gradient)(const CrossEntropyGradientArgs&);
};
TRIREME_CPU_TABLES(CrossEntropyKernels, cross_entropy_cpu);
namespace cuda {
extern const CrossEntropyKernels cross_entropy_cuda;
}

}  // namespace trireme
