#include "model/decoder.h"

#include <algorithm>
#include <numeric>

#include "kernels/gemm/gemm.h"
#include "model/walk.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

const ChunkParams& only_chunk(const ModelParams& params) {
  expect(params.chunks.size() == 1 && !params.chunks.front().blocks.empty(),
         "a decoder of {} chunks", params.chunks.size());
  return params.chunks.front();
}

/// Of the keys of one layer, and of its values.
Shape cache_shape(const ModelConfig& local, std::int64_t capacity) {
  return {capacity, local.layer(0).attention.kv_size()};
}

}  // namespace

Decoder::Decoder(Context& context, const ModelConfig& config, const ModelParams& params,
                 const ParamStore& store, const DecoderShape& shape, DecoderMesh peers)
    : context_(context),
      config_(config),
      local_(config_of_rank(config, peers.tensor.rank())),
      chunk_(only_chunk(params)),
      store_(store),
      tensor_(peers.tensor),
      vocabulary_(vocabulary_part(config.vocab_size, tensor_.rank())),
      shape_{shape.capacity, std::min(shape.chunk, shape.capacity)},
      ropes_(context, config, shape.capacity),
      positions_(DType::kI32, {shape.capacity}, context.device()),
      ids_(DType::kI32, {shape_.chunk}, context.device()),
      reads_(blocks_read(params, chunk_, ActionKind::kForward)),
      executor_(peers.pass, *this, peers.links) {
  const Shape cache = cache_shape(local_, shape.capacity);
  for (std::size_t layer = 0; layer < chunk_.blocks.size(); ++layer) {
    k_.emplace_back(store.compute(), cache, context.device());
    v_.emplace_back(store.compute(), cache, context.device());
    caches_.push_back({k_.back().view(), v_.back().view()});
  }
  std::vector<std::int32_t> positions(static_cast<std::size_t>(shape.capacity));
  std::iota(positions.begin(), positions.end(), 0);
  copy_in(context, positions_.view(), std::as_bytes(std::span(positions)));
  if (!chunk_.range.head) return;
  const Shape row{1, config.hidden}, one{1};
  final_n_ = Buffer(store.compute(), row, context.device());
  final_s_ = Buffer(store.compute(), row, context.device());
  if (config.norm.kind == NormKind::kLayer)
    final_mean_ = Buffer(DType::kF32, one, context.device());
  final_rstd_ = Buffer(DType::kF32, one, context.device());
  const std::int64_t ranks = tensor_.extent(), widest = ceil_div(config.vocab_size, ranks);
  logits_parts_ = Buffer(DType::kF32, {ranks, widest}, context.device());
  host_parts_.resize(static_cast<std::size_t>(ranks * widest));
  host_logits_.resize(static_cast<std::size_t>(config.vocab_size));
}

std::int64_t Decoder::cache_bytes(const ModelConfig& local, std::int64_t layers,
                                  std::int64_t capacity, DType compute) {
  return 2 * layers * cache_shape(local, capacity).count() *
         static_cast<std::int64_t>(size_of(compute));
}

std::span<const float> Decoder::feed(std::span<const std::int32_t> ids) {
  expect(!ids.empty() && length_ + static_cast<std::int64_t>(ids.size()) <= shape_.capacity,
         "{} tokens fed to a decoder of {} that holds {}", ids.size(), shape_.capacity, length_);
  while (!ids.empty()) {
    const auto count = std::min(ids.size(), static_cast<std::size_t>(shape_.chunk));
    wants_logits_ = count == ids.size();
    begin_chunk(ids.first(count));
    executor_.run(trace_);
    length_ += static_cast<std::int64_t>(count);
    ids = ids.subspan(count);
  }
  if (!chunk_.range.head) return {};
  read_logits();
  return host_logits_;
}

Decoder::Buffers Decoder::lay_out(ArenaCursor& arena, std::int64_t tokens) const {
  LayerShape shape{local_.layer(0), local_.hidden};
  shape.tokens = shape.residual_tokens = tokens;
  shape.compute = store_.compute();
  Buffers buffers;
  for (BlockActivations& acts : buffers.acts)
    acts = lay_out_activations(arena, shape, Keep::kEachLayer);
  buffers.scratch = lay_out_forward_scratch(arena, shape);
  if (!chunk_.range.head) buffers.out_SC = arena.take(shape.compute, {tokens, config_.hidden});
  return buffers;
}

/// Laid out for just these tokens, which are one after the prompt.
void Decoder::begin_chunk(std::span<const std::int32_t> ids) {
  const auto tokens = static_cast<std::int64_t>(ids.size());
  if (tokens != tokens_) {
    ArenaCursor measure;
    lay_out(measure, tokens);
    memory_ = {};
    memory_ = Memory(context_.device(), measure.bytes());
    ArenaCursor arena(memory_.data());
    buffers_ = lay_out(arena, tokens);
    tokens_ = tokens;
  }
  if (chunk_.range.embedding) copy_in(context_, ids_.view().rows(0, tokens), std::as_bytes(ids));
}

void Decoder::forward(int /*chunk*/, int /*micro_batch*/) {
  PositionRange range{length_, tokens_};
  AttentionMask mask;
  mask.q = {&range, 1};
  const ConstTensorView positions = positions_.view().rows(length_, tokens_);
  const ModelPass pass{context_, local_, tensor_, context_axis_, ropes_, positions, mask};
  const bool head = chunk_.range.head && wants_logits_;
  // A gather must not be under way when nobody comes for it.
  const std::size_t unread = chunk_.range.head && !head ? 2 : 0;
  WeightReader weights(store_, std::span(reads_).first(reads_.size() - unread));
  if (chunk_.range.embedding) {
    const ParamStore::Lease lease = weights.next();
    embed_tokens(context_, tensor_, lease, chunk_,
                 {ids_.view().rows(0, tokens_), positions, vocabulary_, config_.vocab_size},
                 {buffers_.acts[0].attention.norm.s_TC, buffers_.scratch.branch_TC});
  }
  const ConstTensorView stream =
      forward_layers(pass, weights, chunk_, buffers_.acts, buffers_.scratch, caches_);
  if (!chunk_.range.head) {
    leave_part(context_, buffers_.out_SC, buffers_.scratch.branch_TC, stream);
  } else if (head) {
    run_head(pass, weights, stream);
  }
  context_.synchronize();  // before the range goes, and maybe the buffers
}

void Decoder::run_head(const ModelPass& pass, WeightReader& weights, ConstTensorView residual_TC) {
  const ParamStore::Lease norm = weights.next();
  final_norm_forward(pass, weights_of(norm, chunk_.final_norm),
                     {final_s_.view(), final_mean_.view(), final_rstd_.view()}, final_n_.view(),
                     buffers_.scratch.branch_TC.rows(tokens_ - 1, 1),
                     residual_TC.rows(tokens_ - 1, 1));
  Gemm product;
  product.c_MN = logits_parts_.view().rows(tensor_.rank().index, 1);
  product.c_MN.shape.set(1, vocabulary_.valid);
  product.a = final_n_.view();
  const ParamStore::Lease head = weights.next();
  product.b = head.weight(chunk_.head);
  product.transpose_b = Transpose::kYes;
  gemm(context_, product);
  tensor_.gather_parts(logits_parts_.view());
}

void Decoder::read_logits() {
  copy_out(context_, std::as_writable_bytes(std::span(host_parts_)), logits_parts_.view());
  const std::int64_t widest = logits_parts_.view().shape[1];
  for (int rank = 0; rank < tensor_.extent(); ++rank) {
    const VocabularyPart part = vocabulary_part(config_.vocab_size, {tensor_.extent(), rank});
    std::copy_n(host_parts_.begin() + rank * widest, part.valid, host_logits_.begin() + part.first);
  }
}

TensorView Decoder::boundary(int /*chunk*/, int /*micro_batch*/, Boundary which) {
  if (which == Boundary::kInput) return buffers_.acts[0].attention.norm.s_TC;
  expect(which == Boundary::kOutput, "a gradient in a decoder");
  return buffers_.out_SC;
}

int Decoder::slots(int /*chunk*/) const { return 1; }

void Decoder::copy(TensorView to, TensorView from) {
  copy_bytes(context_, to.data, from.data, from.bytes());
}

}  // namespace trireme
