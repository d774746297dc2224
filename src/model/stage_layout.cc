// The buffers of a stage, one after the other in one piece of memory.

#include <algorithm>
#include <numeric>
#include <set>

#include "base/math.h"
#include "model/layer_products.h"
#include "model/stage.h"

namespace trireme {

namespace {

/// How many things the chunks name in a list.
std::size_t count_of(const std::vector<ChunkShape>& chunks,
                     std::vector<std::int32_t> ChunkShape::*list) {
  std::int32_t most = -1;
  for (const ChunkShape& chunk : chunks) {
    for (const std::int32_t entry : chunk.*list) most = std::max(most, entry);
  }
  return static_cast<std::size_t>(most + 1);
}

/// The chunks that take each of the ends.
std::vector<std::vector<ChunkRange>> takers_of_ends(const std::vector<ChunkShape>& chunks) {
  std::vector<std::vector<ChunkRange>> takers(count_of(chunks, &ChunkShape::ends));
  for (const ChunkShape& chunk : chunks) {
    for (const std::int32_t entry : std::set<std::int32_t>(chunk.ends.begin(), chunk.ends.end()))
      takers[static_cast<std::size_t>(entry)].push_back(chunk.range);
  }
  return takers;
}

std::vector<std::int32_t> in_turn(std::int64_t count, std::int32_t first = 0) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

bool in_blocks(const StageShape& shape) {
  return shape.fp8 && shape.fp8->recipe == Fp8Recipe::kBlock;
}

/// Columns of the widest gradient whose codes stand while the last product of its MLP goes back.
std::int64_t kept_columns(const ModelConfig& local, const LayerShape& layer,
                          const StageShape& shape) {
  if (!in_blocks(shape) || local.adapters || (layer.codes_apart && !layer.split)) return 0;
  std::int64_t most = 0;
  for (const LayerConfig& of : local.layers) {
    if (leaves_gradient_codes(of, shape.cut.tensor.extent)) most = std::max(most, of.mlp.up_size());
  }
  return most;
}

std::vector<Fp8Widths> fp8_widths(const LayerShape& layer, bool together, std::int64_t kept) {
  std::vector<Fp8Widths> widths;
  const int extent = layer.tensor_extent;
  for (const LayerProduct& of : layer_products(layer))
    widths.push_back({layer.tokens, of.in, of.out, extent, together && extent == 1});
  if (together && kept > 0)
    widths.push_back({layer.tokens, layer.config.mlp.ffn, layer.hidden, extent, true, kept});
  return widths;
}

HeadShape head_shape(const ModelConfig& config, const LayerShape& layer, const StageShape& shape) {
  HeadShape head{config.vocab_size, layer.tokens, layer.compute, shape.cut.tensor, shape.device};
  head.adapter = {config.hidden, config.head_adapter_rank, layer.magnitudes, layer.dropout,
                  shape.purpose != StagePurpose::kEvaluation};
  return head;
}

/// Of B and W in one. Layers share one set; only the residual gradient goes to and fro between two
/// buffers, with its maximum: W may read a layer's when that of the layer before is there.
std::vector<BlockGradients> lay_out_in_turns(ArenaCursor& arena, const LayerShape& layer) {
  std::vector<BlockGradients> turns(2, lay_out_gradients(arena, layer));
  for (BlockGradients& gradients : turns) {
    gradients.mlp.dy_TC = arena.take(layer.wide(layer.hidden));
    if (mlp_sizes(layer).out_gradient_maximum)
      gradients.mlp.dout_amax_1 = arena.take(LayerShape::maxima_of(1));
  }
  return turns;
}

/// Elements of the largest weight of a layer's products.
std::int64_t largest_weight(const LayerShape& layer) {
  std::int64_t most = 0;
  for (const LayerProduct& of : layer_products(layer)) most = std::max(most, of.in * of.out);
  return most;
}

}  // namespace

std::vector<ChunkShape> chunks_of(const Schedule& schedule, const std::vector<ChunkRange>& stages) {
  std::vector<std::int64_t> layers, behind_first, embeddings;
  for (const ChunkRange& stage : stages) {
    layers.push_back(stage.layers);
    behind_first.push_back(stage.layers - 1);
    embeddings.push_back(stage.embedding ? 1 : 0);
  }
  const SlotTable ends = slots_of(schedule, Holding::kActivations),
                  others = slots_of(schedule, Holding::kActivations, behind_first),
                  gradients = slots_of(schedule, Holding::kGradients, layers),
                  embedding_gradients = slots_of(schedule, Holding::kGradients, embeddings),
                  recomputed = slots_of(schedule, Holding::kRecomputed, layers);
  const ScheduleShape shape = shape_of(schedule);
  std::vector<ChunkShape> chunks;
  for (std::int32_t s = 0; s < shape.virtual_stages; ++s) {
    const auto index = static_cast<std::size_t>(s);
    ChunkShape& chunk = chunks.emplace_back();
    chunk = {stages[index],
             ends.of_stage(s),
             {},
             gradients.of_stage(s),
             embedding_gradients.of_stage(s),
             recomputed.of_stage(s)};
    // What the first layer keeps comes from elsewhere, to memory that is free when the ends are.
    const std::int32_t first_others = ends.count(shape.placement[index]);
    for (std::int32_t i = 0; i < shape.micro_batches; ++i) {
      chunk.activations.push_back(ends.of(s, i));
      for (std::int64_t layer = 0; layer < behind_first[index]; ++layer)
        chunk.activations.push_back(first_others + others.of(s, i, layer));
    }
  }
  return chunks;
}

void append(std::vector<ChunkShape>& chunks, const std::vector<ChunkShape>& next) {
  if (chunks.empty()) chunks.resize(next.size());
  for (std::size_t i = 0; i < next.size(); ++i) {
    chunks[i].range = next[i].range;
    for (auto list : {&ChunkShape::ends, &ChunkShape::activations, &ChunkShape::gradients,
                      &ChunkShape::embedding_gradients, &ChunkShape::recomputed})
      (chunks[i].*list)
          .insert((chunks[i].*list).end(), (next[i].*list).begin(), (next[i].*list).end());
  }
}

ChunkShape lone_chunk(const ChunkRange& range, int in_flight, int waiting, int recomputed) {
  return {range,
          in_turn(in_flight),
          in_turn(in_flight * range.layers),
          in_turn(waiting * range.layers),
          in_turn(range.embedding ? waiting : 0),
          in_turn(recomputed * range.layers)};
}

LayerShape Stage::layer_shape(const ModelConfig& local, const LayerConfig& layer,
                              const StageShape& shape, DType compute) {
  LayerShape block{layer, local.hidden};
  block.sequences = shape.sequences;
  block.tokens = shape.local_tokens();
  block.residual_tokens = TensorAxis::residual_tokens(block.tokens, shape.cut.tensor.extent,
                                                      shape.cut.sequence_parallel);
  block.compute = compute;
  block.tensor_extent = shape.cut.tensor.extent;
  block.sequence_parallel = shape.cut.sequence_parallel;
  block.expert = shape.cut.expert;
  block.context_extent = shape.cut.context.extent;
  block.context_method = shape.cut.context_method;
  // Nothing is kept for a backward pass that does not come.
  if (shape.purpose != StagePurpose::kEvaluation) block.recompute = shape.recompute;
  block.magnitudes = local.adapters && local.adapters->magnitudes;
  block.dropout =
      local.adapters && local.adapters->dropout > 0 && shape.purpose != StagePurpose::kEvaluation;
  // A base below adapters has no W.
  block.maxima = shape.fp8 && shape.fp8->recipe == Fp8Recipe::kTensor && !local.adapters;
  block.split = shape.purpose == StagePurpose::kTrainingSplit;
  const bool all_in_blocks =
      in_blocks(shape) && shape.fp8->bf16_layers == Fp8Precision().bf16_layers;
  const auto all = [&](auto&& leave) {
    const auto leaves = [&](const LayerConfig& of) { return leave(of, shape.cut.tensor.extent); };
    return all_in_blocks && std::all_of(local.layers.begin(), local.layers.end(), leaves);
  };
  block.mlp_codes = all(leaves_codes);
  // Rows are read where a product has no W.
  const bool stands_still = std::any_of(local.groups.begin(), local.groups.end(),
                                        [](const ParamGroup& group) { return !group.trainable; });
  block.mlp_gradient_codes = all(leaves_gradient_codes) && !local.adapters && !stands_still;
  block.codes_apart =
      in_blocks(shape) && !local.adapters &&
      std::any_of(local.layers.begin(), local.layers.end(), [&](const auto& of) {
        return of.experts && of.mlp.ffn > 0 && leaves_gradient_codes(of, block.tensor_extent);
      });
  block.expert_codes = all_in_blocks && !local.adapters &&
                       expert_units_leave_codes(layer, shape.cut.expert.tensor.extent);
  return block;
}

std::vector<ChunkShape> Stage::chunks_of(const ModelConfig& config, const StageShape& shape) {
  std::vector<ChunkShape> chunks = shape.chunks;
  if (chunks.empty())
    chunks.push_back(lone_chunk(whole_model(config), shape.in_flight, shape.in_flight));
  std::int32_t blocks = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (shape.purpose == StagePurpose::kTrainingSplit) continue;
    chunks[i].gradients.clear();
    chunks[i].embedding_gradients.clear();
    if (shape.purpose == StagePurpose::kTraining) continue;
    // One micro-batch, no action but F: the activations of two layers in turns.
    const std::int64_t layers = std::min<std::int64_t>(2, chunks[i].range.layers);
    chunks[i] = {chunks[i].range, {static_cast<std::int32_t>(i)}, in_turn(layers, blocks)};
    blocks += narrow<std::int32_t>(layers);
  }
  return chunks;
}

Stage::Ends Stage::lay_out_ends(ArenaCursor& arena, const LayerShape& layer,
                                std::span<const ChunkRange> chunks, StagePurpose purpose) {
  const bool training = purpose != StagePurpose::kEvaluation;
  const auto take = [&](const TensorSize& size, TensorView& view) { view = arena.take(size); };
  const auto any = [&](auto&& of) { return std::any_of(chunks.begin(), chunks.end(), of); };
  Ends ends;
  const auto head = [&] {
    if (!any([](const ChunkRange& range) { return range.head; })) return;
    take(layer.residual(), ends.final_norm.s_TC);
    take(layer.wide(layer.hidden), ends.final_n_TC);
    NormActivations::each_statistic(layer, take, ends.final_norm);
    if (layer.split)
      NormGradients::each(layer.config.norm, layer.hidden, take, ends.final_norm_gradients);
  };
  const auto next_stage = [&] {
    if (any([](const ChunkRange& range) { return !range.head; }))
      take(layer.residual(), ends.out_SC);
  };
  arena.overlay(head, next_stage);
  if (training && any([](const ChunkRange& range) { return !range.embedding || !range.head; }))
    take(layer.residual(), ends.gradient_SC);
  return ends;
}

Stage::Kept Stage::lay_out_kept(ArenaCursor& arena, const LayerShape& layer) {
  Kept kept;
  kept.gradients = lay_out_gradients(arena, layer);
  kept.gradients.mlp.dy_TC = arena.take(layer.wide(layer.hidden));
  const auto take = [&](const TensorSize& size, TensorView& view) { view = arena.take(size); };
  if (!layer.exchanges()) BlockActivations::each_of_weight(layer, take, kept.acts);
  return kept;
}

Stage::Buffers Stage::lay_out(ArenaCursor& arena, const ModelConfig& config,
                              const StageShape& shape, DType compute) {
  const ModelConfig local = config_of_rank(config, shape.cut.tensor, shape.cut.expert.tensor);
  const LayerConfig largest = largest_layer(local);
  const LayerShape layer = layer_shape(local, largest, shape, compute);
  const bool training = shape.purpose != StagePurpose::kEvaluation;
  Buffers buffers;
  buffers.spare = lay_out_spare(arena, layer);
  const BlockActivations shared = lay_out_activations(arena, layer, Keep::kShared);
  const std::vector<ChunkShape> chunks = chunks_of(config, shape);
  const auto take_each = [&](std::vector<std::int32_t> ChunkShape::*list, auto& all, auto&& take) {
    for (std::size_t left = count_of(chunks, list); left > 0; --left) all.push_back(take());
  };
  const TensorSize stream = layer.wide(layer.hidden);
  for (const std::vector<ChunkRange>& takers : takers_of_ends(chunks))
    buffers.ends.push_back(lay_out_ends(arena, layer, takers, shape.purpose));
  take_each(&ChunkShape::activations, buffers.activations,
            [&] { return lay_out_activations(arena, layer, Keep::kEachLayer, shared); });
  take_each(&ChunkShape::gradients, buffers.kept, [&] { return lay_out_kept(arena, layer); });
  take_each(&ChunkShape::embedding_gradients, buffers.embedding_gradients_TC,
            [&] { return arena.take(stream); });
  take_each(&ChunkShape::recomputed, buffers.recomputed,
            [&] { return lay_out_activations(arena, layer, Keep::kShared); });
  if (layer.split) buffers.input_gradient_TC = arena.take(stream);
  const bool has_head = std::any_of(chunks.begin(), chunks.end(),
                                    [](const ChunkShape& chunk) { return chunk.range.head; });
  const bool together = std::any_of(chunks.begin(), chunks.end(), [](const ChunkShape& chunk) {
    return chunk.gradients.empty() ||
           std::count(chunk.gradients.begin(), chunk.gradients.end(), -1) > 0;
  });
  if (shape.fp8)
    buffers.fp8 = lay_out_fp8(
        arena, fp8_widths(layer, training && together, kept_columns(local, layer, shape)),
        fp8_expert_bytes(layer, *shape.fp8));
  // Products read codes of fp8 as they stand; what measures rows of the weights (DoRA) does not.
  if (shape.nf4 || (shape.fp8 && layer.magnitudes))
    buffers.widened = arena.take(compute, {largest_weight(layer)});
  buffers.adapters =
      lay_out_adapters(arena, layer, compute == DType::kF32 && shape.cut.tensor.extent == 1);
  buffers.experts = buffers.experts_backward = lay_out_experts_scratch(arena, layer);
  if (shape.turns) buffers.experts_backward = lay_out_experts_scratch(arena, layer);
  const auto forward = [&] { buffers.forward = lay_out_forward_scratch(arena, layer); };
  const auto head = [&] {
    if (!has_head) return;
    buffers.head = lay_out_head(arena, head_shape(config, layer, shape));
  };
  const auto backward = [&] {
    if (!training) return;
    if (together) buffers.gradients = lay_out_in_turns(arena, layer);
    buffers.backward = lay_out_attention_scratch(arena, layer);
  };
  if (shape.turns) {
    arena.overlay(forward, head);
    backward();
  } else if (layer.recompute == Recompute::kFull) {  // forward runs in the middle of backward
    forward();
    arena.overlay(head, backward);
  } else {
    arena.overlay(forward, head, backward);
  }
  return buffers;
}

std::int64_t Stage::buffer_bytes(const ModelConfig& config, const StageShape& shape,
                                 DType compute) {
  ArenaCursor measure;
  lay_out(measure, config, shape, compute);
  return static_cast<std::int64_t>(measure.bytes());
}

}  // namespace trireme
