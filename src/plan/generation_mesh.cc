#include "plan/generation_mesh.h"

#include <algorithm>
#include <numeric>

#include "base/human_format.h"
#include "model/flops.h"
#include "plan/mesh_rules.h"
#include "store/param_store.h"

namespace trireme {

namespace {

[[noreturn]] void refuse(const Problem& problem) {
  throw ConfigError("{}", format_problem(problem));
}

std::string up_to(std::int64_t limit) { return limit == 1 ? "1" : fmt::format("1 to {}", limit); }

/// What the user wants, each extent alone and both together.
void check_request(const ModelConfig& model, const GenerationRequest& request) {
  const std::int64_t ranks = request.ranks;
  if (request.tensor) {
    RunConfig config;
    config.model = model;
    config.parallel.tensor = *request.tensor;
    config.parallel.sequence_parallel = false;
    std::vector<Problem> problems;
    check_mesh_rules(config, 1, problems);
    if (!problems.empty()) {
      problems.front().path = "--tensor";
      refuse(problems.front());
    }
  }
  if (request.pipeline && *request.pipeline > model.layer_count()) {
    refuse({"--pipeline", std::to_string(*request.pipeline), up_to(model.layer_count()),
            std::to_string(model.layer_count()),
            fmt::format("is more stages than the model has layers, {}; each needs one",
                        model.layer_count())});
  }
  const std::int64_t tensor = request.tensor.value_or(1), pipeline = request.pipeline.value_or(1);
  if (tensor > ranks) {
    std::int64_t nearest = ranks;
    while (!tensor_extent_fits(model, nearest)) --nearest;
    refuse({"--tensor", std::to_string(tensor), fmt::format("up to the {}", counted(ranks, "rank")),
            std::to_string(nearest), "is more than the ranks that were started"});
  }
  if (tensor * pipeline > ranks) {
    refuse({"--pipeline", std::to_string(pipeline),
            request.tensor ? fmt::format("{} beside tensor {}", up_to(ranks / tensor), tensor)
                           : up_to(ranks),
            std::to_string(ranks / tensor),
            fmt::format("needs {} x {} = {} ranks, and {} {} started", pipeline, tensor,
                        tensor * pipeline, ranks, ranks == 1 ? "was" : "were")});
  }
}

/// Tensor and pipeline extent.
std::pair<std::int64_t, std::int64_t> choose_extents(const ModelConfig& model,
                                                     const GenerationRequest& request) {
  std::pair<std::int64_t, std::int64_t> best{1, 1};
  const std::int64_t first = request.tensor.value_or(1),
                     last = request.tensor.value_or(request.ranks);
  for (std::int64_t tensor = first; tensor <= last; ++tensor) {
    const bool within_hosts = request.ranks_of_host == 0 || request.ranks_of_host % tensor == 0;
    if (!request.tensor && !(within_hosts && tensor_extent_fits(model, tensor))) continue;
    const std::int64_t room = request.ranks / tensor;
    const std::int64_t pipeline = request.pipeline.value_or(std::min(room, model.layer_count()));
    if (pipeline <= room && tensor * pipeline >= best.first * best.second)
      best = {tensor, pipeline};
  }
  return best;
}

/// Layers of each stage: each goes to the stage with least so far, so that the largest is smallest.
std::vector<std::int64_t> layers_by_weights(const ModelConfig& model, std::int64_t stages) {
  const std::int64_t vocabulary = model.vocab_size * model.hidden;
  const std::int64_t layer =
      (count_parameters(model).multiplying - vocabulary) / model.layer_count();
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages), 1),
      weights(layers.size(), layer);
  weights.front() += vocabulary;
  weights.back() += vocabulary;
  for (std::int64_t left = model.layer_count() - stages; left > 0; --left) {
    const auto least = std::min_element(weights.begin(), weights.end());
    *least += layer;
    ++layers[static_cast<std::size_t>(least - weights.begin())];
  }
  return layers;
}

}  // namespace

RankPart GenerationMesh::part_of(int rank) const {
  return part_of_rank(config.parallel, mesh, pipeline, rank, StagePurpose::kEvaluation);
}

int GenerationMesh::sampler() const {
  return mesh.rank_of({mesh.extent(Axis::kPipeline) - 1, 0, 0, 0});
}

std::int64_t GenerationMesh::weight_bytes_max() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const RankPart part = part_of(rank);
    const ParamStore::Bytes bytes =
        ParamStore::bytes_of(part.declare(config.model).metas, compute, {}, part.store);
    most = std::max(most, bytes.parameters);
  }
  return most;
}

std::int64_t GenerationMesh::cache_bytes_max(const DecoderShape& shape) const {
  std::int64_t most = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const RankPart part = part_of(rank);
    const ModelConfig local = config_of_rank(config.model, part.cut.tensor);
    for (const ChunkParams& chunk : part.declare(config.model).chunks)
      most = std::max(most, Decoder::cache_bytes(local, chunk.range, shape, compute));
  }
  return most;
}

GenerationMesh resolve_generation(const ModelConfig& model, const GenerationRequest& request) {
  check_request(model, request);
  const auto [tensor, pipeline] = choose_extents(model, request);
  GenerationMesh result;
  result.config.model = model;
  result.compute = request.compute;
  result.config.data.sequence_length = 1;
  RunConfig::Parallel& parallel = result.config.parallel;
  parallel.tensor = tensor;
  parallel.sequence_parallel = false;  // of one token there is nothing to shard
  // Experts lie on tensor-parallel ranks, as many on each.
  for (const LayerConfig& layer : model.layers)
    if (layer.experts) parallel.expert = std::gcd(tensor, layer.experts->count);
  parallel.pipeline = pipeline;
  parallel.pipeline_layers = layers_by_weights(model, pipeline);
  result.mesh = MeshShape({static_cast<int>(pipeline), 1, 1, static_cast<int>(tensor)});
  result.pipeline = make_pipeline(result.config, result.mesh, {{1, 1, 1, 1}}, request.compute);
  return result;
}

}  // namespace trireme
