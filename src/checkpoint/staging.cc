#include "checkpoint/staging.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/math.h"
#include "base/parallel_for.h"

namespace trireme {

namespace {

/// Of one job of a copy by several threads.
constexpr std::int64_t kSliceBytes = std::int64_t{4} << 20;

/// Calls f(to, from, row_bytes, rows) for bytes [begin, begin + size) of a box; `to` is contiguous.
template <class F>
void for_each_block(const StateTensor& tensor, std::int64_t begin, std::int64_t size, std::byte* to,
                    const F& f) {
  if (tensor.contiguous()) {
    f(to, gpu::Rows{tensor.data + begin, static_cast<std::size_t>(size)}, size, 1);
    return;
  }
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t row_bytes = tensor.row_size() * element;
  const std::int64_t stride = tensor.row_stride * element;
  while (size > 0) {
    const std::int64_t row = begin / row_bytes, column = begin % row_bytes;
    const bool whole = column == 0 && size >= row_bytes;
    const std::int64_t rows = whole ? size / row_bytes : 1;
    const std::int64_t part = whole ? row_bytes : std::min(size, row_bytes - column);
    f(to, gpu::Rows{tensor.data + row * stride + column, static_cast<std::size_t>(stride)}, part,
      rows);
    begin += part * rows;
    size -= part * rows;
    to += part * rows;
  }
}

void copy_on_host(std::byte* to, const gpu::Rows& from, std::int64_t row_bytes, std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * row_bytes, from.data + static_cast<std::size_t>(row) * from.stride,
                static_cast<std::size_t>(row_bytes));
  }
}

}  // namespace

Staging::Staging(std::int64_t bytes, Context* context) : bytes_(bytes), context_(context) {
  if (bytes == 0) return;
  if (context != nullptr) {
    pinned_ = PinnedMemory(static_cast<std::size_t>(bytes));
  } else {
    host_ = HostBuffer(static_cast<std::size_t>(bytes));
  }
}

void Staging::populate() noexcept {
#if defined(MADV_POPULATE_WRITE)
  if (host_.size() > 0) ::madvise(host_.data(), host_.size(), MADV_POPULATE_WRITE);
#endif
}

void Staging::open(const State& state, std::vector<OwnShard> shards, Meanwhile meanwhile) {
  const std::lock_guard lock(mutex_);
  state_ = &state;
  shards_ = std::move(shards);
  in_place_.assign(shards_.size(), false);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    in_place_[i] = !is_copied(state.tensors[shards_[i].tensor], meanwhile, context_);
    expect(room_of(i) <= bytes_, "a shard of {} bytes in {} of staging", shards_[i].bytes, bytes_);
  }
  begins_.assign(shards_.size(), 0);
  head_ = 0;
  claimed_ = staged_ = taken_ = released_ = 0;
  cancelled_ = false;
}

std::optional<std::int64_t> Staging::room_for(std::int64_t bytes) const {
  std::int64_t begin = head_;
  if (bytes == 0) return begin;
  if (begin % bytes_ + bytes > bytes_) begin = round_up(begin, bytes_);
  const std::int64_t oldest = released_ < claimed_ ? begins_[released_] : begin;
  if (begin + bytes - oldest > bytes_) return std::nullopt;
  return begin;
}

Staging::Batch Staging::claim(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  Batch batch{claimed_, claimed_};
  changed_.wait_for(lock, patience, [&] {
    return cancelled_ || claimed_ == shards_.size() || room_for(room_of(claimed_)).has_value();
  });
  while (!cancelled_ && claimed_ < shards_.size()) {
    const std::int64_t bytes = room_of(claimed_);
    const std::optional<std::int64_t> begin = room_for(bytes);
    if (!begin) break;
    begins_[claimed_++] = *begin;
    head_ = *begin + bytes;
  }
  batch.end = claimed_;
  return batch;
}

std::int64_t Staging::room_of(std::size_t shard) const {
  return in_place_[shard] ? 0 : round_up(shards_[shard].bytes, kShardAlignment);
}

std::byte* Staging::place_of(std::size_t shard) const {
  if (in_place_[shard])
    return state_->tensors[shards_[shard].tensor].data + shards_[shard].begin_bytes;
  return (context_ != nullptr ? pinned_.data() : host_.data()) + begins_[shard] % bytes_;
}

void Staging::copy(Batch batch) {
  std::vector<std::size_t> copied;
  for (std::size_t i = batch.begin; i < batch.end; ++i) {
    if (!in_place_[i]) copied.push_back(i);
  }
  if (context_ != nullptr) {
    void* stream = context_->exec().stream;
    for (const std::size_t i : copied) {
      const OwnShard& shard = shards_[i];
      for_each_block(
          state_->tensors[shard.tensor], shard.begin_bytes, shard.bytes, place_of(i),
          [&](std::byte* to, const gpu::Rows& from, std::int64_t row_bytes, std::int64_t rows) {
            const auto size = static_cast<std::size_t>(row_bytes);
            gpu::copy_rows({to, size}, from, size, static_cast<std::size_t>(rows), stream);
          });
    }
    gpu::synchronize(stream);
    return;
  }
  // Slices of all shards laid end to end: few large or many small ones keep all threads busy.
  std::vector<std::int64_t> ends;
  for (const std::size_t i : copied)
    ends.push_back((ends.empty() ? 0 : ends.back()) + shards_[i].bytes);
  const std::int64_t total = ends.empty() ? 0 : ends.back();
  parallel_for(ceil_div(total, kSliceBytes), [&](std::int64_t slice) {
    std::int64_t at = slice * kSliceBytes;
    const std::int64_t end = std::min(at + kSliceBytes, total);
    auto found =
        static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
    for (; at < end; ++found) {
      const std::size_t i = copied[found];
      const OwnShard& shard = shards_[i];
      const std::int64_t offset = at - (ends[found] - shard.bytes);
      const std::int64_t size = std::min(end - at, shard.bytes - offset);
      for_each_block(state_->tensors[shard.tensor], shard.begin_bytes + offset, size,
                     place_of(i) + offset, copy_on_host);
      at += size;
    }
  });
}

bool Staging::stage(std::chrono::milliseconds patience) {
  const Batch batch = claim(patience);
  copy(batch);
  const std::lock_guard lock(mutex_);
  staged_ = batch.end;
  changed_.notify_all();
  return cancelled_ || staged_ == shards_.size();
}

std::span<const std::byte> Staging::take() {
  std::unique_lock lock(mutex_);
  expect(taken_ < shards_.size() && taken_ == released_, "shards are taken one by one");
  changed_.wait(lock, [&] { return cancelled_ || staged_ > taken_; });
  if (cancelled_) throw SaveCancelled();
  const std::size_t shard = taken_++;
  return {place_of(shard), static_cast<std::size_t>(shards_[shard].bytes)};
}

void Staging::release() {
  const std::lock_guard lock(mutex_);
  expect(released_ < taken_, "no shard is taken");
  ++released_;
  changed_.notify_all();
}

void Staging::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

bool is_copied(const StateTensor& tensor, Meanwhile meanwhile, const Context* gpu) {
  return meanwhile == Meanwhile::kChange || gpu != nullptr || !tensor.contiguous();
}

std::int64_t copied_bytes(const State& state, const std::vector<OwnShard>& shards,
                          Meanwhile meanwhile, const Context* gpu) {
  std::int64_t bytes = 0;
  for (const OwnShard& shard : shards) {
    if (is_copied(state.tensors[shard.tensor], meanwhile, gpu))
      bytes += round_up(shard.bytes, kShardAlignment);
  }
  return bytes;
}

}  // namespace trireme
