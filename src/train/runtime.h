#pragma once
// The resources of one rank, in order of life: what comes later may point to what comes earlier.

#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "base/trace.h"
#include "comm/gpu_channel.h"
#include "comm/launch.h"
#include "config/run_config.h"
#include "model/stage.h"
#include "optim/block_meter.h"
#include "optim/optimizer.h"
#include "parallel/mesh_shape.h"
#include "pipeline/executor.h"
#include "plan/memory.h"
#include "plan/rank_part.h"
#include "plan/resolve.h"
#include "store/noise_squares.h"
#include "store/partial_gradients.h"
#include "store/quantized_refresh.h"
#include "store/reduction.h"
#include "store/tied_weight.h"
#include "store/weight_gather.h"
#include "train/router_bias.h"

namespace trireme {

struct RuntimeOptions {
  StagePurpose purpose = StagePurpose::kTraining;
  int threads = 1;
  Device device;
  const AttentionBackend* attention = &own_attention;
};

/// What channels are made with.
struct ChannelMaker {
  Context& context;
  Launch& launch;
  ReductionOrder order;
  std::int64_t nccl_max_ctas = 0;
  LargestSums sums = {};
};

/// The same for the experts of a model: tokens travel within `ranks`, which hold all experts
/// together; gradients are summed over the ranks that hold the same.
struct ExpertChannels {
  /// Collective over `stage`, the ranks of one pipeline stage.
  ExpertChannels(Communicator& stage, const RankPart& part, const RunConfig& config,
                 const ChannelMaker& maker, GpuChannels* gpus);

  const std::unique_ptr<Communicator> ranks, peers, shard_group, copy_group, tensor_group;
  /// Those whose tokens count together in an auxiliary loss.
  const std::unique_ptr<Communicator> counted;
  const std::unique_ptr<Communicator> dispatch;  ///< "expert"
  /// Of maxima of fp8 weights and of moments in 8 bits, and of gradients of adapters; "expert"
  const std::unique_ptr<Communicator> tensor;
  const std::unique_ptr<Communicator> shard_reduce, shard_gather, copy_reduce;  ///< "data"
  const std::unique_ptr<Communicator> parts_group, parts;  ///< as Channels', or "expert"
};

/// The groups of ranks that a rank moves data with, each transfer of a kind on a channel of its
/// own so that none queues behind another. Channels of one rank do nothing.
struct Channels {
  /// Collective. `peers` is split into the ranks of one whole replica and those of equal shards.
  Channels(Communicator& replica, const MeshShape& mesh, const RankPart& part,
           const Pipeline& pipeline, const RunConfig& config, const ChannelMaker& maker);

  const std::unique_ptr<Communicator> peers;  ///< same part of the model, other tokens
  const std::unique_ptr<Communicator> shard_group, copy_group, tensor_group, same_heads_group,
      context_group, pipeline_group, ends_group;
  /// On GPUs: the connections of the replica, and of the pipeline, whose links are many.
  const std::unique_ptr<GpuChannels> gpus, pipeline_gpus;
  const std::unique_ptr<Communicator> shard_reduce, shard_gather, copy_reduce;  ///< "data"
  const std::unique_ptr<Communicator> tensor, same_heads;                       ///< "tensor"
  const std::unique_ptr<Communicator> context;                                  ///< "context"
  const std::unique_ptr<Communicator> ends;  ///< "pipeline": both ends of the model, in its order
  /// Of one copy of the stage's parameters, for updates of whole matrices (Muon); "data", or
  /// "tensor" without shards
  const std::unique_ptr<Communicator> parts_group, parts;
  StageLinks links;                       ///< "pipeline"
  std::optional<ExpertChannels> experts;  ///< in a model with experts

  [[nodiscard]] ExpertAxis expert_axis(const ExpertCut& cut, DispatchMethod method) const;
  /// Those of experts' tensor axis join nothing unless ExpertChannels::tensor does.
  [[nodiscard]] ViewChannels of_updates() const;

  /// Nanoseconds of the calling thread's waits so far.
  [[nodiscard]] ByAxis exposed_ns() const { return sum(&TrafficCounters::exposed_ns); }
  /// Bytes that this rank has sent so far.
  [[nodiscard]] ByAxis sent_bytes() const { return sum(&TrafficCounters::bytes_sent) + replayed_; }
  /// That this rank has started so far.
  [[nodiscard]] std::int64_t transfers() const { return sum(&TrafficCounters::transfers).total(); }
  /// A replay of recorded work, which the channels know nothing of, has sent so many.
  void replayed(const ByAxis& bytes) { replayed_ = replayed_ + bytes; }

 private:
  ByAxis replayed_;
  [[nodiscard]] ByAxis sum(std::int64_t TrafficCounters::*counter) const;
};

class Runtime {
 public:
  /// Collective. Allocates everything that the steady state needs; parameters are zero. `run` is
  /// what the config, with its model, means on these ranks; it must outlive this.
  Runtime(Launch& launch, const RunConfig& config, const ResolvedRun& run,
          const RuntimeOptions& options);
  /// With the ranks of `replica` alone, a group of the launch's; `run` is theirs.
  Runtime(Launch& launch, Communicator& replica, const RunConfig& config, const ResolvedRun& run,
          const RuntimeOptions& options);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] int data_rank() const {
    return mesh.coordinate_of(replica().rank())[static_cast<std::size_t>(Axis::kData)];
  }
  [[nodiscard]] Communicator& replica() const { return replica_; }
  [[nodiscard]] int pipeline_rank() const {
    return mesh.coordinate_of(replica().rank())[static_cast<std::size_t>(Axis::kPipeline)];
  }
  /// The sum over the model's ends of what each first rank of the tensor axis has: a loss.
  [[nodiscard]] double sum_of_losses(double mine) const;
  /// How experts are balanced in this run.
  [[nodiscard]] StageBalance balance_of(const ResolvedRun& run) const;
  /// Of the step that the stage has begun.
  [[nodiscard]] Executor& executor() { return executors_.at(std::ssize(stage.batches_of_step())); }
  /// The owned values have changed, by an update or by whoever loaded them: stale bf16 copies are
  /// rounded anew, those in fp8 quantised, and the model sees the new weights.
  enum class Copies : std::uint8_t { kStale, kFresh };
  void weights_changed(Copies copies);
  /// Products read the weights that are trained, or those that are saved: other ones where the
  /// optimizer says so (Optimizer::reads_apart). Collective.
  enum class Read : std::uint8_t { kTrained, kSaved };
  void read(Read weights);

  Launch& launch;
  const RunConfig config;
  const ModelConfig& model;  ///< the config's
  const RuntimeOptions options;
  const MeshShape& mesh;
  const Pipeline& pipeline;
  const RankPart part;
  Context context;
  Channels channels;
  const ModelParams params;
  ParamStore store;
  Stage stage;
  Executor evaluator;  ///< of an evaluation's micro-batch
  Trace trace;
  std::optional<WeightGather> gather;                   ///< with shards
  std::deque<QuantizedRefresh> fp8_weights;             ///< in fp8: of each view
  std::optional<GradientReduction> reduction;           ///< in training
  std::optional<PartialGradients> partial, same_heads;  ///< in training, with a tensor axis
  std::optional<PartialGradients> of_experts;  ///< in training, where ranks have parts of experts
  std::optional<NoiseSquares> noise;           ///< in training, with stability.noise_scale
  std::optional<Optimizer> optimizer;          ///< in training
  std::optional<BlockMeter> block_meter;       ///< in training, with log.blocks
  std::optional<RouterBias> router_bias;       ///< in training, where it balances
  std::optional<TiedWeight> tied_weight;  ///< in training, where they are on two pipeline ranks

 private:
  void make_gathers();
  void make_executors();
  void sum_partial_gradients();

  std::map<std::int64_t, Executor> executors_;  // of a step, by its micro-batches
  Read read_ = Read::kTrained;
  Communicator& replica_;
};

}  // namespace trireme
