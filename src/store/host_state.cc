#include "store/host_state.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/math.h"
#include "base/parallel_for.h"
#include "device/pinned_memory.h"

namespace trireme {

namespace {

std::size_t bytes_of(const StateTensor& tensor) {
  return static_cast<std::size_t>(tensor.box.shape.count()) * size_of(tensor.dtype);
}

/// A thread copies slower than a GPU sends: several take a piece in slices of this size.
constexpr std::size_t kSliceBytes = std::size_t{4} << 20;

}  // namespace

HostState::HostState(Context& context, State state, std::size_t piece_bytes)
    : context_(context), piece_bytes_(piece_bytes), host_(std::move(state)) {
  const auto copied = [&](const StateTensor& tensor) {
    return context.on_gpu() || !tensor.contiguous();
  };
  const auto padded = [](std::size_t bytes) {
    return static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), 64));
  };
  std::size_t total = 0;
  for (const StateTensor& tensor : host_.tensors) {
    if (copied(tensor)) total += padded(bytes_of(tensor));
  }
  if (total > 0) memory_ = HostBuffer(total);
  std::byte* next = memory_.data();
  for (StateTensor& tensor : host_.tensors) {
    if (!copied(tensor)) continue;
    const std::size_t element = size_of(tensor.dtype);
    Copy copy{tensor.data, next, bytes_of(tensor), bytes_of(tensor), 1};
    if (!tensor.contiguous()) {
      copy.rows = tensor.box.shape[0];
      copy.row_bytes = static_cast<std::size_t>(tensor.row_size()) * element;
      copy.device_stride_bytes = static_cast<std::size_t>(tensor.row_stride) * element;
    }
    copies_.push_back(copy);
    tensor.data = next;
    tensor.row_stride = 0;
    next += padded(bytes_of(tensor));
  }
}

/// Rows of the copies one after the other, cut where a piece ends.
class HostState::Parts {
 public:
  Parts(std::span<const Copy> copies, std::size_t piece_bytes)
      : copies_(copies), piece_bytes_(piece_bytes) {}

  /// What the next piece holds; nothing behind the last.
  std::vector<Part> next() {
    std::vector<Part> parts;
    std::size_t used = 0;
    while (used < piece_bytes_ && copy_ < copies_.size()) {
      const Copy& copy = copies_[copy_];
      if (row_ == copy.rows || copy.row_bytes == 0) {
        ++copy_;
        row_ = 0;
        continue;
      }
      const auto row = static_cast<std::size_t>(row_);
      // As many whole rows as fit, or what fits of one.
      const auto whole = begin_ > 0 ? 0
                                    : std::min(static_cast<std::size_t>(copy.rows) - row,
                                               (piece_bytes_ - used) / copy.row_bytes);
      const std::size_t row_bytes =
          whole > 0 ? copy.row_bytes : std::min(copy.row_bytes - begin_, piece_bytes_ - used);
      parts.push_back({copy.host + row * copy.row_bytes + begin_,
                       copy.device + row * copy.device_stride_bytes + begin_,
                       copy.device_stride_bytes, used, row_bytes, std::max<std::size_t>(whole, 1)});
      used += parts.back().bytes();
      begin_ = whole > 0 ? 0 : begin_ + row_bytes;
      row_ += static_cast<std::int64_t>(whole);
      if (begin_ < copy.row_bytes) continue;
      begin_ = 0;
      ++row_;
    }
    return parts;
  }

 private:
  std::span<const Copy> copies_;
  std::size_t piece_bytes_, copy_ = 0, begin_ = 0;  // begin_: in the row
  std::int64_t row_ = 0;
};

void HostState::fill(std::byte* piece, const std::vector<Part>& parts) {
  const std::size_t bytes = parts.back().offset + parts.back().bytes();
  const auto slice = [&](std::int64_t number) {
    const std::size_t begin = static_cast<std::size_t>(number) * kSliceBytes,
                      end = std::min(begin + kSliceBytes, bytes);
    auto part = std::upper_bound(
        parts.begin(), parts.end(), begin,
        [](std::size_t offset, const Part& after) { return offset < after.offset; });
    for (--part; part != parts.end() && part->offset < end; ++part) {
      const std::size_t from = std::max(begin, part->offset),
                        to = std::min(end, part->offset + part->bytes());
      std::memcpy(piece + from, part->host + (from - part->offset), to - from);
    }
  };
  parallel_for(ceil_div(static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(kSliceBytes)),
               slice);
}

void HostState::store_by_pieces() {
  std::size_t total = 0;
  for (const Copy& copy : copies_) total += static_cast<std::size_t>(copy.rows) * copy.row_bytes;
  if (total == 0) return;
  struct Pinned {
    PinnedMemory memory;
    gpu::Event done;  ///< what was last sent from this piece
  };
  std::array<Pinned, 2> pieces;
  for (Pinned& piece : pieces)
    piece = {PinnedMemory(std::min(piece_bytes_, total)), gpu::Event(gpu::make_event())};
  Parts parts(copies_, pieces[0].memory.size());
  void* stream = context_.exec().stream;
  for (int i = 0;; i ^= 1) {
    Pinned& piece = pieces[static_cast<std::size_t>(i)];
    const std::vector<Part> filled = parts.next();
    if (filled.empty()) break;
    gpu::wait_here(piece.done.get());
    fill(piece.memory.data(), filled);
    for (const Part& part : filled) {
      gpu::copy_rows({part.device, part.device_stride_bytes},
                     {piece.memory.data() + part.offset, part.row_bytes}, part.row_bytes, part.rows,
                     stream);
    }
    gpu::record(piece.done.get(), stream);
  }
  context_.synchronize();
}

void HostState::store() {
  if (context_.on_gpu()) return store_by_pieces();
  for (const Copy& copy : copies_) {
    for (std::int64_t row = 0; row < copy.rows; ++row) {
      std::memcpy(copy.device + static_cast<std::size_t>(row) * copy.device_stride_bytes,
                  copy.host + static_cast<std::size_t>(row) * copy.row_bytes, copy.row_bytes);
    }
  }
}

}  // namespace trireme
