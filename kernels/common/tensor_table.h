#pragma once
// What one call tells kernels of each of its many tensors.

#include <cstdint>
#include <new>

#include "device/context.h"

namespace trireme {

/// Entries of one type, made in the scratch memory of the host: one table at a time.
template <class Entry>
class TensorTable {
 public:
  /// Of `most` entries at most.
  TensorTable(Context& context, std::size_t most)
      : context_(context), data_(context.host_scratch(most * sizeof(Entry))) {}
  void add(const Entry& entry) {
    new (data_ + bytes()) Entry(entry);
    ++count_;
  }
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// Where kernels of the context's device read it. A GPU keeps a table, found by its bytes.
  [[nodiscard]] const Entry* placed() const {
    const bool stays = !context_.on_gpu() || count_ == 0;
    return reinterpret_cast<const Entry*>(stays ? data_
                                                : context_.device_constant({data_, bytes()}));
  }

 private:
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(count_) * sizeof(Entry);
  }
  Context& context_;
  std::byte* data_;
  std::int64_t count_ = 0;
};

}  // namespace trireme
