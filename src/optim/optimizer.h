#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/exact_sum.h"
#include "comm/communicator.h"
#include "config/run_config.h"
#include "kernels/update/update.h"
#include "optim/block_meter.h"
#include "optim/update_rule.h"
#include "store/param_store.h"

namespace trireme {

/// This rank's part of the exact sum of squares of all gradients of the model: each row is summed
/// by one of the ranks that hold it, tied parameters once (their accumulators are added before).
/// The bits of the whole do not depend on which rank that is.
ExactSum sum_of_squares(Context& context, const ParamStore& store);

/// The first parameter of a block whose gradient, as the model wrote it, is not finite; else empty.
std::string first_non_finite_gradient(Context& context, const ParamStore& store, int block);

/// PyTorch's clip_grad_norm_: min(1, limit / (norm + 1e-6)); 1 where limit is 0.
double clip_coefficient(double norm, double limit);

/// The updates of optimizer.kind over the rows that a store owns, by one rule or several, and the
/// averages of optimizer.ema.
class Optimizer {
 public:
  /// What a store must hold for it.
  static StoreContents contents(const RunConfig::Optimizer& config);
  /// Bytes of memory that an update reads and writes for each element, its norm included.
  static double bytes_of_update(const RunConfig::Optimizer& config);
  /// What it takes besides the store and what undoing takes.
  static std::int64_t buffer_bytes(const RunConfig::Optimizer& config,
                                   const std::vector<ParamMeta>& params,
                                   const ParamDistribution& distribution, DType compute);
  /// What a rank sends in an update, of the parameters of a view.
  using Sent = UpdateRule::Sent;
  static Sent bytes_sent(const RunConfig::Optimizer& config, const std::vector<ParamMeta>& params,
                         const ParamDistribution& distribution, MeshView view);
  /// How much of a parameter its updates change together.
  static BlockMeter::Piece piece(const RunConfig::Optimizer& config);
  /// The store and the channels must outlive it.
  Optimizer(const RunConfig::Optimizer& config, const ParamStore& store,
            const ViewChannels& channels = {});
  /// One update with gradients * `gradient_scale`; rounds the bf16 copies on the way. With
  /// Undo::kPossible what it changes is copied on the way too; after allow_undo.
  enum class Undo : std::uint8_t { kImpossible, kPossible };
  void step(Context& context, double lr, double gradient_scale, Undo undo = Undo::kImpossible);

  /// The same update, with the same bits, of which `meter` learns what it is and does.
  void step(Context& context, double lr, double gradient_scale, BlockMeter& meter);

  /// Takes the memory of copies.
  void allow_undo(Device device);
  static std::int64_t undo_bytes(const RunConfig::Optimizer& config,
                                 const std::vector<ParamMeta>& params,
                                 const ParamDistribution& distribution);
  /// Back to before the last step that can be undone, in all bits. The bf16 copies are left stale.
  void undo(Context& context);

  /// Behind a step that stays: the averages take the weights in. Nothing without optimizer.ema.
  void average(Context& context);
  /// States that begin with the weights do so: those for which `of` holds.
  void begin_states(
      Context& context, const std::function<bool(const ParamMeta&, const OptimizerState&)>& of =
                            [](const ParamMeta&, const OptimizerState&) { return true; });

  /// Whether products read something else than the values, which are saved and evaluated.
  [[nodiscard]] bool reads_apart() const { return store_.contents().weights_apart; }
  /// That, of all parameters that have copies.
  void refresh_copies(Context& context);
  /// Of one in fp32, until the next call.
  TensorView read_value(Context& context, ParamIndex index);

  /// Updates applied so far: AdamW's t. Saved and restored with a checkpoint.
  [[nodiscard]] std::int64_t applied_updates() const { return applied_updates_; }
  void set_applied_updates(std::int64_t count) { applied_updates_ = count; }
  /// What rules keep in a checkpoint's scalars; restored from none they begin anew.
  void save(Json& scalars) const;
  void restore(const Json& scalars);

 private:
  [[nodiscard]] UpdateStep step_of(double lr, double gradient_scale) const;

  const ParamStore& store_;
  double decay_of_averages_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  std::vector<AveragedTensor> averages_;  // or none
  std::int64_t applied_updates_ = 0;
  std::int64_t kept_updates_ = 0;  ///< applied_updates_ before the step that can be undone
};

}  // namespace trireme
