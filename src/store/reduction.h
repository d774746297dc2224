#pragma once

#include <optional>
#include <vector>

#include "store/buckets.h"
#include "store/param_store.h"
#include "store/row_gradient.h"

namespace trireme {

/// The ranks that the gradients of a view's parameters are summed over, each a channel of its own
/// for the memory that the store is in. `shards` hold one full copy of the model; `replicas` hold
/// the same shard (alone where there is one copy; at stage 0 they are all).
struct ReductionChannels {
  MeshView view;
  Communicator& shards;
  Communicator& replicas;
};

/// Sums the gradients of the ranks that see different tokens, block by block, while backward goes
/// on. The loss is already divided by the targets of the global batch, so a plain sum is the
/// gradient of that loss. Every rank starts the blocks in the same order.
///
/// Stage 0: the whole block, once a step; of an embedding held as rows, those. Stage 1: each owner
/// gets its rows of that sum, same bits. Stages 2, 3: so for each micro-batch, in order.
class GradientReduction {
 public:
  /// `channels`: of each view that has parameters.
  GradientReduction(Context& context, ParamStore& store,
                    const std::vector<ReductionChannels>& channels);
  /// What it takes besides the store.
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params, const StoreLayout& layout,
                                   DeviceKind device);

  /// A step begins: sums of earlier ones are forgotten.
  void begin_step();
  /// The gradients of `block` are final here: of the step, or at stages 2 and 3 of a micro-batch.
  void start(int block);
  /// Blocks until every started block is summed where its owner reads it.
  void finish();

 private:
  struct Group {  // of the parameters of one view
    ReductionChannels channels;
    std::optional<Buckets> buckets;  // from stage 1
  };
  void start_whole(const Group& group, int block);
  void start_shards(Group& group, int block);
  void finish_bucket(const Group& group, Buckets::Bucket& bucket);

  Context& context_;
  ParamStore& store_;
  std::vector<Group> groups_;
  std::vector<Pending> pending_;   // stage 0
  std::optional<RowSum> row_sum_;  // likewise, where the store has a gradient in rows
  std::vector<char> started_;      // blocks of which this step has started a sum
};

}  // namespace trireme
