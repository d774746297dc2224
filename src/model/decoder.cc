#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/gemm/gemm.h"
#include "model/batch_invariance.h"
#include "model/walk.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

constexpr std::array<std::int32_t, 2> kInTurns = {0, 1};  // of two layers' activations

const ChunkParams& only_chunk(const ModelParams& params) {
  expect(params.chunks.size() == 1 && !params.chunks.front().blocks.empty(),
         "a decoder of {} chunks", params.chunks.size());
  return params.chunks.front();
}

/// What a layer keeps of its tokens: rows of keys, and of values; of latents those rows alone.
struct CacheShapes {
  Shape k, v;
};
CacheShapes cache_shapes(const ModelConfig& local, std::int64_t tokens) {
  const AttentionConfig& attention = local.layer(0).attention;
  if (attention.latent) return {{tokens, attention.latent->cached_size()}, {0, 0}};
  return {{tokens, attention.k_size()}, {tokens, attention.v_size()}};
}

/// Of weights that stand in fp8 or NF4.
std::int64_t widest_coded_weight(const ModelParams& params, const ParamStore& store) {
  std::int64_t most = 0;
  const auto widen = [&](ParamRange range) {
    most = std::max(most, store.layout().fused_shape(range).count());
  };
  for (const BlockParams& block : only_chunk(params).blocks) {
    BlockParams::each_linear(block, [&](const LinearParams& linear) {
      if (linear.fp8 || linear.nf4) widen(linear.weight);
    });
    for (const ExpertLinearParams* experts : {&block.experts.in, &block.experts.out})
      if (experts->fp8) widen(experts->weight);
  }
  return most;
}

}  // namespace

Decoder::Decoder(Context& context, const ModelConfig& config, const ModelParams& params,
                 const ParamStore& store, const DecoderShape& shape, DecoderMesh peers)
    : context_(context),
      config_(config),
      local_(config_of_rank(config, peers.tensor.rank(), peers.expert.cut().tensor)),
      largest_(largest_layer(local_)),
      chunk_(only_chunk(params)),
      store_(store),
      tensor_(peers.tensor),
      expert_(peers.expert),
      places_of_experts_(peers.places.empty() ? expert_places(config, expert_.cut().expert.extent)
                                              : std::move(peers.places)),
      vocabulary_(vocabulary_part(config.vocab_size, tensor_.rank())),
      shape_(shape),
      pages_(shape.sequences, PageTable::pages_of(shape.length), shape.pages_of_all()),
      ropes_(context, config, shape.length),
      ids_(DType::kI32, {shape.rows}, context.device()),
      positions_(DType::kI32, {shape.rows}, context.device()),
      sequences_(DType::kI32, {shape.rows}, context.device()),
      reads_(blocks_read(params, chunk_, ActionKind::kForward)),
      executor_(peers.pass, *this, peers.links) {
  const ChunkRange& range = chunk_.range;
  const auto make = [&](const Shape& of) { return Buffer(store.compute(), of, context.device()); };
  for (std::int64_t layer = range.first_layer; layer < range.first_layer + range.layers; ++layer) {
    const AttentionConfig& attention = local_.layer(layer).attention;
    const CacheShapes cache =
        cache_shapes(local_, shape.pages_of_layer(attention) * kAttentionPage);
    caches_.push_back({make(cache.k), make(cache.v), places_of(attention)});
  }
  if (const std::int64_t widest = widest_coded_weight(params, store); widest > 0)
    widened_ = Buffer(store.compute(), {widest}, context.device());
  const CacheShapes ordered = cache_shapes(local_, shape.length);
  ordered_k_ = make(ordered.k);
  ordered_v_ = make(ordered.v);
  const auto lay_out_latents = [&](ArenaCursor&& arena) {
    latent_ = lay_out_latent_sequence(arena, local_, shape.length, store.compute());
    return arena.bytes();
  };
  latent_memory_ = Memory(context.device(), lay_out_latents(ArenaCursor()));
  lay_out_latents(ArenaCursor(latent_memory_.data()));
  if (!chunk_.range.head) return;
  const Shape rows{shape.sequences, config.hidden}, one{shape.sequences};
  final_n_ = Buffer(store.compute(), rows, context.device());
  final_s_ = Buffer(store.compute(), rows, context.device());
  if (config.norm.kind == NormKind::kLayer)
    final_mean_ = Buffer(DType::kF32, one, context.device());
  final_rstd_ = Buffer(DType::kF32, one, context.device());
  const std::int64_t ranks = tensor_.extent(), widest = ceil_div(config.vocab_size, ranks);
  logits_parts_ = Buffer(DType::kF32, {ranks * shape.sequences * widest}, context.device());
  host_parts_.resize(static_cast<std::size_t>(logits_parts_.view().count()));
  host_logits_.resize(static_cast<std::size_t>(shape.sequences * config.vocab_size));
}

std::size_t Decoder::places_of(const AttentionConfig& attention) {
  const std::int64_t pages = shape_.pages_of_ring(attention);
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (places_[i].pages_of_ring == pages) return i;
  const auto indices = [&](const Shape& shape) {
    return Buffer(DType::kI32, shape, context_.device());
  };
  const std::int64_t each = pages_.pages_each();
  Places places{pages, {}, indices({shape_.rows}), indices({shape_.sequences, each})};
  if (pages > 0) {
    places.ring.emplace(shape_.sequences, each, pages);
    copy_in(context_, places.table.view(), std::as_bytes(places.ring->table()));
  }
  places_.push_back(std::move(places));
  return places_.size() - 1;
}

std::int64_t Decoder::cache_bytes(const ModelConfig& local, const ChunkRange& range,
                                  const DecoderShape& shape, DType compute) {
  std::int64_t tokens = shape.length;  // in order, of one sequence
  for (std::int64_t layer = range.first_layer; layer < range.first_layer + range.layers; ++layer)
    tokens += shape.pages_of_layer(local.layer(layer).attention) * kAttentionPage;
  const CacheShapes shapes = cache_shapes(local, tokens);
  ArenaCursor latents;
  lay_out_latent_sequence(latents, local, shape.length, compute);
  return (shapes.k.count() + shapes.v.count()) * static_cast<std::int64_t>(size_of(compute)) +
         static_cast<std::int64_t>(latents.bytes());
}

void Decoder::feed(std::span<const Part> parts) {
  begin_pass(parts);
  executor_.run(trace_);
  if (chunk_.range.head && wanted_ > 0) read_logits();
}

std::span<const float> Decoder::logits(std::size_t i) const {
  if (!chunk_.range.head) return {};
  expect(i < static_cast<std::size_t>(wanted_), "logits {} of {}", i, wanted_);
  const auto vocabulary = static_cast<std::size_t>(config_.vocab_size);
  return std::span(host_logits_).subspan(i * vocabulary, vocabulary);
}

LayerShape Decoder::layer_shape(std::int64_t tokens) const {
  LayerShape shape{largest_, local_.hidden};
  shape.tokens = shape.residual_tokens = tokens;
  shape.compute = store_.compute();
  shape.tensor_extent = tensor_.extent();
  shape.expert = expert_.cut();
  shape.magnitudes = config_.adapters && config_.adapters->magnitudes;
  return shape;
}

Decoder::Buffers Decoder::lay_out(ArenaCursor& arena, std::int64_t tokens) const {
  const LayerShape shape = layer_shape(tokens);
  Buffers buffers;
  for (BlockActivations& acts : buffers.acts)
    acts = lay_out_activations(arena, shape, Keep::kEachLayer);
  for (BlockActivations& acts : buffers.acts) acts.experts.route = std::make_shared<ExpertRoute>();
  buffers.scratch = lay_out_forward_scratch(arena, shape);
  buffers.experts = lay_out_experts_scratch(arena, shape);
  buffers.adapters = lay_out_adapters(arena, shape, false);
  buffers.latent = lay_out_latent_rows(arena, shape, latent_);
  if (!chunk_.range.head) buffers.out_SC = arena.take(shape.compute, {tokens, config_.hidden});
  if (!chunk_.head_adapter.a.given() || wanted_ == 0) return buffers;
  AdaptedProduct head{wanted_,       config_.hidden, vocabulary_.valid, config_.head_adapter_rank,
                      shape.compute, DType::kF32,    shape.magnitudes};
  head.joined = false;
  buffers.head_adapter = lay_out_head_adapter(arena, head, false);
  return buffers;
}

void Decoder::begin_pass(std::span<const Part> parts) {
  expect(!parts.empty(), "a decoder fed with nothing");
  alone_ = parts.size() == 1 && parts.front().ids.size() >= kAlone;
  host_ = {};
  Tokens wanted;
  for (const Part& part : parts) {
    expect(!part.ids.empty() && (alone_ || part.ids.size() < kAlone),
           "a part of {} tokens among {}", part.ids.size(), parts.size());
    const std::int64_t before = length(part.sequence);
    expect(before + std::ssize(part.ids) <= shape_.length,
           "{} tokens more for a sequence of {}, of {} at most", part.ids.size(), before,
           shape_.length);
    pages_.extend(part.sequence, std::ssize(part.ids));
    for (std::size_t i = 0; i < part.ids.size(); ++i) {
      Tokens& to = part.wants_logits && i + 1 == part.ids.size() ? wanted : host_;
      const std::int64_t position = before + static_cast<std::int64_t>(i);
      to.ids.push_back(part.ids[i]);
      to.positions.push_back(static_cast<std::int32_t>(position));
      to.sequences.push_back(part.sequence);
    }
  }
  wanted_ = std::ssize(wanted.ids);
  for (std::vector<std::int32_t> Tokens::*of :
       {&Tokens::ids, &Tokens::positions, &Tokens::sequences})
    (host_.*of).insert((host_.*of).end(), (wanted.*of).begin(), (wanted.*of).end());
  tokens_ = std::ssize(host_.ids);
  expect(tokens_ <= shape_.rows, "{} tokens in a pass of {}", tokens_, shape_.rows);
  const auto bring = [&](Buffer& to, const std::vector<std::int32_t>& from) {
    copy_in(context_, first(to), std::as_bytes(std::span(from)));
  };
  bring(ids_, host_.ids);
  bring(positions_, host_.positions);
  bring(sequences_, host_.sequences);
  std::vector<std::int32_t> rows(host_.ids.size());
  for (Places& places : places_) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const int sequence = host_.sequences[i];
      const std::int64_t position = host_.positions[i];
      rows[i] =
          places.ring ? places.ring->row_of(sequence, position) : pages_.row_of(sequence, position);
    }
    bring(places.rows, rows);
    if (!places.ring) copy_in(context_, places.table.view(), std::as_bytes(pages_.table()));
  }
  ArenaCursor measure;
  lay_out(measure, tokens_);
  if (measure.bytes() > memory_.size()) {
    memory_ = {};
    memory_ = Memory(context_.device(), measure.bytes());
  }
  ArenaCursor arena(memory_.data());
  buffers_ = lay_out(arena, tokens_);
}

CachedTokens Decoder::cached_tokens(const Places& places) const {
  const auto first = [&](const Buffer& buffer) { return buffer.view().rows(0, tokens_); };
  CachedTokens tokens;
  tokens.row_T = first(places.rows);
  tokens.positions = host_.positions;
  if (alone_) {
    const int sequence = host_.sequences.front();
    tokens.pages = places.ring ? places.ring->pages(sequence) : pages_.pages(sequence);
    return tokens;
  }
  tokens.sequence_T = first(sequences_);
  tokens.pages_SP = places.table.view();
  return tokens;
}

void Decoder::forward(int /*chunk*/, int /*micro_batch*/) {
  const BatchInvariance invariance(context_, !alone_);
  PositionRange range{host_.positions.front(), tokens_};
  AttentionMask mask;
  mask.q = {&range, 1};
  const ConstTensorView positions = first(positions_);
  const ExpertsPass experts{expert_, places_of_experts_, buffers_.experts};
  const ModelPass pass{
      context_,         local_, tensor_, context_axis_,   ropes_,
      positions,        mask,   nullptr, widened_.view(), largest_.experts ? &experts : nullptr,
      buffers_.adapters};
  const LayerShape shape = layer_shape(tokens_);
  const bool head = chunk_.range.head && wanted_ > 0;
  // A gather must not be under way when nobody comes for it.
  const std::size_t unread = chunk_.range.head && !head ? 2 : 0;
  WeightReader weights(store_, std::span(reads_).first(reads_.size() - unread));
  if (chunk_.range.embedding) {
    const ParamStore::Lease lease = weights.next();
    embed_tokens(context_, tensor_, lease, chunk_,
                 {first(ids_), positions, vocabulary_, config_.vocab_size,
                  embedding_scale(config_, store_.compute())},
                 {buffers_.acts[0].attention.norm.s_TC, buffers_.scratch.branch_TC});
  }
  std::vector<CachedTokens> tokens;
  for (const Places& places : places_) tokens.push_back(cached_tokens(places));
  std::vector<KvCache> caches;
  for (LayerCache& cache : caches_)
    caches.push_back({cache.k.view(), cache.v.view(), ordered_k_.view(), ordered_v_.view(),
                      tokens[cache.places], &buffers_.latent});
  const ConstTensorView stream = forward_layers(
      pass, weights, chunk_, {shape, buffers_.acts, kInTurns}, buffers_.scratch, caches);
  if (!chunk_.range.head) {
    leave_part(context_, buffers_.out_SC, buffers_.scratch.branch_TC, stream);
  } else if (head) {
    run_head(pass, weights, stream);
  }
  context_.synchronize();  // before the range goes, and maybe the buffers
}

void Decoder::run_head(const ModelPass& pass, WeightReader& weights, ConstTensorView residual_TC) {
  const BatchInvariance invariance(context_, true);
  const ParamStore::Lease norm = weights.next();
  const auto rows = [&](const Buffer& buffer) {
    return buffer.view().given() ? buffer.view().rows(0, wanted_) : TensorView();
  };
  const TensorView n = rows(final_n_);
  final_norm_forward(pass, weights_of(norm, chunk_.final_norm),
                     {rows(final_s_), rows(final_mean_), rows(final_rstd_)}, n,
                     buffers_.scratch.branch_TC.rows(tokens_ - wanted_, wanted_),
                     residual_TC.rows(tokens_ - wanted_, wanted_));
  const std::int64_t ranks = tensor_.extent(),
                     of_rank = wanted_ * ceil_div(config_.vocab_size, ranks);
  TensorView parts = logits_parts_.view().rows(0, ranks * of_rank);
  parts.shape = {ranks, of_rank};
  TensorView own = parts.rows(tensor_.rank().index, 1);
  own.shape = {wanted_, vocabulary_.valid};
  const ParamStore::Lease head = weights.next();
  const ConstTensorView weight = head.weight(chunk_.head);
  AdapterWeights adapter = weights_of(head, chunk_.head_adapter, {chunk_.head, chunk_.head});
  adapter.rows_of = buffers_.head_adapter.rows;
  const AdapterScratch& scratch = buffers_.head_adapter.scratch;
  head_gains(context_, scratch, weight, adapter);
  head_logits(context_, scratch, own, n, weight, adapter);
  tensor_.gather_parts(parts);
}

void Decoder::read_logits() {
  const std::int64_t ranks = tensor_.extent(),
                     of_rank = wanted_ * ceil_div(config_.vocab_size, ranks);
  const std::span<float> all(host_parts_.data(), static_cast<std::size_t>(ranks * of_rank));
  copy_out(context_, std::as_writable_bytes(all), logits_parts_.view().rows(0, ranks * of_rank));
  for (int rank = 0; rank < ranks; ++rank) {
    const VocabularyPart part = vocabulary_part(config_.vocab_size, {tensor_.extent(), rank});
    for (std::int64_t i = 0; i < wanted_; ++i) {
      std::copy_n(host_parts_.begin() + rank * of_rank + i * part.valid, part.valid,
                  host_logits_.begin() + i * config_.vocab_size + part.first);
    }
  }
}

TensorView Decoder::boundary(int /*chunk*/, int /*micro_batch*/, Boundary which) {
  if (which == Boundary::kInput) return buffers_.acts[0].attention.norm.s_TC;
  expect(which == Boundary::kOutput, "a gradient in a decoder");
  return buffers_.out_SC;
}

int Decoder::slot(int /*chunk*/, int /*micro_batch*/) const { return 0; }

void Decoder::copy(TensorView to, TensorView from) {
  copy_bytes(context_, to.data, from.data, from.bytes());
}

}  // namespace trireme
