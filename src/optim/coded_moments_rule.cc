#include "optim/coded_moments_rule.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/elementwise.h"
#include "store/joined_maxima.h"
#include "store/moment_blocks.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

std::int64_t moments_of(OptimizerKind kind) { return kind == OptimizerKind::kLion ? 1 : 2; }

std::size_t at(ParamIndex index) { return static_cast<std::size_t>(index); }

/// Maxima that the ranks of a view join: of all moments of the crossed parameters, and as many more
/// as make parts of them equal along both axes.
std::int64_t joined_count(OptimizerKind kind, const std::vector<ParamMeta>& params,
                          const ParamDistribution& distribution, MeshView view) {
  const Distribution& ranks = distribution.of(view);
  std::int64_t count = 0;
  for (const ParamMeta& param : params) {
    const bool taken = param.view == view && param.trainable && param.shares == kNoParam &&
                       CodedMomentsRule::takes(param);
    if (!taken) continue;
    const ParamMeta blocks = moment_blocks_of(param, ranks);
    if (blocks.ownership == Ownership::kEveryRank) count += blocks.shape.count();
  }
  return round_up(moments_of(kind) * count, std::int64_t{ranks.tensor.extent} * ranks.shard.extent);
}

/// Room for what the other ranks of an axis have of this rank's part.
std::int64_t received_count(std::int64_t joined, const Distribution& ranks) {
  std::int64_t most = 0;
  for (const std::int64_t extent : {ranks.tensor.extent, ranks.shard.extent})
    most = std::max(most, joined / extent * (extent - 1));
  return most;
}

}  // namespace

bool CodedMomentsRule::takes(const ParamMeta& param) { return has_8bit_moments(param); }

std::vector<OptimizerState> CodedMomentsRule::states(OptimizerKind kind) {
  std::vector<OptimizerState> states;
  for (const char* name : {"exp_avg", "exp_avg_sq"}) {
    if (kind == OptimizerKind::kLion && !states.empty()) break;
    states.push_back({name, DType::kU8, takes});
    states.push_back({std::string(name) + "_absmax", DType::kF32, takes, StateOf::kMomentBlocks});
  }
  return states;
}

std::int64_t CodedMomentsRule::buffer_bytes(OptimizerKind kind,
                                            const std::vector<ParamMeta>& params,
                                            const ParamDistribution& distribution) {
  std::int64_t maxima = 0, received = 0;
  for (const MeshView view : kMeshViews) {
    const std::int64_t joined = joined_count(kind, params, distribution, view);
    maxima += joined;
    received = std::max(received, received_count(joined, distribution.of(view)));
  }
  return static_cast<std::int64_t>(sizeof(std::int32_t)) * (maxima + received);
}

UpdateRule::Sent CodedMomentsRule::bytes_sent(OptimizerKind kind,
                                              const std::vector<ParamMeta>& params,
                                              const ParamDistribution& distribution,
                                              MeshView view) {
  const std::int64_t joined = joined_count(kind, params, distribution, view);
  const Distribution& ranks = distribution.of(view);
  return {joined_maxima_bytes_sent(joined, ranks.tensor.extent),
          joined_maxima_bytes_sent(joined, ranks.shard.extent)};
}

CodedMomentsRule::CodedMomentsRule(OptimizerKind kind, const RunConfig::Optimizer& config,
                                   const ParamStore& store, std::span<const UpdatedParam> params,
                                   const ViewChannels& channels)
    : kind_(kind),
      constants_{config.betas->front(), config.betas->back(), config.eps.value_or(0)},
      channels_(channels) {
  const ParamDistribution& distribution = store.layout().distribution();
  std::int64_t end = 0, received = 0;
  for (const MeshView view : kMeshViews) {
    const std::int64_t size = joined_count(kind, store.params(), distribution, view);
    of_view_[static_cast<std::size_t>(view)] = {end, size};
    received = std::max(received, received_count(size, distribution.of(view)));
    end += size;
  }
  const Device device = store.device();
  if (end > 0) maxima_ = Buffer(DType::kI32, {end}, device);
  if (received > 0) received_ = Buffer(DType::kI32, {received}, device);
  std::array<std::int64_t, kMeshViews.size()> used{};
  for (const UpdatedParam& param : params) {
    const auto view = static_cast<std::size_t>(store.params()[at(param.index)].view);
    add(store, param, used[view]);
  }
  for (Crossed& crossed : crossed_) {
    crossed.tensor.parts = crossed.parts;
    if (!crossed.parts.empty()) parts_.push_back(crossed.tensor);
  }
}

void CodedMomentsRule::add(const ParamStore& store, const UpdatedParam& param,
                           std::int64_t& maxima) {
  const ParamIndex index = param.index;
  const ParamMeta& meta = store.params()[at(index)];
  const StoreLayout& layout = store.layout();
  const Distribution& ranks = layout.distribution(index);
  CodedTensor tensor;
  tensor.parameter = store.value(index);
  tensor.copy = store.copy(index);
  tensor.gradient = store.gradients().owned(index);
  tensor.gradient_slots = store.gradients().slots(index);
  tensor.weight_decay = param.weight_decay;
  tensor.lr_scale = param.lr_scale;
  const auto moment = [&](const char* name) -> CodedMoment {
    const std::string absmax = std::string(name) + "_absmax";
    return {store.optimizer_state(name, index), store.optimizer_state(absmax, index), {}};
  };
  tensor.exp_avg = moment("exp_avg");
  if (moments_of(kind_) > 1) tensor.exp_avg_sq = moment("exp_avg_sq");
  if (moment_blocks_of(meta, ranks).ownership != Ownership::kEveryRank) {
    if (tensor.parameter.count() == 0) return;
    whole_.push_back(tensor);
    indices_.push_back(index);
    return;
  }
  const std::int64_t begin = of_view_[static_cast<std::size_t>(meta.view)].begin;
  for (CodedMoment* each : {&tensor.exp_avg, &tensor.exp_avg_sq}) {
    if (!each->absmax.given()) continue;
    const std::int64_t blocks = each->absmax.count();
    each->next = maxima_.view().rows(begin + maxima, blocks);
    maxima += blocks;
  }
  Crossed crossed{tensor, {}, index};
  const std::int64_t columns = meta.shape.rank() == 2 ? meta.shape[1] : 1;
  for (const CutPart& part :
       rows_of_parts(local_parts(meta.shape, meta.cut, ranks.tensor), layout.owned(index))) {
    const bool matrix = meta.shape.rank() == 2;
    crossed.parts.push_back({{part.at[0], part.box.shape[0]},
                             {matrix ? part.at[1] : 0, matrix ? part.box.shape[1] : 1},
                             part.box.offset[0] * columns + (matrix ? part.box.offset[1] : 0),
                             columns});
  }
  crossed_.push_back(std::move(crossed));
}

void CodedMomentsRule::run(Context& context, std::span<const CodedTensor> tensors,
                           const UpdateStep& step, Pass pass) const {
  if (tensors.empty()) return;
  const auto [beta1, beta2, eps] = constants_;
  if (kind_ == OptimizerKind::kLion) {
    const auto op = pass == Pass::kMaxima ? lion_8bit_maxima : lion_8bit_update;
    return op(context, tensors, {beta1, beta2}, step.lr, step.gradient_scale);
  }
  const auto t = static_cast<double>(step.applied);
  const auto op = pass == Pass::kMaxima ? adamw_8bit_maxima : adamw_8bit_update;
  op(context, tensors, constants_,
     {step.lr, 1 - std::pow(beta1, t), 1 - std::pow(beta2, t), step.gradient_scale});
}

void CodedMomentsRule::find_maxima(Context& context, const UpdateStep& step) {
  if (crossed_.empty()) return;
  clear(context, maxima_.view());
  run(context, parts_, step, Pass::kMaxima);
  for (const MeshView view : kMeshViews) {
    const Slice of = of_view_[static_cast<std::size_t>(view)];
    const UpdateChannels& channels = channels_[static_cast<std::size_t>(view)];
    for (Communicator* ranks : {channels.tensor, channels.shard}) {
      if (of.size == 0 || ranks == nullptr || ranks->size() == 1) continue;
      join_maxima_of_ranks(context, *ranks, maxima_.view().rows(of.begin, of.size),
                           received_.view());
    }
  }
}

void CodedMomentsRule::take_maxima(Context& context) const {
  for (const Crossed& crossed : crossed_) {
    for (const CodedMoment& moment : {crossed.tensor.exp_avg, crossed.tensor.exp_avg_sq}) {
      if (moment.next.given())
        copy_bytes(context, moment.absmax.data, moment.next.data, moment.next.bytes());
    }
  }
}

void CodedMomentsRule::step(Context& context, const UpdateStep& step) {
  run(context, whole_, step, Pass::kUpdate);
  find_maxima(context, step);
  run(context, parts_, step, Pass::kUpdate);
  take_maxima(context);
}

void CodedMomentsRule::step(Context& context, const UpdateStep& step, BlockMeter& meter) {
  const auto measured = [&](const CodedTensor& tensor, ParamIndex index) {
    meter.measure(context, index, tensor.parameter, [&] {
      run(context, {&tensor, 1}, step, Pass::kUpdate);
    });
  };
  for (std::size_t i = 0; i < whole_.size(); ++i) measured(whole_[i], indices_[i]);
  find_maxima(context, step);
  for (const Crossed& crossed : crossed_)
    if (!crossed.parts.empty()) measured(crossed.tensor, crossed.index);
  take_maxima(context);
}

std::vector<TensorView> CodedMomentsRule::changed() const {
  std::vector<TensorView> views;
  const auto add_changed = [&](const CodedTensor& tensor) {
    for (const TensorView& view : {tensor.parameter, tensor.exp_avg.codes, tensor.exp_avg.absmax,
                                   tensor.exp_avg_sq.codes, tensor.exp_avg_sq.absmax}) {
      if (view.given() && view.count() > 0) views.push_back(view);
    }
  };
  for (const CodedTensor& tensor : whole_) add_changed(tensor);
  for (const Crossed& crossed : crossed_) add_changed(crossed.tensor);
  return views;
}

}  // namespace trireme
