#include "optim/optimizer.h"

#include <algorithm>
#include <array>
#include <span>

#include "kernels/elementwise/elementwise.h"
#include "kernels/grad_norm/grad_norm.h"
#include "optim/elementwise_rule.h"
#include "optim/muon_rule.h"

namespace trireme {

namespace {

/// A vector is so many rows: its elements are dealt out to ranks like the rows of a matrix.
ConstTensorView as_rows(const TensorView& gradient) {
  return gradient.shape.rank() == 1 ? gradient.reshape({gradient.shape[0], 1}) : gradient;
}

}  // namespace

ExactSum sum_of_squares(Context& context, const ParamStore& store) {
  // Many at a time, so that a GPU is waited for seldom; and no call takes memory.
  constexpr std::size_t kMany = 512;
  std::array<ConstTensorView, kMany> gradients;
  const std::size_t count = store.params().size();
  ExactSum sum;
  for (std::size_t first = 0; first < count; first += kMany) {
    const std::size_t part = std::min(kMany, count - first);
    for (std::size_t i = 0; i < part; ++i)
      gradients[i] = as_rows(store.gradients().counted(static_cast<ParamIndex>(first + i)));
    grad_norm_accumulate(context, sum, std::span<const ConstTensorView>(gradients.data(), part));
  }
  return sum;
}

std::string first_non_finite_gradient(Context& context, const ParamStore& store, int block) {
  const ParamRange range = store.layout().block_params(block);
  for (ParamIndex i = range.first; i <= range.last; ++i) {
    ExactSum sum;  // squares of finite f32 are finite in f64
    const ConstTensorView gradient = store.gradients().written(i);
    grad_norm_accumulate(context, sum, {&gradient, 1});
    if (sum.non_finite()) return store.params()[static_cast<std::size_t>(i)].name;
  }
  return "";
}

double clip_coefficient(double norm, double limit) {
  return limit <= 0 ? 1 : std::min(1.0, limit / (norm + 1e-6));
}

namespace {

/// What an update keeps of parameters, without the average.
std::vector<OptimizerState> states_of(const RunConfig::Optimizer& config) {
  if (config.kind != OptimizerKind::kMuon) return ElementwiseRule::states(config.kind);
  std::vector<OptimizerState> states = ElementwiseRule::states(OptimizerKind::kAdamW);
  for (OptimizerState& state : states)
    state.has = [](const ParamMeta& param) { return !param.matrix; };
  states.push_back(
      {MuonRule::kState, DType::kF32, [](const ParamMeta& param) { return param.matrix; }});
  return states;
}

std::vector<std::unique_ptr<UpdateRule>> make_rules(const RunConfig::Optimizer& config,
                                                    const ParamStore& store,
                                                    const ViewChannels& channels) {
  std::vector<UpdatedParam> params, matrices;
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(index)];
    if (!store.has_value(index) || !param.trainable) continue;
    const bool whole = config.kind == OptimizerKind::kMuon && param.matrix;
    (whole ? matrices : params)
        .push_back({index, param.weight_decay.value_or(param.decay ? config.weight_decay : 0),
                    param.lr_scale});
  }
  std::vector<std::unique_ptr<UpdateRule>> rules;
  if (config.kind == OptimizerKind::kMuon) {
    rules.push_back(std::make_unique<MuonRule>(config, store, matrices, channels));
    rules.push_back(
        std::make_unique<ElementwiseRule>(OptimizerKind::kAdamW, config, store, params));
  } else {
    rules.push_back(std::make_unique<ElementwiseRule>(config.kind, config, store, params));
  }
  return rules;
}

}  // namespace

StoreContents Optimizer::contents(const RunConfig::Optimizer& config) {
  StoreContents contents{true, states_of(config)};
  if (config.ema > 0) contents.states.push_back({kAverageState});
  return contents;
}

double Optimizer::bytes_of_update(const RunConfig::Optimizer& config) {
  // A gradient is cleared, read for the norm and for the update; values and states are read and
  // written.
  double bytes = 12 + 8 + (config.ema > 0 ? 12 : 0);
  // Most elements are matrices': their momentum, and an update in bf16 that comes and goes.
  if (config.kind == OptimizerKind::kMuon) return bytes + 8 + 8;
  for (const OptimizerState& state : states_of(config))
    bytes += 2 * static_cast<double>(size_of(state.dtype));
  return bytes;
}

std::int64_t Optimizer::buffer_bytes(const RunConfig::Optimizer& config,
                                     const std::vector<ParamMeta>& params,
                                     const ParamDistribution& distribution, DType compute) {
  if (config.kind != OptimizerKind::kMuon) return 0;
  return MuonRule::buffer_bytes(params, distribution, compute);
}

BlockMeter::Piece Optimizer::piece(const RunConfig::Optimizer& /*config*/) {
  return BlockMeter::Piece::kRows;
}

Optimizer::Optimizer(const RunConfig::Optimizer& config, const ParamStore& store,
                     const ViewChannels& channels)
    : decay_of_averages_(config.ema), rules_(make_rules(config, store, channels)) {
  if (config.ema == 0) return;
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    const bool trained = store.params()[static_cast<std::size_t>(index)].trainable;
    if (!store.has_value(index) || !trained || store.value(index).count() == 0) continue;
    averages_.push_back({store.optimizer_state(kAverageState, index), store.value(index)});
    averaged_.push_back(index);
  }
}

UpdateStep Optimizer::step_of(double lr, double gradient_scale) const {
  return {lr, static_cast<float>(gradient_scale), applied_updates_};
}

void Optimizer::step(Context& context, double lr, double gradient_scale, Undo undo) {
  if (undo == Undo::kPossible) kept_updates_ = applied_updates_;
  ++applied_updates_;
  const UpdateStep step = step_of(lr, gradient_scale);
  for (const auto& rule : rules_) {
    if (undo == Undo::kPossible) {
      rule->step_undoable(context, step);
    } else {
      rule->step(context, step);
    }
  }
}

void Optimizer::step(Context& context, double lr, double gradient_scale, BlockMeter& meter) {
  ++applied_updates_;
  meter.clear();
  for (const auto& rule : rules_) rule->step(context, step_of(lr, gradient_scale), meter);
}

void Optimizer::average(Context& context) {
  if (!averages_.empty()) average_update(context, averages_, decay_of_averages_);
}

void Optimizer::begin_averages(Context& context, const std::function<bool(ParamIndex)>& of) {
  for (std::size_t i = 0; i < averages_.size(); ++i) {
    if (of(averaged_[i])) cast(context, averages_[i].average, averages_[i].parameter);
  }
}

void Optimizer::allow_undo(Device device) {
  for (const auto& rule : rules_) rule->allow_undo(device);
}

std::int64_t Optimizer::undo_bytes(const RunConfig::Optimizer& config,
                                   const std::vector<ParamMeta>& params,
                                   const ParamDistribution& distribution) {
  std::int64_t bytes = 0;
  const auto add = [&](const OptimizerState& state) {
    const StoreLayout layout = state_layout(params, state, distribution);
    for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
      if (params[static_cast<std::size_t>(i)].shares == kNoParam && layout.has_room(i))
        bytes += layout.owned_shape(i).count() * static_cast<std::int64_t>(size_of(state.dtype));
    }
  };
  add({});  // the values lie like a state
  for (const OptimizerState& state : states_of(config)) add(state);
  return bytes;
}

void Optimizer::undo(Context& context) {
  for (const auto& rule : rules_) rule->undo(context);
  applied_updates_ = kept_updates_;
}

}  // namespace trireme
