#include "plan/batch.h"

#include "model/stage.h"
#include "plan/layer_balance.h"
#include "plan/resolve.h"

namespace trireme {
namespace {

// Bytes of activations, of all data ranks and of one.
constexpr std::int64_t kActivationsMin = std::int64_t{512} << 20;
constexpr std::int64_t kRankActivationsMin = std::int64_t{256} << 20;
constexpr std::int64_t kTokensMin = 512;
constexpr double kOperationsMin = 1LL << 34;  // of a layer: F, B and W

std::int64_t activation_bytes(const RunConfig& config, std::int64_t sequences) {
  StageShape shape;
  shape.sequences = sequences;
  shape.tokens = config.data.sequence_length;
  return Stage::buffer_bytes(config.model, shape, compute_type(config, DeviceKind::kCpu));
}

}  // namespace

ResolvedBatch batch_of_passes(const RunConfig& config, const ResolvedBatch& batch,
                              std::int64_t world, DeviceKind device) {
  const bool data_alone = world == batch.data_ranks && config.parallel.zero_stage < 2;
  // What is balanced over a step is counted before its first backward pass.
  const bool whole = config.moe.scope == BalanceScope::kGlobal;
  if (!data_alone || device != DeviceKind::kCpu || whole) return batch;
  const std::int64_t activations = activation_bytes(config, batch.micro);
  if (activations < kRankActivationsMin || activations * batch.data_ranks < kActivationsMin)
    return batch;
  const std::int64_t tokens = config.data.sequence_length;
  const auto operations =
      static_cast<double>(cost_of_layer(config.model, tokens, Recompute::kNone).all());
  const auto long_enough = [&](std::int64_t sequences) {
    const auto in_pass = static_cast<double>(sequences * tokens);
    return in_pass >= kTokensMin && in_pass * operations >= kOperationsMin;
  };
  ResolvedBatch passes = batch;
  for (std::int64_t i = 1; i * i <= batch.micro; ++i) {
    if (batch.micro % i != 0) continue;
    for (const std::int64_t sequences : {i, batch.micro / i}) {
      if (sequences < passes.micro && long_enough(sequences)) passes.micro = sequences;
    }
  }
  passes.accumulation *= batch.micro / passes.micro;
  return passes;
}

}  // namespace trireme
