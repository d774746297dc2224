#include "tensor/arena.h"

#include <utility>

#include "base/math.h"

namespace trireme {

Arena::Handle Arena::declare(std::string name, DType dtype, Shape shape) {
  expect(memory_.data() == nullptr, "{} declared after the arena was allocated", name);
  entries_.push_back({std::move(name), dtype, shape, bytes_});
  bytes_ += static_cast<std::size_t>(
      round_up(shape.count() * static_cast<std::int64_t>(size_of(dtype)), 64));
  return entries_.size() - 1;
}

void Arena::allocate() { memory_ = HostBuffer(bytes_); }

TensorView Arena::view(Handle handle) const {
  const Entry& entry = entries_.at(handle);
  return {memory_.data() + entry.offset, entry.dtype, entry.shape};
}

}  // namespace trireme
