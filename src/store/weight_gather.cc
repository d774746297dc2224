#include "store/weight_gather.h"

#include <algorithm>
#include <utility>

#include "tensor/transfer.h"

namespace trireme {

namespace {

/// A block this much smaller than the largest has a slot of its own.
constexpr std::int64_t kSmallBlock = 16;

/// Elements of all parameters, with room in this layout or not.
std::int64_t elements_of(const StoreLayout& layout, int block) {
  std::int64_t count = 0;
  const ParamRange range = layout.block_params(block);
  for (ParamIndex i = range.first; i <= range.last; ++i) count += layout.padded_shape(i).count();
  return count;
}

}  // namespace

WeightSlots::WeightSlots(const StoreLayout& layout) {
  std::int64_t largest = 0;
  for (int block = 1; block < layout.valued_blocks(); ++block)
    largest = std::max(largest, elements_of(layout, block));
  count = 3;  // the embedding's, the two that are taken in turns
  int turn = 0;
  for (int block = 0; block < layout.valued_blocks(); ++block) {
    const bool own = block > 0 && elements_of(layout, block) * kSmallBlock <= largest;
    of_block.push_back(own ? count++ : block == 0 ? 0 : 1 + turn++ % 2);
  }
}

std::vector<std::int64_t> WeightSlots::begins(
    const std::function<std::int64_t(int block)>& size_of) const {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(count));
  for (int block = 0; block < std::ssize(of_block); ++block) {
    std::int64_t& room = sizes[static_cast<std::size_t>(of(block))];
    room = std::max(room, size_of(block));
  }
  std::vector<std::int64_t> begins = {0};
  for (const std::int64_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

namespace {

auto block_sizes(const StoreLayout& layout) {
  return [&layout](int block) { return layout.local_block(block).size; };
}

}  // namespace

WeightGather::WeightGather(Context& context, ParamStore& store,
                           const std::vector<Channel>& channels)
    : context_(context),
      store_(store),
      blocks_(static_cast<std::size_t>(store.layout().valued_blocks())) {
  for (const WeightForm form : kWeightForms) {
    const StoreLayout& layout = store.layout(form);
    for (const Channel& channel : channels) {
      if (!layout.has(channel.view)) continue;
      Communicator* const shards = &channel.shards;
      groups_.push_back(
          {channel, form,
           Buckets(context, layout, channel.view, store.type_of(form), {&shards, 1})});
    }
  }
  if (store.layout().zero_stage() == 3) take_slots();
  store.set_provider(*this);
}

void WeightGather::take_slots() {
  slots_.emplace(store_.layout());
  holder_.assign(static_cast<std::size_t>(slots_->count), -1);
  for (const WeightForm form : kWeightForms) {
    Gathered& of = memory_[static_cast<std::size_t>(form)];
    of.begins = slots_->begins(block_sizes(store_.layout(form)));
    of.memory = Buffer(store_.type_of(form), {of.begins.back()}, context_.device());
    for (int block = 0; block < store_.layout().valued_blocks(); ++block)
      store_.place_weights(block, form, weights_of(block, form));
  }
  const QuantizedLayout& quantized = store_.quantized();
  turned_.begins = slots_->begins([&](int block) { return quantized.turned_size(block); });
  if (turned_.begins.back() == 0) return;
  turned_.memory = Buffer(DType::kF8E4M3, {turned_.begins.back()}, context_.device());
  for (int block = 0; block < store_.layout().valued_blocks(); ++block) {
    const auto slot = static_cast<std::size_t>(slots_->of(block));
    store_.place_turned(
        block, turned_.memory.view().rows(turned_.begins[slot], quantized.turned_size(block)));
  }
}

std::int64_t WeightGather::buffer_bytes(const std::vector<ParamMeta>& params,
                                        const ParamDistribution& distribution, DType compute,
                                        DeviceKind device) {
  const WeightSlots slots{StoreLayout(params, distribution)};
  std::int64_t bytes = 0;
  for (const WeightForm form : kWeightForms) {
    const DType type = type_of(form, compute);
    const StoreLayout layout(params, distribution, StoreLayout::of_form(form));
    for (const MeshView view : kMeshViews)
      if (layout.has(view)) bytes += Buckets::bytes_of(layout, {view, type, device});
    if (distribution.zero_stage == 3)
      bytes += slots.begins(block_sizes(layout)).back() * static_cast<std::int64_t>(size_of(type));
  }
  if (distribution.zero_stage == 3) {
    const QuantizedLayout quantized(params, distribution);
    bytes += slots.begins([&](int block) { return quantized.turned_size(block); }).back();
  }
  return bytes;
}

TensorView WeightGather::weights_of(int block, WeightForm form) const {
  if (holder_.empty()) return store_.block_weights(block, form);
  const Gathered& of = memory_[static_cast<std::size_t>(form)];
  const auto slot = static_cast<std::size_t>(slots_->of(block));
  return of.memory.view().rows(of.begins[slot], store_.layout(form).local_block(block).size);
}

void WeightGather::start(int block) {
  if (at(block).state != State::kStale) return;
  if (!holder_.empty()) {
    int& holder = holder_[static_cast<std::size_t>(slots_->of(block))];
    if (holder >= 0 && holder != block) {
      expect(at(holder).leases == 0 && at(holder).state != State::kUnderWay,
             "block {} takes the slot of block {}, which is in use", block, holder);
      at(holder).state = State::kStale;
    }
    holder = block;
  }
  at(block).state = State::kUnderWay;
  at(block).parts_left = 0;
  for (Group& group : groups_)
    group.buckets.for_each_part(block, [&](Slice) { ++at(block).parts_left; });
  if (at(block).parts_left == 0) at(block).state = State::kWhole;  // every rank has all of it
  for (Group& group : groups_) start_view(group, block);
}

void WeightGather::start_view(Group& group, int block) {
  const MeshView view = group.channel.view;
  const WeightForm form = group.form;
  const int mine = store_.layout().distribution(view).shard.index;
  const auto finish = [&](Buckets::Bucket& bucket) { finish_bucket(group, bucket); };
  group.buckets.for_each_part(block, [&](Slice part) {
    Buckets::Bucket& bucket = group.buckets.take(block, part, finish);
    if (holder_.empty()) {
      group.buckets.pack(context_, bucket, store_.block_weights(block, form), mine);
    } else {
      const TensorView shard =
          store_.block_weight_shard(block, view, form).rows(part.begin, part.size);
      copy_bytes(context_, bucket.shard_of(mine).data, shard.data, shard.bytes());
    }
    bucket.transfer = group.channel.shards.start_all_gather(bucket.shards);
  });
}

void WeightGather::finish_bucket(const Group& group, Buckets::Bucket& bucket) {
  group.buckets.unpack(context_, weights_of(bucket.block, group.form), bucket);
  if (--at(bucket.block).parts_left > 0) return;
  at(bucket.block).state = State::kWhole;
  store_.codes_changed(bucket.block);
  if (!holder_.empty()) store_.clear_padding(context_, bucket.block);
}

template <class Done>
void WeightGather::finish_until(const Done& done) {
  for (Group& group : groups_) {
    group.buckets.finish_until([&](Buckets::Bucket& bucket) { finish_bucket(group, bucket); },
                               done);
  }
}

void WeightGather::acquire(int block, int next) {
  start(block);
  // Before the wait: where gathers take longer than passes the channel never stands still.
  if (next >= 0) start(next);
  finish_until([&] { return at(block).state == State::kWhole; });
  expect(at(block).state == State::kWhole, "block {} was not gathered", block);
  ++at(block).leases;
}

void WeightGather::release(int block) { --at(block).leases; }

void WeightGather::weights_changed() {
  finish_until([] { return false; });
  for (Block& block : blocks_) block.state = State::kStale;
}

std::vector<std::int64_t> gathers_in_step(const StoreLayout& layout, std::span<const int> reads) {
  std::vector<std::int64_t> gathers(static_cast<std::size_t>(layout.valued_blocks()));
  std::vector<char> whole(gathers.size());
  const WeightSlots slots(layout);
  std::vector<int> holder(static_cast<std::size_t>(slots.count), -1);
  for (const int block : reads) {
    char& here = whole[static_cast<std::size_t>(block)];
    gathers[static_cast<std::size_t>(block)] += here == 0;
    here = 1;
    if (layout.zero_stage() < 3) continue;
    int& here_before = holder[static_cast<std::size_t>(slots.of(block))];
    const int before = std::exchange(here_before, block);
    if (before >= 0 && before != block) whole[static_cast<std::size_t>(before)] = 0;
  }
  return gathers;
}

}  // namespace trireme
