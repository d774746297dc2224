#pragma once
// One way in which parameters are updated. A run has one or several: each takes its parameters,
// declares what it keeps of them (OptimizerState), and updates them.

#include <array>
#include <cstdint>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "kernels/update/update.h"
#include "optim/block_meter.h"
#include "parallel/distribution.h"
#include "store/param_store.h"
#include "tensor/buffer.h"

namespace trireme {

/// What all parameters of an update have in common.
struct UpdateStep {
  double lr = 0;
  float gradient_scale = 1;  ///< the clip coefficient
  std::int64_t applied = 1;  ///< updates, this one included
};

/// The ranks that hold other parts of the same parameters, for updates that are not of each element
/// by itself. Null where a rule has no use for them.
struct UpdateChannels {
  Communicator* tensor = nullptr;  ///< along the cuts of the parameters (Distribution::tensor)
  Communicator* shard = nullptr;   ///< ZeRO's
  /// The first two as one group: by shards, within one along the cuts. Null where no rule asks.
  Communicator* parts = nullptr;
};
using ViewChannels = std::array<UpdateChannels, kMeshViews.size()>;

/// A parameter that a rule updates: the rows that this rank owns, which may be none.
struct UpdatedParam {
  ParamIndex index = kNoParam;
  double weight_decay = 0, lr_scale = 1;
};

class UpdateRule {
 public:
  /// Bytes that a rank sends in a step.
  struct Sent {
    std::int64_t tensor = 0, shards = 0;
  };
  virtual ~UpdateRule() = default;
  /// One update; rounds the bf16 copies on the way. Collective where the rule has channels.
  virtual void step(Context& context, const UpdateStep& step) = 0;
  /// The same update, with the same bits, of which `meter` learns what it is and does.
  virtual void step(Context& context, const UpdateStep& step, BlockMeter& meter) = 0;

  /// What a step changes, but for copies: values and states, of which the steps below keep copies.
  [[nodiscard]] virtual std::vector<TensorView> changed() const = 0;
  /// Takes the memory of these copies.
  virtual void allow_undo(Device device);
  /// The same update, which can be undone.
  virtual void step_undoable(Context& context, const UpdateStep& step);
  /// Back to before that step, in all bits. The bf16 copies are left stale.
  virtual void undo(Context& context);

  /// Where products do not read the values (StoreContents::weights_apart) what they read instead:
  /// written into all copies.
  virtual void refresh_copies(Context& /*context*/) {}
  /// The same of one of its parameters in fp32, until the next call; not given where that is the
  /// value.
  virtual TensorView read_value(Context& /*context*/, ParamIndex /*index*/) { return {}; }
  /// What a checkpoint keeps of it besides states: adds to its scalars, or takes them from there,
  /// or begins anew where there are none. DataError where they are none of its own.
  virtual void save(Json& /*scalars*/) const {}
  virtual void restore(const Json& /*scalars*/) {}

 private:
  std::vector<Buffer> kept_;  // of each of changed()
};

}  // namespace trireme
