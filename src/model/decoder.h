#pragma once

#include <span>
#include <vector>

#include "model/block.h"
#include "tensor/buffer.h"

namespace trireme {

/// Runs a model token by token for generation, keys and values of earlier tokens kept in a cache.
class Decoder {
 public:
  /// Up to `capacity` tokens in all, fed up to `chunk` at a time. References must outlive the
  /// decoder.
  Decoder(Context& context, const ModelConfig& config, const ModelParams& params,
          const ParamStore& store, std::int64_t capacity, std::int64_t chunk);
  /// Appends tokens (any number up to the free capacity) and returns the logits behind the last of
  /// them.
  std::span<const float> feed(std::span<const std::int32_t> ids);
  [[nodiscard]] std::int64_t length() const { return length_; }

 private:
  void feed_chunk(std::span<const std::int32_t> ids);

  Context& context_;
  const ModelConfig& config_;
  const ModelParams& params_;
  const ParamStore& store_;
  const TensorAxis tensor_;  // alone
  ContextAxis context_axis_;
  std::int64_t capacity_, chunk_, length_ = 0;
  Buffer rope_table_, logits_, positions_, ids_, final_n_, final_s_, final_mean_, final_rstd_;
  std::vector<Buffer> k_, v_;
  std::vector<float> host_logits_;
};

}  // namespace trireme
