#pragma once
// What a run needs per rank, known before any memory exists: the sizes come from the functions that
// allocate, so that the figure and the allocation cannot differ.

#include <cstdint>

#include "config/model_config.h"
#include "model/stage.h"
#include "plan/resolve.h"

namespace trireme {

/// Bytes of one rank.
struct RankMemory {
  std::int64_t parameters = 0;  ///< fp32 values and, in bf16, their rounded forms
  std::int64_t gradients = 0;   ///< fp32, two accumulators of a tied weight
  std::int64_t optimizer = 0;   ///< two moments
  std::int64_t activations =
      0;  ///< of the micro-batches in flight, with gradients of activations and logits
  std::int64_t buffers = 0;  ///< token batches of the loader (two steps) and rotary tables
  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + activations + buffers;
  }
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

RankMemory estimate_memory(const ModelConfig& model, const ResolvedBatch& batch,
                           std::int64_t sequence_length, DType compute, StagePurpose purpose);

/// Payload of one checkpoint: every parameter in fp32 with its two moments, stored once.
std::int64_t checkpoint_bytes(const ModelConfig& model);

/// Bytes that one rank sends in a step to sum the gradients over its data ranks: (d-1)/d of them as
/// pieces to their owners and as much again as sums (reduce-scatter and all-gather).
std::int64_t gradient_traffic_bytes(const ModelConfig& model, std::int64_t data_ranks);

}  // namespace trireme
