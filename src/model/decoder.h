#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "base/trace.h"
#include "device/memory.h"
#include "model/head.h"
#include "model/page_table.h"
#include "model/walk.h"
#include "pipeline/executor.h"
#include "tensor/buffer.h"

namespace trireme {

/// What a decoder has room for.
struct DecoderShape {
  std::int64_t length = 1;     ///< tokens of a sequence, at most
  std::int64_t sequences = 1;  ///< at once
  std::int64_t pages = 0;      ///< of kAttentionPage tokens, of all; 0: as many as they can fill
  std::int64_t rows = 256;     ///< tokens that go through the layers at once

  [[nodiscard]] std::int64_t pages_of_all() const {
    return pages > 0 ? pages : sequences * PageTable::pages_of(length);
  }
  /// Of a sequence's ring in a layer that sees a window; 0: no ring, which would be no shorter.
  [[nodiscard]] std::int64_t pages_of_ring(const AttentionConfig& attention) const {
    if (attention.window == 0) return 0;
    const std::int64_t ring = PageRing::pages_of(attention.window, rows);
    return ring < PageTable::pages_of(length) ? ring : 0;
  }
  /// That a layer keeps, of all sequences.
  [[nodiscard]] std::int64_t pages_of_layer(const AttentionConfig& attention) const {
    const std::int64_t ring = pages_of_ring(attention);
    return ring > 0 ? sequences * ring : pages_of_all();
  }
};

/// Where a decoder meets those that have the rest of the model; alone by default.
struct DecoderMesh {
  TensorAxis tensor;
  ExpertAxis expert = {};
  /// Of a forward pass through all stages what is done here; at first the forward of one stage.
  std::vector<ProgramStep> pass = std::vector<ProgramStep>(1);
  StageLinks* links = nullptr;
  /// Of each layer of the model; none: neighbours together.
  std::vector<ExpertPlaces> places = {};
};

/// Runs a model over sequences that grow, keys and values of earlier tokens kept in a cache: the
/// layers of the one chunk of `params`, and of these the heads and columns of this tensor-parallel
/// rank. Those that have the rest feed the same tokens.
///
/// A sequence has the same bits alone and among others. Tokens of several go through the layers
/// together, by products and an attention that see each row alone; a part of kAlone tokens or more
/// (a prompt's) goes by itself, by the ops of training, in a shape that is its own.
class Decoder final : private ForwardProgram {
 public:
  static constexpr std::size_t kAlone = 128;
  /// Tokens behind those that the sequence has.
  struct Part {
    int sequence = 0;
    std::span<const std::int32_t> ids;
    bool wants_logits = true;  ///< behind the last of them
  };

  /// References must outlive the decoder.
  Decoder(Context& context, const ModelConfig& config, const ModelParams& params,
          const ParamStore& store, const DecoderShape& shape, DecoderMesh peers = {});
  /// Up to shape.rows tokens, a sequence once: parts shorter than kAlone, or one part.
  void feed(std::span<const Part> parts);
  /// Of the i-th part that wanted them, of the whole vocabulary; nothing where the head is not
  /// here.
  [[nodiscard]] std::span<const float> logits(std::size_t i) const;
  [[nodiscard]] const DecoderShape& shape() const { return shape_; }
  [[nodiscard]] std::int64_t length(int sequence) const { return pages_.length(sequence); }
  [[nodiscard]] std::int64_t free_pages() const { return pages_.free_pages(); }
  /// Its tokens are forgotten; the next begin a sequence.
  void end(int sequence) { pages_.end(sequence); }
  /// Where it stands.
  [[nodiscard]] Trace& trace() { return trace_; }
  /// Of keys and values of the layers of `range`; `local` is this rank's.
  [[nodiscard]] static std::int64_t cache_bytes(const ModelConfig& local, const ChunkRange& range,
                                                const DecoderShape& shape, DType compute);

 private:
  struct Buffers {  // memory of the tokens of a pass: two layers' activations in turns
    std::array<BlockActivations, 2> acts;
    BlockForwardScratch scratch;
    ExpertsScratch experts;
    AdapterScratch adapters;
    HeadAdapter head_adapter;
    LatentDecoding latent;
    TensorView out_SC;  // for the stage behind
  };
  /// Of a pass's tokens, those that want logits last.
  struct Tokens {
    std::vector<std::int32_t> ids, positions, sequences;
  };
  /// Where some layers keep the tokens of sequences.
  struct Places {
    std::int64_t pages_of_ring = 0;
    std::optional<PageRing> ring;  ///< none: in the pages of `pages_`
    Buffer rows, table;
  };
  [[nodiscard]] LayerShape layer_shape(std::int64_t tokens) const;
  Buffers lay_out(ArenaCursor& arena, std::int64_t tokens) const;
  void begin_pass(std::span<const Part> parts);
  void run_head(const ModelPass& pass, WeightReader& weights, ConstTensorView residual_TC);
  void read_logits();
  [[nodiscard]] CachedTokens cached_tokens(const Places& places) const;
  /// Those of a layer, made where no layer before it has them.
  std::size_t places_of(const AttentionConfig& attention);
  /// The first `count` rows of a buffer of one column.
  [[nodiscard]] TensorView first(Buffer& buffer) const { return buffer.view().rows(0, tokens_); }

  void forward(int chunk, int micro_batch) override;
  [[nodiscard]] TensorView boundary(int chunk, int micro_batch, Boundary which) override;
  [[nodiscard]] int slot(int chunk, int micro_batch) const override;
  void copy(TensorView to, TensorView from) override;

  Context& context_;
  const ModelConfig& config_;
  const ModelConfig local_;  // of this tensor-parallel rank
  const LayerConfig largest_;
  const ChunkParams& chunk_;
  const ParamStore& store_;
  const TensorAxis tensor_;
  const ExpertAxis expert_;
  const std::vector<ExpertPlaces> places_of_experts_;
  const VocabularyPart vocabulary_;
  ContextAxis context_axis_;
  const DecoderShape shape_;
  PageTable pages_;
  const RopeTables ropes_;
  Buffer ids_, positions_, sequences_;
  std::vector<Places> places_;
  struct LayerCache {
    Buffer k, v;
    std::size_t places;  ///< of places_
  };
  std::vector<LayerCache> caches_;
  Buffer widened_;                // a weight that stands in fp8 or NF4
  Buffer ordered_k_, ordered_v_;  // of one layer and sequence, where a part goes alone
  Memory latent_memory_;
  LatentDecoding latent_;  // likewise
  Memory memory_;
  Buffers buffers_;
  // Of the pass under way.
  Tokens host_;
  std::int64_t tokens_ = 0, wanted_ = 0;
  bool alone_ = false;
  // Where the head is: of the wanted tokens, and the logits of each rank's part of the vocabulary.
  Buffer final_n_, final_s_, final_mean_, final_rstd_, logits_parts_;
  std::vector<float> host_parts_, host_logits_;
  Trace trace_{1};
  const std::vector<int> reads_;  // blocks of weights, in order
  Executor executor_;             // last: it asks the decoder
};

}  // namespace trireme
