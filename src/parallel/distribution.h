#pragma once

#include <array>
#include <cstdint>

#include "parallel/cut.h"

namespace trireme {

/// The same ranks have two views of the mesh, outermost axis first. Dense parameters: [pipeline,
/// data, context, tensor]; those of experts: [pipeline, expert data, expert, expert tensor].
enum class MeshView : std::uint8_t { kDense, kExpert };
inline constexpr std::array kMeshViews = {MeshView::kDense, MeshView::kExpert};

/// A rank among those of its pipeline stage that hold the parameters of one view.
struct Distribution {
  AxisRank tensor;   ///< shards parameters as they are declared (ParamMeta::cut)
  AxisRank shard;    ///< ZeRO: within the ranks that hold one full copy; alone at stage 0
  AxisRank replica;  ///< among the ranks that hold the same shard
};

/// How the parameters of a rank are distributed. Pure; made in plan.
struct ParamDistribution {
  int zero_stage = 0;  ///< 1 shards optimizer states (and masters), 2 gradients too, 3 weights too
  std::array<Distribution, kMeshViews.size()> views = {};

  [[nodiscard]] const Distribution& of(MeshView view) const {
    return views[static_cast<std::size_t>(view)];
  }
  [[nodiscard]] Distribution& of(MeshView view) { return views[static_cast<std::size_t>(view)]; }
  [[nodiscard]] bool sharded() const { return zero_stage > 0; }
  /// Stages 0 and 1: the gradients of micro-batches are accumulated on this rank. Else each
  /// micro-batch's are reduce-scattered when the backward pass of their block is done.
  [[nodiscard]] bool accumulates_locally() const { return zero_stage < 2; }
};

/// Of a model without experts.
inline ParamDistribution dense_distribution(int zero_stage, const Distribution& dense) {
  return {zero_stage, {dense, {}}};
}

}  // namespace trireme
