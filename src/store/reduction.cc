#include "store/reduction.h"

#include <array>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "tensor/transfer.h"

namespace trireme {

GradientReduction::GradientReduction(Context& context, ParamStore& store,
                                     const std::vector<ReductionChannels>& channels, DType wire)
    : context_(context), store_(store), started_(static_cast<std::size_t>(store.block_count())) {
  const StoreLayout& layout = store.gradients().layout();
  for (const ReductionChannels& of_view : channels) {
    if (!layout.has(of_view.view)) continue;
    Group& group = groups_.emplace_back(Group{of_view, std::nullopt});
    if (has_buckets(layout, of_view.view, wire)) {
      std::array<Communicator*, 2> used{&of_view.shards, &of_view.replicas};
      if (used[0]->size() == 1) std::swap(used[0], used[1]);  // who moves data takes the memory
      group.buckets.emplace(context, layout, of_view.view, wire_of(layout, of_view.view, wire),
                            used);
    }
    RowGradient* rows = store.gradients().rows();
    expect(rows == nullptr || wire == DType::kF32, "rows of gradients are not rounded");
    if (rows != nullptr && of_view.view == MeshView::kDense && of_view.replicas.size() > 1)
      row_sum_.emplace(context, *rows, of_view.replicas);
  }
  pending_.reserve(groups_.size() * static_cast<std::size_t>(store.block_count()));
}

std::int64_t GradientReduction::buffer_bytes(const std::vector<ParamMeta>& params,
                                             const StoreLayout& layout, DeviceKind device,
                                             DType wire) {
  std::int64_t bytes = 0;
  for (const MeshView view : kMeshViews) {
    if (layout.has(view) && has_buckets(layout, view, wire))
      bytes += Buckets::bytes_of(layout, {view, wire_of(layout, view, wire), device});
  }
  const ParamMeta& first = params.front();
  if (first.looked_up_most == 0) return bytes;
  const Shape& rows = layout.local_shape(0);
  return bytes + RowSum::buffer_bytes(rows[0], rows[1], first.looked_up_most,
                                      layout.distribution(MeshView::kDense).replica.extent);
}

DType GradientReduction::wire_of(const StoreLayout& layout, MeshView view, DType wire) {
  const Distribution& ranks = layout.distribution(view);
  return ranks.shard.extent * ranks.replica.extent == 1 ? DType::kF32 : wire;
}

void GradientReduction::begin_step() { started_.assign(started_.size(), 0); }

void GradientReduction::start(int block) {
  for (Group& group : groups_) {
    if (group.buckets) {
      start_buckets(group, block);
    } else {
      start_whole(group, block);
    }
  }
  started_[static_cast<std::size_t>(block)] = 1;
}

void GradientReduction::start_whole(const Group& group, int block) {
  if (group.channels.replicas.size() == 1) return;
  const TensorView gradients = store_.gradients().block(block, group.channels.view);
  if (gradients.count() > 0)
    pending_.push_back(group.channels.replicas.start_all_reduce(gradients));
  if (row_sum_ && block == 0 && group.channels.view == MeshView::kDense) row_sum_->start();
}

void GradientReduction::start_buckets(Group& group, int block) {
  const auto finish = [&](Buckets::Bucket& bucket) { finish_bucket(group, bucket); };
  const TensorView gradients = store_.gradients().block(block);
  group.buckets->for_each_part(block, [&](Slice part) {
    Buckets::Bucket& bucket = group.buckets->take(block, part, finish);
    bucket.first = started_[static_cast<std::size_t>(block)] == 0;
    group.buckets->pack(context_, bucket, gradients);
    bucket.transfer = group.channels.shards.size() == 1
                          ? group.channels.replicas.start_all_reduce(bucket.shards)
                          : group.channels.shards.start_reduce_scatter(bucket.shards);
  });
}

void GradientReduction::finish_bucket(const Group& group, Buckets::Bucket& bucket) {
  const StoreLayout& layout = store_.gradients().layout();
  const MeshView view = group.channels.view;
  const int mine = layout.distribution(view).shard.index;
  const TensorView sum = bucket.shard_of(mine);
  if (group.channels.shards.size() > 1 && group.channels.replicas.size() > 1)
    group.channels.replicas.start_all_reduce(sum).wait();
  if (layout.distribution().accumulates_locally()) {
    group.buckets->unpack(context_, store_.gradients().block(bucket.block), bucket, mine);
    return;
  }
  const TensorView owned =
      store_.gradients().block_shard(bucket.block, view).rows(bucket.part.begin, bucket.part.size);
  if (bucket.first) return cast(context_, owned, sum);
  accumulate(context_, owned, sum);
}

void GradientReduction::finish() {
  for (Pending& transfer : pending_) transfer.wait();
  pending_.clear();
  if (row_sum_) row_sum_->finish();
  for (Group& group : groups_) {
    if (!group.buckets) continue;
    group.buckets->finish_until([&](Buckets::Bucket& bucket) { finish_bucket(group, bucket); },
                                [] { return false; });
  }
  if (store_.layout().sharded()) store_.gradients().add_tied_sums(context_);
}

}  // namespace trireme
