#pragma once
// Updates of each element by itself: AdamW and Lion, and what schedule-free has in common with
// them.

#include <functional>
#include <span>
#include <vector>

#include "config/run_config.h"
#include "optim/update_rule.h"

namespace trireme {

class ElementwiseRule : public UpdateRule {
 public:
  /// What it keeps of each of its parameters: exp_avg, and of AdamW exp_avg_sq; z and exp_avg_sq.
  static std::vector<OptimizerState> states(OptimizerKind kind);
  /// Of `config` it reads betas and eps. The store must outlive it and hold those states.
  ElementwiseRule(OptimizerKind kind, const RunConfig::Optimizer& config, const ParamStore& store,
                  std::span<const UpdatedParam> params);

  void step(Context& context, const UpdateStep& step) override;
  void step(Context& context, const UpdateStep& step, BlockMeter& meter) override;
  [[nodiscard]] std::vector<TensorView> changed() const override;
  /// The update itself copies what it changes.
  void allow_undo(Device device) override;
  void step_undoable(Context& context, const UpdateStep& step) override;
  void undo(Context& context) override;

 protected:
  virtual void update(Context& context, std::span<const UpdateTensor> tensors,
                      const UpdateStep& step) const;
  [[nodiscard]] const AdamWConstants& constants() const { return constants_; }
  [[nodiscard]] const std::vector<UpdateTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<ParamIndex>& indices() const { return indices_; }

 private:
  OptimizerKind kind_;
  AdamWConstants constants_;                      // of Lion the betas
  std::vector<UpdateTensor> tensors_, undoable_;  // the same, with places in kept_
  std::vector<ParamIndex> indices_;               // of each of tensors_
  Buffer kept_;
};

}  // namespace trireme
