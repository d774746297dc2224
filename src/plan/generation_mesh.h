#pragma once
// How a model is shared out for generation.

#include <cstdint>
#include <optional>

#include "config/run_config.h"
#include "model/decoder.h"
#include "parallel/mesh_shape.h"
#include "plan/pipeline.h"
#include "plan/rank_part.h"

namespace trireme {

struct GenerationRequest {
  std::int64_t ranks = 1;
  /// Of each of several hosts: the tensor axis, all waits, stays within one. 0: one host.
  std::int64_t ranks_of_host = 0;
  std::optional<std::int64_t> tensor, pipeline;  ///< extents that the user wants
  DType compute = DType::kF32;
};

/// Tensor and pipeline ranks are the first ranks; the others have no part of the model.
struct GenerationMesh {
  RunConfig config;  ///< with the model and these extents
  MeshShape mesh;
  DType compute = DType::kF32;
  Pipeline pipeline;

  [[nodiscard]] RankPart part_of(int rank) const;
  /// The rank that samples: the first of those that have the logits.
  [[nodiscard]] int sampler() const;
  /// The most that one rank holds.
  [[nodiscard]] std::int64_t weight_bytes_max() const;
  /// And of keys and values.
  [[nodiscard]] std::int64_t cache_bytes_max(const DecoderShape& shape) const;
};

/// Where extents are left open: as many ranks as can have a part of the model, and of the meshes
/// with that many the one of the largest tensor extent, since stages of one sequence work in turns
/// and tensor-parallel ranks at once. Layers are dealt out so that no stage, embedding and head
/// counted, has more weights than need be. Pure: the same on every rank. Throws ConfigError with
/// numbers, rule and the nearest legal extent.
GenerationMesh resolve_generation(const ModelConfig& model, const GenerationRequest& request);

}  // namespace trireme
