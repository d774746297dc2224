#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/trace.h"
#include "device/memory.h"
#include "model/head.h"
#include "model/walk.h"
#include "pipeline/executor.h"
#include "tensor/buffer.h"

namespace trireme {

/// Of one sequence: tokens in all, and those that go through the layers at once.
struct DecoderShape {
  std::int64_t capacity = 1, chunk = 256;
};

/// Where a decoder meets those that have the rest of the model; alone by default.
struct DecoderMesh {
  TensorAxis tensor;
  /// Of a forward pass through all stages what is done here; at first the forward of one stage.
  std::vector<ProgramStep> pass = std::vector<ProgramStep>(1);
  StageLinks* links = nullptr;
};

/// Runs a model token by token for generation, keys and values of earlier tokens kept in a cache:
/// the layers of the one chunk of `params`, and of these the heads and columns of this
/// tensor-parallel rank. Those that have the rest feed the same tokens.
class Decoder final : private ForwardProgram {
 public:
  /// References must outlive the decoder.
  Decoder(Context& context, const ModelConfig& config, const ModelParams& params,
          const ParamStore& store, const DecoderShape& shape, DecoderMesh peers = {});
  /// Appends tokens (any number up to the free capacity) and returns the logits behind the last of
  /// them, of the whole vocabulary; nothing where the head is not here.
  std::span<const float> feed(std::span<const std::int32_t> ids);
  [[nodiscard]] std::int64_t length() const { return length_; }
  /// The next tokens begin a sequence; weights may have changed.
  void restart() { length_ = 0; }
  /// Where it stands.
  [[nodiscard]] Trace& trace() { return trace_; }
  /// Of keys and values of `layers` layers and `capacity` tokens; `local` is this rank's.
  [[nodiscard]] static std::int64_t cache_bytes(const ModelConfig& local, std::int64_t layers,
                                                std::int64_t capacity, DType compute);

 private:
  struct Buffers {  // memory of a chunk of tokens: two layers' activations in turns
    std::array<BlockActivations, 2> acts;
    BlockForwardScratch scratch;
    TensorView out_SC;  // for the stage behind
  };
  Buffers lay_out(ArenaCursor& arena, std::int64_t tokens) const;
  void begin_chunk(std::span<const std::int32_t> ids);
  void run_head(const ModelPass& pass, WeightReader& weights, ConstTensorView residual_TC);
  void read_logits();

  void forward(int chunk, int micro_batch) override;
  [[nodiscard]] TensorView boundary(int chunk, int micro_batch, Boundary which) override;
  [[nodiscard]] int slots(int chunk) const override;
  void copy(TensorView to, TensorView from) override;

  Context& context_;
  const ModelConfig& config_;
  const ModelConfig local_;  // of this tensor-parallel rank
  const ChunkParams& chunk_;
  const ParamStore& store_;
  const TensorAxis tensor_;
  const VocabularyPart vocabulary_;
  ContextAxis context_axis_;
  const DecoderShape shape_;
  std::int64_t length_ = 0;
  const RopeTables ropes_;
  Buffer positions_, ids_;
  std::vector<Buffer> k_, v_;  // of each layer
  std::vector<KvCache> caches_;
  Memory memory_;
  Buffers buffers_;
  std::int64_t tokens_ = 0;  // that the buffers are for
  bool wants_logits_ = false;
  // Where the head is: of the last token, and the logits of each rank's part of the vocabulary.
  Buffer final_n_, final_s_, final_mean_, final_rstd_, logits_parts_;
  std::vector<float> host_parts_, host_logits_;
  Trace trace_{1};
  const std::vector<int> reads_;  // blocks of weights, in order
  Executor executor_;             // last: it asks the decoder
};

}  // namespace trireme
