#pragma once
// The resources of one rank, in order of life: what comes later may point to what comes earlier.

#include <memory>
#include <optional>

#include "base/trace.h"
#include "comm/launch.h"
#include "config/run_config.h"
#include "model/stage.h"
#include "optim/optimizer.h"
#include "parallel/mesh_shape.h"
#include "parallel/reduction.h"
#include "pipeline/plan.h"

namespace trireme {

struct RuntimeOptions {
  StagePurpose purpose = StagePurpose::kTraining;
  std::int64_t micro = 1, tokens = 1, accumulation = 1;
  int threads = 1;
  Device device;
  std::array<int, kAxisCount> mesh = {1, 1, 1, 1};
};

class Runtime {
 public:
  /// Collective. Allocates everything that the steady state needs; parameters are zero.
  Runtime(Launch& launch, const RunConfig& config, const ModelConfig& model,
          const RuntimeOptions& options);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] int data_rank() const { return data->rank(); }
  [[nodiscard]] Communicator& world() const { return launch.world(); }
  [[nodiscard]] State state() const { return store.state(data->rank(), data->size()); }

  Launch& launch;
  const RunConfig config;
  const ModelConfig model;
  const RuntimeOptions options;
  const MeshShape mesh;
  const std::unique_ptr<Communicator> data;  ///< the ranks that see different samples
  Context context;
  const std::unique_ptr<Communicator> data_reduce;  ///< the same on the channel of the gradients
  const ModelParams params;
  ParamStore store;
  Stage stage;
  Trace trace;
  std::optional<GradientReduction> reduction;  ///< in training
  std::optional<Optimizer> optimizer;          ///< in training
  const Plan plan;
};

/// The type that the model computes in: the config's, else fp32 on the CPU and bf16 on a GPU.
DType compute_type(const RunConfig& config, DeviceKind device);

}  // namespace trireme
