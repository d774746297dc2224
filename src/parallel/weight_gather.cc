#include "parallel/weight_gather.h"

#include <utility>

#include "tensor/transfer.h"

namespace trireme {

namespace {

// Stage 3: the embedding has a place of its own, as a tied head needs it beside its own block;
// other blocks take two places in turns.
constexpr int kPlaces = 3;
int place_of(int block) { return block == 0 ? 0 : 1 + block % 2; }

struct PlaceSizes {
  std::int64_t size[kPlaces];
  [[nodiscard]] std::int64_t begin(int place) const {
    std::int64_t sum = 0;
    for (int i = 0; i < place; ++i) sum += size[i];
    return sum;
  }
};

PlaceSizes place_sizes(const StoreLayout& layout) {
  PlaceSizes sizes{};
  for (int place = 0; place < kPlaces; ++place)
    sizes.size[place] = layout.largest_block(
        [&](int block) { return block < layout.valued_blocks() && place_of(block) == place; });
  return sizes;
}

std::int64_t place_elements(const StoreLayout& layout) {
  return layout.place().zero_stage == 3 ? place_sizes(layout).begin(kPlaces) : 0;
}

std::byte* element(const TensorView& flat, std::int64_t index) {
  return flat.data + static_cast<std::size_t>(index) * size_of(flat.dtype);
}

}  // namespace

WeightGather::WeightGather(Context& context, ParamStore& store, Communicator& shards)
    : context_(context),
      store_(store),
      shards_(shards),
      buckets_(store.layout(), store.compute(), context.device()),
      blocks_(static_cast<std::size_t>(store.layout().valued_blocks())) {
  const StoreLayout& layout = store.layout();
  if (layout.place().zero_stage == 3) {
    memory_ = Buffer(store.compute(), {place_elements(layout)}, context.device());
    holder_.assign(kPlaces, -1);
    const PlaceSizes sizes = place_sizes(layout);
    for (int block = 0; block < layout.valued_blocks(); ++block) {
      store.place_weights(
          block, memory_.view().rows(sizes.begin(place_of(block)), layout.local_block(block).size));
    }
  }
  store.set_source(*this);
}

std::int64_t WeightGather::buffer_bytes(const StoreLayout& layout, DType compute) {
  return Buckets::bytes_of(layout, compute) +
         place_elements(layout) * static_cast<std::int64_t>(size_of(compute));
}

TensorView WeightGather::weights_of(int block) const {
  const StoreLayout& layout = store_.layout();
  if (holder_.empty()) return store_.block_weights(block);
  return memory_.view().rows(place_sizes(layout).begin(place_of(block)),
                             layout.local_block(block).size);
}

void WeightGather::start(int block) {
  if (at(block).state != State::kStale) return;
  if (!holder_.empty()) {
    int& holder = holder_[static_cast<std::size_t>(place_of(block))];
    if (holder >= 0 && holder != block) {
      expect(at(holder).leases == 0 && at(holder).state != State::kUnderWay,
             "block {} takes the place of block {}, which is in use", block, holder);
      at(holder).state = State::kStale;
    }
    holder = block;
  }
  const StoreLayout& layout = store_.layout();
  const int mine = layout.place().shard.index;
  const auto finish = [this](Buckets::Bucket& bucket) { finish_bucket(bucket); };
  at(block).state = State::kUnderWay;
  at(block).parts_left = 0;
  buckets_.for_each_part(block, [&](Piece) { ++at(block).parts_left; });
  buckets_.for_each_part(block, [&](Piece part) {
    Buckets::Bucket& bucket = buckets_.take(block, part, finish);
    const TensorView piece = bucket.piece(mine);
    if (holder_.empty()) {
      const TensorView weights = store_.block_weights(block);
      layout.for_each_run(
          block, mine, part, [&](std::int64_t local, std::int64_t shard, std::int64_t count) {
            copy_bytes(context_, element(piece, shard - part.begin), element(weights, local),
                       static_cast<std::size_t>(count) * size_of(piece.dtype));
          });
    } else {
      const TensorView shard = store_.block_weight_shard(block).rows(part.begin, part.size);
      copy_bytes(context_, piece.data, shard.data, shard.bytes());
    }
    bucket.transfer = shards_.start_all_gather(bucket.pieces);
  });
}

void WeightGather::finish_bucket(Buckets::Bucket& bucket) {
  const StoreLayout& layout = store_.layout();
  const TensorView weights = weights_of(bucket.block);
  for (int owner = 0; owner < layout.place().shard.extent; ++owner) {
    if (holder_.empty() && owner == layout.place().shard.index) continue;  // they stand there
    const TensorView piece = bucket.piece(owner);
    layout.for_each_run(bucket.block, owner, bucket.part,
                        [&](std::int64_t local, std::int64_t shard, std::int64_t count) {
                          copy_bytes(context_, element(weights, local),
                                     element(piece, shard - bucket.part.begin),
                                     static_cast<std::size_t>(count) * size_of(piece.dtype));
                        });
  }
  if (--at(bucket.block).parts_left == 0) at(bucket.block).state = State::kWhole;
}

void WeightGather::acquire(int block) {
  start(block);
  buckets_.finish_until([this](Buckets::Bucket& bucket) { finish_bucket(bucket); },
                        [&] { return at(block).state == State::kWhole; });
  expect(at(block).state == State::kWhole, "block {} was not gathered", block);
  ++at(block).leases;
}

void WeightGather::release(int block) { --at(block).leases; }

void WeightGather::prefetch(int block) { start(block); }

void WeightGather::weights_changed() {
  buckets_.finish_until([this](Buckets::Bucket& bucket) { finish_bucket(bucket); },
                        [] { return false; });
  for (Block& block : blocks_) block.state = State::kStale;
}

std::vector<std::int64_t> gathers_in_step(const StoreLayout& layout, std::span<const int> reads) {
  std::vector<std::int64_t> gathers(static_cast<std::size_t>(layout.valued_blocks()));
  std::vector<char> whole(gathers.size());
  int holder[kPlaces] = {-1, -1, -1};
  for (const int block : reads) {
    char& here = whole[static_cast<std::size_t>(block)];
    gathers[static_cast<std::size_t>(block)] += here == 0;
    here = 1;
    if (layout.place().zero_stage < 3) continue;
    const int before = std::exchange(holder[place_of(block)], block);
    if (before >= 0 && before != block) whole[static_cast<std::size_t>(before)] = 0;
  }
  return gathers;
}

}  // namespace trireme
