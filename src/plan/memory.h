#pragma once
// What a run needs per rank, known before any memory exists: the sizes come from the functions that
// allocate, so that the figure and the allocation cannot differ.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/model_config.h"
#include "device/device.h"
#include "kernels/attention/attention_backend.h"
#include "model/stage.h"
#include "plan/rank_part.h"
#include "plan/resolve.h"

namespace trireme {

/// Bytes of one rank.
struct RankMemory {
  std::int64_t parameters = 0;  ///< fp32 values and, in bf16, their rounded copies
  std::int64_t gradients = 0;   ///< fp32, two accumulators of a tied weight
  std::int64_t optimizer = 0;   ///< moments, and averages of weights
  std::int64_t activations =
      0;  ///< of the micro-batches in flight, with gradients of activations and logits
  /// A copy of what an update changes, for parallel.speculative_step.
  std::int64_t undo = 0;
  /// Token batches of the loader (two steps, or four where they run ahead), rotary tables, staging
  /// of sums and gathers, gathered weights, keys and values of evaluation.samples, what log.blocks
  /// looks at; on the CPU also staging of transfers within a host, and `saving`; on GPUs scratch of
  /// ops, and staging of sums in rank order.
  std::int64_t buffers = 0;
  /// On GPUs: what NCCL takes for its connections, as it is known of NCCL 2.2x
  /// (comm/gpu_channel.h).
  std::int64_t libraries = 0;
  /// Host memory in which a save waits for the disk. With a GPU in no sum: others are the GPU's.
  std::int64_t saving = 0;
  [[nodiscard]] std::int64_t total() const {
    return parameters + gradients + optimizer + activations + undo + buffers + libraries;
  }
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

struct MemoryRequest {
  ResolvedBatch passes;
  std::int64_t sequence_length = 1;
  DType compute = DType::kF32;
  StagePurpose purpose = StagePurpose::kTraining;
  DeviceKind device = DeviceKind::kCpu;
  Recompute recompute = Recompute::kNone;
  const AttentionBackend* attention = &own_attention;
  bool deterministic = true;
  RankPart part = {};
  /// Rank order alone goes through memory shared by a host's ranks; the library's is not planned.
  ReductionOrder sums = ReductionOrder::kRank;
  DType wire = DType::kF32;        ///< of gradients between ranks
  std::int64_t sample_tokens = 0;  ///< of the longest of evaluation.samples; 0: none
  std::int64_t saving_max = 0;     ///< bounds RankMemory::saving
  DispatchMethod dispatch = DispatchMethod::kAllToAll;
  bool speculative_step = false;
  bool log_blocks = false;
  std::int64_t nccl_max_ctas = 0;
  RunConfig::Optimizer optimizer = {};
};
RankMemory estimate_memory(const ModelConfig& model, const MemoryRequest& request);
/// Bytes of the largest operand that each channel of a rank sums; 0: none.
struct LargestSums {
  std::int64_t data_shards = 0, data_copies = 0, tensor = 0, same_heads = 0, context = 0;
  std::int64_t expert_tensor = 0;
};
LargestSums largest_sums(const ModelConfig& model, const MemoryRequest& request);

/// The most that an op asks of Context::scratch there, where that is a GPU.
std::int64_t scratch_bytes(const ModelConfig& model, const MemoryRequest& request);
/// A layer's attention on that rank.
AttentionLayout attention_layout(const ModelConfig& model, const MemoryRequest& request);

/// For readers: what there is of it, by name. They add up to the total.
std::vector<std::pair<std::string, std::int64_t>> items_of(const RankMemory& memory);

/// The request of a rank of a run.
MemoryRequest memory_request(const RunConfig& config, const ResolvedRun& run, StagePurpose purpose,
                             int rank);

/// The most memory that saves of this config are staged in, whatever the rank needs: what it says;
/// else any amount if training goes on meanwhile, or what a waiting save needs.
std::int64_t saving_memory_max(const RunConfig::Checkpoint& config);

/// Payload of one checkpoint: every parameter in fp32 and, of those that are trained, what the
/// optimizer keeps, stored once.
std::int64_t checkpoint_bytes(const RunConfig& config);

}  // namespace trireme
