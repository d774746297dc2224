#pragma once
// Runs a line of the table of meshes, and brings the shards that its ranks hold together.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "store/param_store.h"
#include "train/mesh_table.h"

namespace trireme {

/// Global tensors by name. `fault` says what does not fit together: an element that no rank holds,
/// or that two of those that hold it have with different bits.
struct WholeTensors {
  std::map<std::string, std::vector<float>> tensors;
  std::string fault;
};

struct MeshResult {
  WholeTensors initial, gradients,
      final;                          ///< gradients of step 1; parameters and moments at the end
  std::vector<double> losses, norms;  ///< of every step; the norm before clipping
  /// Of each block of the model: the norms of gradient, weights and update of the last step.
  std::vector<double> blocks;
};

/// Where a run comes from and what stays of it.
struct MeshPassage {
  std::filesystem::path load;  ///< a step folder in place of fresh weights; empty: none
  std::filesystem::path save;  ///< a folder of checkpoints for the last step; empty: none
  int first_step = 0;          ///< updates made before, samples that they took
};

/// `steps` updates with `global_batch` sequences each, on the ranks of `world`, as many as the cell
/// has. Parameters are set to numbers that depend on their global place alone once the initial ones
/// are read, so that no bias is zero and no norm's weight one; `initial` of what was loaded is
/// that, with the moments. Collective; the same result on every rank.
MeshResult run_mesh(Launch& launch, Communicator& world, const MeshCell& cell,
                    std::int64_t global_batch, int steps, const MeshPassage& passage = {});

/// Adds to every parameter a number that depends on its global place alone.
void disturb(Context& context, const ParamStore& store);

/// How far two results are apart, relative to `expected`: losses and norms at the worst step,
/// blocks, gradients and moments at the worst tensor by norm of the difference over norm, where a
/// tensor counts with 1e-4 of the norm of all at least (gradients that are nothing but rounding).
struct MeshDistance {
  double losses = 0, norms = 0, gradients = 0, moments = 0, blocks = 0;
  std::string worst_gradient, worst_moment;
};
MeshDistance distance_of(const MeshResult& found, const MeshResult& expected);

/// The same for results of equal bits, else another.
std::string bits_of(const MeshResult& result);

}  // namespace trireme
