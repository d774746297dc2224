#pragma once

#include <vector>

#include "comm/communicator.h"
#include "store/param_store.h"

namespace trireme {

/// Sums partial gradients over tensor-parallel ranks: of parameters that several of them hold, each
/// with the tokens or heads of its own. Few and small: one all-reduce a step, after the sum over
/// the ranks that see other tokens; ranks of a tensor group own the same rows.
class PartialGradients {
 public:
  /// `group`: the whole tensor axis, for parameters that it does not shard; those of its ranks that
  /// hold the same key and value heads, for parameters split into fewer shards; or the ranks that
  /// have parts of the same experts, for what of these is whole on each.
  enum class Of : std::uint8_t { kTensorAxis, kSameHeads, kExpertTensor };
  PartialGradients(Context& context, ParamStore& store, Of which, bool tokens_are_cut,
                   Communicator& group);
  /// Bytes of the all-reduce.
  static std::int64_t bytes_of(const std::vector<ParamMeta>& params, const StoreLayout& layout,
                               Of which, bool tokens_are_cut);
  void sum();

 private:
  Context& context_;
  Communicator& group_;
  std::vector<TensorView> gradients_;
  Buffer packed_;
};

}  // namespace trireme
