#include "parallel/reduction.h"

#include "kernels/elementwise/elementwise.h"
#include "tensor/transfer.h"

namespace trireme {

GradientReduction::GradientReduction(Context& context, ParamStore& store,
                                     const ReductionChannels& channels)
    : context_(context),
      store_(store),
      channels_(channels),
      started_(static_cast<std::size_t>(store.block_count())) {
  pending_.reserve(static_cast<std::size_t>(store.block_count()));
  if (store.layout().sharded()) buckets_.emplace(store.layout(), DType::kF32, context.device());
  if (store.row_gradient() != nullptr && channels.copies.size() > 1)
    row_sum_.emplace(context, *store.row_gradient(), channels.copies);
}

std::int64_t GradientReduction::buffer_bytes(const std::vector<ParamMeta>& params,
                                             const StoreLayout& layout) {
  if (layout.sharded()) return Buckets::bytes_of(layout, DType::kF32);
  const ParamMeta& first = params.front();
  if (first.looked_up_most == 0) return 0;
  return RowSum::buffer_bytes(first.shape[1], first.looked_up_most, layout.place().copy.extent);
}

void GradientReduction::begin_step() { started_.assign(started_.size(), 0); }

void GradientReduction::start(int block) {
  if (buckets_) return start_shards(block);
  if (channels_.copies.size() == 1) return;
  const TensorView gradients = store_.block_gradients(block);
  if (gradients.count() > 0) pending_.push_back(channels_.copies.start_all_reduce(gradients));
  if (row_sum_ && block == 0) row_sum_->start();
}

void GradientReduction::start_shards(int block) {
  const StoreLayout& layout = store_.layout();
  const auto finish = [this](Buckets::Bucket& bucket) { finish_bucket(bucket); };
  const TensorView gradients = store_.block_gradients(block);
  char& started = started_[static_cast<std::size_t>(block)];
  buckets_->for_each_part(block, [&](Piece part) {
    Buckets::Bucket& bucket = buckets_->take(block, part, finish);
    bucket.first = started == 0;
    for (int owner = 0; owner < layout.place().shard.extent; ++owner) {
      const TensorView piece = bucket.piece(owner);
      layout.for_each_run(
          block, owner, part, [&](std::int64_t local, std::int64_t shard, std::int64_t count) {
            copy_elements(context_, piece, shard - part.begin, gradients, local, count);
          });
    }
    bucket.transfer = channels_.shards.start_reduce_scatter(bucket.pieces);
  });
  started = 1;
}

void GradientReduction::finish_bucket(Buckets::Bucket& bucket) {
  const StoreLayout& layout = store_.layout();
  const int mine = layout.place().shard.index;
  const TensorView sum = bucket.piece(mine);
  if (channels_.copies.size() > 1) channels_.copies.start_all_reduce(sum).wait();
  if (store_.keeps_gradients()) {
    const TensorView gradients = store_.block_gradients(bucket.block);
    layout.for_each_run(bucket.block, mine, bucket.part,
                        [&](std::int64_t local, std::int64_t shard, std::int64_t count) {
                          copy_elements(context_, gradients, local, sum, shard - bucket.part.begin,
                                        count);
                        });
    return;
  }
  const TensorView owned =
      store_.block_gradient_shard(bucket.block).rows(bucket.part.begin, bucket.part.size);
  if (bucket.first) return copy_bytes(context_, owned.data, sum.data, sum.bytes());
  accumulate(context_, owned, sum);
}

void GradientReduction::finish() {
  for (Pending& transfer : pending_) transfer.wait();
  pending_.clear();
  if (row_sum_) row_sum_->finish();
  if (!buckets_) return;
  buckets_->finish_until([this](Buckets::Bucket& bucket) { finish_bucket(bucket); },
                         [] { return false; });
  store_.add_tied_sums(context_);
}

}  // namespace trireme
