#include <utility>

#include "base/math.h"
#include "store/moment_blocks.h"
#include "store/param_store.h"

namespace trireme {

std::string state_name(const ParamMeta& param, const OptimizerState& state) {
  if (state.name == kAverageState) return average_name(param.name);
  return fmt::format("optimizer/{}/{}", param.name, state.name);
}

namespace {

enum class Of : std::uint8_t { kSaved, kBase };

/// Which of the ranks of its stage that hold the same box this one is, and of how many.
AxisRank copy_of(const ParamMeta& param, const Distribution& ranks) {
  const int same_part = param.cut.replicas(ranks.tensor.extent);
  AxisRank copy{same_part * ranks.replica.extent,
                ranks.tensor.index % same_part * ranks.replica.extent + ranks.replica.index};
  if (param.ownership != Ownership::kEveryRank) return copy;
  return {copy.extent * ranks.shard.extent, copy.index * ranks.shard.extent + ranks.shard.index};
}

/// How values (slot -1) or a state lie.
struct Lying {
  const std::vector<ParamMeta>& params;
  const StoreLayout& layout;
};

/// `lying(slot, index)`; `data_of(slot, index)`: the owned rows or null. Of `count` parameters.
template <class LyingOf, class DataOf>
State state_of(std::size_t count, const std::vector<OptimizerState>& states, Of which,
               const LyingOf& lying, const DataOf& data_of) {
  State state;
  const auto add = [&](int slot, ParamIndex index) {
    const auto& [params, layout] = lying(slot, index);
    const ParamMeta& param = params[static_cast<std::size_t>(index)];
    if (param.shares != kNoParam || param.base != (which == Of::kBase)) return;
    const Distribution& ranks = layout.distribution(index);
    const AxisRank copy = copy_of(param, ranks);
    const Shape owned = layout.owned_shape(index);
    const std::int64_t row = owned.count() == 0 ? 0 : owned.count() / owned[0];
    const OptimizerState* of_optimizer =
        slot < 0 ? nullptr : &states[static_cast<std::size_t>(slot)];
    std::byte* data = data_of(slot, index);
    const auto parts =
        rows_of_parts(local_parts(param.shape, param.cut, ranks.tensor), layout.owned(index));
    for (const CutPart& part : parts) {
      StateTensor tensor;
      tensor.name =
          of_optimizer == nullptr ? "parameters/" + param.name : state_name(param, *of_optimizer);
      tensor.dtype = of_optimizer == nullptr ? DType::kF32 : of_optimizer->dtype;
      tensor.global_shape = param.shape;
      tensor.box = part.box;
      const std::int64_t column = part.at.rank() == 2 ? part.at[1] : 0;
      if (data != nullptr) {
        tensor.data =
            data + static_cast<std::size_t>(part.at[0] * row + column) * size_of(tensor.dtype);
      }
      tensor.row_stride = row;
      tensor.replica = param.tied_rank.index * copy.extent + copy.index;
      tensor.replicas = param.tied_rank.extent * copy.extent;
      state.tensors.push_back(std::move(tensor));
    }
  };
  const auto end = static_cast<int>(count);
  for (ParamIndex i = 0; i < end; ++i) add(-1, i);
  for (ParamIndex i = 0; i < end; ++i)
    for (int slot = 0; slot < static_cast<int>(states.size()); ++slot) add(slot, i);
  return state;
}

}  // namespace

State ParamStore::state() const {
  return state_of(
      params_.size(), contents_.states, Of::kSaved,
      [this](int slot, ParamIndex) -> Lying {
        if (slot < 0) return {params_, layout_};
        const StoredState& state = states_[static_cast<std::size_t>(slot)];
        return {state.params, state.layout};
      },
      [this](int slot, ParamIndex index) -> std::byte* {
        if (slot < 0) return value(index).data;
        const auto at = static_cast<std::size_t>(slot);
        return states_[at].layout.has_room(index) ? optimizer_state(at, index).data : nullptr;
      });
}

State ParamStore::base_state(const std::function<std::byte*(ParamIndex)>& rows_of) const {
  return state_of(
      params_.size(), {}, Of::kBase,
      [this](int, ParamIndex index) -> Lying {
        return {params_, base_layout(index)};
      },
      [&](int, ParamIndex index) { return rows_of(index); });
}

namespace {

/// Of a matrix its rows (dim 0) or columns as a vector.
ParamMeta lines_of(ParamMeta param, int dim) {
  param.shape = {param.shape[dim]};
  if (param.cut.dim != dim) param.cut = {};
  param.cut.dim = 0;
  param.fuse = Fuse::kNo;
  param.row_alignment = 1;
  if (dim == 1) param.ownership = Ownership::kEveryRank;
  return param;
}

ParamMeta as_state(const ParamMeta& param, StateOf of, const ParamDistribution& distribution) {
  switch (of) {
    case StateOf::kElements:
      return param;
    case StateOf::kRows:
      return lines_of(param, 0);
    case StateOf::kColumns:
      return lines_of(param, 1);
    case StateOf::kMomentBlocks:
      return moment_blocks_of(param, distribution.of(param.view));
  }
  throw InternalError("a state of nothing");
}

}  // namespace

std::vector<ParamMeta> params_of_state(const std::vector<ParamMeta>& params,
                                       const OptimizerState& state,
                                       const ParamDistribution& distribution) {
  std::vector<ParamMeta> of_state;
  for (const ParamMeta& param : params) {
    const bool has = param.trainable && (!state.has || state.has(param));
    of_state.push_back(has ? as_state(param, state.of, distribution) : param);
    of_state.back().trainable = has;
  }
  return of_state;
}

StoreLayout state_layout(const std::vector<ParamMeta>& params, const OptimizerState& state,
                         const ParamDistribution& distribution) {
  return {params_of_state(params, state, distribution), distribution, StoreLayout::Of::kGradients};
}

State state_boxes(const std::vector<ParamMeta>& params, const std::vector<OptimizerState>& states,
                  const ParamDistribution& distribution) {
  const StoreLayout values(params, distribution);
  std::vector<std::pair<std::vector<ParamMeta>, StoreLayout>> of_states;
  for (const OptimizerState& state : states) {
    std::vector<ParamMeta> of_state = params_of_state(params, state, distribution);
    StoreLayout layout(of_state, distribution, StoreLayout::Of::kGradients);
    of_states.emplace_back(std::move(of_state), std::move(layout));
  }
  return state_of(
      params.size(), states, Of::kSaved,
      [&](int slot, ParamIndex) -> Lying {
        if (slot < 0) return {params, values};
        const auto& [of_state, layout] = of_states[static_cast<std::size_t>(slot)];
        return {of_state, layout};
      },
      [](int, ParamIndex) -> std::byte* { return nullptr; });
}

}  // namespace trireme
