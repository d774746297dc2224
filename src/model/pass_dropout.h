#pragma once
// Dropout of the model itself (ModelConfig::dropout_key) in a training pass: of rows by
// kernels/dropout, of probabilities by attention. What is dropped is a function of the run's seed,
// the layer, the place in it, the sample and the positions, whoever computes it, and when.

#include "base/random.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Where a layer drops, or what lies before the first, as layer 0.
enum class DropoutPlace : std::uint8_t { kEmbedding, kProbabilities, kAttentionOut, kMlpOut };

struct PassDropout {
  std::uint64_t key = 0;
  ConstTensorView numbers_T2;  ///< MicroBatch::numbers; not given: nothing is dropped
  int tensor_rank = 0;         ///< whose heads are here

  [[nodiscard]] bool given() const { return numbers_T2.given(); }
  [[nodiscard]] std::uint64_t key_of(std::int64_t layer, DropoutPlace place) const {
    const auto words =
        philox(key, static_cast<std::uint64_t>(layer), static_cast<std::uint64_t>(place));
    return std::uint64_t{words[1]} << 32 | words[0];
  }
};

}  // namespace trireme
