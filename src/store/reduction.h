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
///
/// bf16 on the wire: each rank's gradient is rounded, the ranks' are added as the channels add bf16
/// (in fp32, rounded once; NCCL's may round at every term), and the sum goes on in fp32.
class GradientReduction {
 public:
  /// `channels`: of each view that has parameters. `wire`: f32|bf16; with bf16 no gradient is held
  /// as rows.
  GradientReduction(Context& context, ParamStore& store,
                    const std::vector<ReductionChannels>& channels, DType wire = DType::kF32);
  /// What it takes besides the store.
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params, const StoreLayout& layout,
                                   DeviceKind device, DType wire = DType::kF32);
  /// How the gradients of a view travel: in `wire`, or, where a rank is alone, as they are.
  static DType wire_of(const StoreLayout& layout, MeshView view, DType wire);
  /// Whether they go by way of buckets: shards do, and all that is rounded on the way.
  static bool has_buckets(const StoreLayout& layout, MeshView view, DType wire) {
    return layout.sharded() || wire_of(layout, view, wire) != DType::kF32;
  }

  /// A step begins: sums of earlier ones are forgotten.
  void begin_step();
  /// The gradients of `block` are final here: of the step, or at stages 2 and 3 of a micro-batch.
  void start(int block);
  /// Blocks until every started block is summed where its owner reads it.
  void finish();

 private:
  struct Group {  // of the parameters of one view
    ReductionChannels channels;
    std::optional<Buckets> buckets;
  };
  void start_whole(const Group& group, int block);
  void start_buckets(Group& group, int block);
  void finish_bucket(const Group& group, Buckets::Bucket& bucket);

  Context& context_;
  ParamStore& store_;
  std::vector<Group> groups_;
  std::vector<Pending> pending_;   // without buckets
  std::optional<RowSum> row_sum_;  // likewise, where the store has a gradient in rows
  std::vector<char> started_;      // blocks of which this step has started a sum
};

}  // namespace trireme
