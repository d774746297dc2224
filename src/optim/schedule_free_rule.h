#pragma once
// Schedule-free AdamW (Defazio et al. 2024) as schedulefree 1.4.1 has it. The values are x, the
// average; gradients are those at y = x + (1 - beta1) (z - x), which products read in training.

#include <cstdint>
#include <span>
#include <vector>

#include "optim/elementwise_rule.h"

namespace trireme {

class ScheduleFreeRule final : public ElementwiseRule {
 public:
  /// As ElementwiseRule; products must read copies (StoreContents::weights_apart).
  ScheduleFreeRule(const RunConfig::Optimizer& config, const ParamStore& store,
                   std::span<const UpdatedParam> params);
  /// What it takes beside the store: y of one parameter, where products read codes of it.
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params, const StoreLayout& values);

  void step(Context& context, const UpdateStep& step) override;
  void step(Context& context, const UpdateStep& step, BlockMeter& meter) override;
  void step_undoable(Context& context, const UpdateStep& step) override;
  void undo(Context& context) override;

  void refresh_copies(Context& context) override;
  TensorView read_value(Context& context, ParamIndex index) override;
  void save(Json& scalars) const override;
  void restore(const Json& scalars) override;

 private:
  /// A step weighs as much as the square of the largest rate so far: the last one 1, the sum is in
  /// that unit. A factor of a group's rate would be one of all its weights.
  struct Weights {
    double lr_max = 0, sum = 0;
    void add(double lr);
  };
  void update(Context& context, std::span<const UpdateTensor> tensors,
              const UpdateStep& step) const override;

  Weights weights_, kept_weights_;    // the latter of before the step that can be undone
  std::vector<UpdateTensor> copied_;  // those with copies
  Buffer read_;
};

}  // namespace trireme
