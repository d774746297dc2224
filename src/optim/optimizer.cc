#include "optim/optimizer.h"

#include <algorithm>
#include <array>
#include <span>

#include "kernels/elementwise/elementwise.h"
#include "kernels/grad_norm/grad_norm.h"
#include "optim/adafactor_rule.h"
#include "optim/coded_moments_rule.h"
#include "optim/elementwise_rule.h"
#include "optim/muon_rule.h"
#include "optim/schedule_free_rule.h"

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
  if (config.kind == OptimizerKind::kMuon) {
    std::vector<OptimizerState> states = ElementwiseRule::states(OptimizerKind::kAdamW);
    for (OptimizerState& state : states)
      state.has = [](const ParamMeta& param) { return !param.matrix; };
    states.push_back(
        {MuonRule::kState, DType::kF32, [](const ParamMeta& param) { return param.matrix; }});
    return states;
  }
  if (config.kind == OptimizerKind::kAdafactor) return AdafactorRule::states();
  std::vector<OptimizerState> states = ElementwiseRule::states(config.kind);
  if (config.state != MomentType::k8bit) return states;
  for (OptimizerState& state : states)
    state.has = [](const ParamMeta& param) { return !CodedMomentsRule::takes(param); };
  for (OptimizerState& state : CodedMomentsRule::states(config.kind))
    states.push_back(std::move(state));
  return states;
}

std::vector<std::unique_ptr<UpdateRule>> make_rules(const RunConfig::Optimizer& config,
                                                    const ParamStore& store,
                                                    const ViewChannels& channels) {
  const bool muon = config.kind == OptimizerKind::kMuon;
  std::vector<UpdatedParam> params, coded, matrices;
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(index)];
    if (!store.has_value(index) || !param.trainable) continue;
    const bool in_8bit = config.state == MomentType::k8bit && CodedMomentsRule::takes(param);
    (muon && param.matrix ? matrices
     : in_8bit            ? coded
                          : params)
        .push_back({index, param.weight_decay.value_or(param.decay ? config.weight_decay : 0),
                    param.lr_scale});
  }
  std::vector<std::unique_ptr<UpdateRule>> rules;
  if (muon) rules.push_back(std::make_unique<MuonRule>(config, store, matrices, channels));
  if (config.kind == OptimizerKind::kScheduleFree) {
    rules.push_back(std::make_unique<ScheduleFreeRule>(config, store, params));
  } else if (config.kind == OptimizerKind::kAdafactor) {
    rules.push_back(std::make_unique<AdafactorRule>(store, params, channels));
  } else {
    rules.push_back(std::make_unique<ElementwiseRule>(muon ? OptimizerKind::kAdamW : config.kind,
                                                      config, store, params));
  }
  if (!coded.empty())
    rules.push_back(
        std::make_unique<CodedMomentsRule>(config.kind, config, store, coded, channels));
  return rules;
}

}  // namespace

StoreContents Optimizer::contents(const RunConfig::Optimizer& config) {
  StoreContents contents{true, states_of(config)};
  if (config.ema > 0) {
    OptimizerState average{kAverageState};
    average.begins_with_value = true;
    contents.states.push_back(std::move(average));
  }
  contents.weights_apart = config.kind == OptimizerKind::kScheduleFree;
  return contents;
}

double Optimizer::bytes_of_update(const RunConfig::Optimizer& config) {
  // A gradient is cleared, read for the norm and for the update; values and states are read and
  // written.
  double bytes = 12 + 8 + (config.ema > 0 ? 12 : 0);
  // Most elements are matrices': their momentum, and an update in bf16 that comes and goes.
  if (config.kind == OptimizerKind::kMuon) return bytes + 8 + 8;
  // It reads a gradient four times and the value once more; what it keeps is of lines.
  if (config.kind == OptimizerKind::kAdafactor) return bytes + 16;
  const bool coded = config.state == MomentType::k8bit;  // of most elements
  for (const OptimizerState& state :
       coded ? CodedMomentsRule::states(config.kind) : states_of(config)) {
    const bool of_blocks = state.of == StateOf::kMomentBlocks;
    bytes += 2 * static_cast<double>(size_of(state.dtype)) / (of_blocks ? kMomentBlock : 1);
  }
  return bytes;
}

BlockMeter::Piece Optimizer::piece(const RunConfig::Optimizer& config) {
  const bool whole = config.state == MomentType::k8bit || config.kind == OptimizerKind::kAdafactor;
  return whole ? BlockMeter::Piece::kWhole : BlockMeter::Piece::kRows;
}

std::int64_t Optimizer::buffer_bytes(const RunConfig::Optimizer& config,
                                     const std::vector<ParamMeta>& params,
                                     const ParamDistribution& distribution, DType compute) {
  if (config.kind == OptimizerKind::kMuon)
    return MuonRule::buffer_bytes(params, distribution, compute);
  if (config.kind == OptimizerKind::kScheduleFree)
    return ScheduleFreeRule::buffer_bytes(params, StoreLayout(params, distribution));
  if (config.kind == OptimizerKind::kAdafactor)
    return AdafactorRule::buffer_bytes(params, StoreLayout(params, distribution));
  if (config.state != MomentType::k8bit) return 0;
  return CodedMomentsRule::buffer_bytes(config.kind, params, distribution);
}

Optimizer::Sent Optimizer::bytes_sent(const RunConfig::Optimizer& config,
                                      const std::vector<ParamMeta>& params,
                                      const ParamDistribution& distribution, MeshView view) {
  if (config.kind == OptimizerKind::kAdafactor)
    return AdafactorRule::bytes_sent(params, distribution, view);
  if (config.state != MomentType::k8bit) return {};
  return CodedMomentsRule::bytes_sent(config.kind, params, distribution, view);
}

Optimizer::Optimizer(const RunConfig::Optimizer& config, const ParamStore& store,
                     const ViewChannels& channels)
    : store_(store), decay_of_averages_(config.ema), rules_(make_rules(config, store, channels)) {
  if (config.ema == 0) return;
  for (ParamIndex index = 0; index < static_cast<int>(store.params().size()); ++index) {
    const bool trained = store.params()[static_cast<std::size_t>(index)].trainable;
    if (!store.has_value(index) || !trained || store.value(index).count() == 0) continue;
    averages_.push_back({store.optimizer_state(kAverageState, index), store.value(index)});
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

void Optimizer::begin_states(
    Context& context, const std::function<bool(const ParamMeta&, const OptimizerState&)>& of) {
  const std::vector<OptimizerState>& states = store_.contents().states;
  for (std::size_t slot = 0; slot < states.size(); ++slot) {
    if (!states[slot].begins_with_value) continue;
    for (ParamIndex i = 0; i < static_cast<int>(store_.params().size()); ++i) {
      const ParamMeta& param = store_.params()[static_cast<std::size_t>(i)];
      if (!store_.has_value(i) || !param.trainable || !of(param, states[slot])) continue;
      const TensorView state = store_.optimizer_state(slot, i);
      if (state.count() > 0) cast(context, state, store_.value(i));
    }
  }
}

void Optimizer::refresh_copies(Context& context) {
  for (const auto& rule : rules_) rule->refresh_copies(context);
}

TensorView Optimizer::read_value(Context& context, ParamIndex index) {
  for (const auto& rule : rules_) {
    if (const TensorView read = rule->read_value(context, index); read.given()) return read;
  }
  return store_.value(index);
}

void Optimizer::save(Json& scalars) const {
  for (const auto& rule : rules_) rule->save(scalars);
}

void Optimizer::restore(const Json& scalars) {
  for (const auto& rule : rules_) rule->restore(scalars);
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
