#include "store/base_values.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/nf4/nf4.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

constexpr std::int64_t kAlignment = 16;  // elements: a cache line

std::int64_t chosen_bytes(const ParamStore& store) {
  std::int64_t count = 0;
  for (ParamIndex i = 0; i < static_cast<int>(store.params().size()); ++i)
    if (store.params()[static_cast<std::size_t>(i)].base && store.has_value(i))
      count += store.base_shape(i).count();
  return std::clamp(count * std::int64_t{sizeof(float)} / 64, std::int64_t{64} << 20,
                    std::int64_t{4} << 30);
}

}  // namespace

BaseValues::BaseValues(Context& context, ParamStore& store, std::int64_t bytes_at_once)
    : context_(context), store_(store) {
  std::int64_t size = 0, largest_part = 0, largest = 0;
  if (bytes_at_once == 0) bytes_at_once = chosen_bytes(store);
  if (store.quantized().size() > 0) bytes_at_once = std::numeric_limits<std::int64_t>::max();
  const std::int64_t most = bytes_at_once / std::int64_t{sizeof(float)};
  for (ParamIndex i = 0; i < static_cast<int>(store.params().size()); ++i) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(i)];
    if (!param.base || !store.has_value(i)) continue;
    const std::int64_t count = store.base_shape(i).count();
    if (parts_.empty() || size + count > most) {
      parts_.emplace_back();
      size = 0;
    }
    parts_.back().push_back(i);
    size += round_up(count, kAlignment);
    largest_part = std::max(largest_part, size);
    largest = std::max(largest, count);
  }
  if (largest_part > 0)
    memory_ = HostBuffer(static_cast<std::size_t>(largest_part) * sizeof(float));
  if (context.on_gpu() && largest > 0) staging_ = Buffer(DType::kF32, {largest}, context.device());
}

TensorView BaseValues::host_rows(ParamIndex index) const {
  const auto begin = static_cast<std::size_t>(here_.at(index));
  return {const_cast<std::byte*>(memory_.data()) + begin * sizeof(float), DType::kF32,
          store_.base_shape(index)};
}

TensorView BaseValues::rows(ParamIndex index) {
  const TensorView host = host_rows(index);
  if (!context_.on_gpu()) return host;
  const TensorView staged = staging_.view().rows(0, host.count()).reshape(host.shape);
  copy_in(context_, staged, std::span<const std::byte>(host.data, host.bytes()));
  return staged;
}

State BaseValues::state(int part) {
  here_.clear();
  std::int64_t begin = 0;
  if (part < parts()) {
    for (const ParamIndex index : parts_[static_cast<std::size_t>(part)]) {
      here_[index] = begin;
      begin += round_up(store_.base_shape(index).count(), kAlignment);
    }
  }
  State state = store_.base_state(
      [this](ParamIndex index) { return here_.contains(index) ? host_rows(index).data : nullptr; });
  std::erase_if(state.tensors, [](const StateTensor& tensor) { return tensor.data == nullptr; });
  const auto bytes_of = [](const StateTensor& tensor) {
    return static_cast<std::size_t>(tensor.box.shape.count()) * sizeof(float);
  };
  std::size_t size = 0;
  for (const StateTensor& tensor : state.tensors)
    size += tensor.contiguous() ? 0 : bytes_of(tensor);
  copies_.clear();
  apart_ = size > 0 ? HostBuffer(size) : HostBuffer();
  std::byte* next = apart_.data();
  for (StateTensor& tensor : state.tensors) {
    if (tensor.contiguous()) continue;
    copies_.emplace_back(next, tensor);
    tensor.data = next;
    tensor.row_stride = 0;
    next += bytes_of(tensor);
  }
  return state;
}

void BaseValues::join() {
  for (const auto& [from, tensor] : copies_) {
    const auto row = static_cast<std::size_t>(tensor.row_size()) * sizeof(float),
               stride = static_cast<std::size_t>(tensor.row_stride) * sizeof(float);
    for (std::size_t r = 0; r < static_cast<std::size_t>(tensor.box.shape[0]); ++r)
      std::memcpy(tensor.data + r * stride, from + r * row, row);
  }
}

void BaseValues::give(std::deque<QuantizedRefresh>& fp8) {
  join();
  for (const auto& [i, begin] : here_) {
    if (store_.params()[static_cast<std::size_t>(i)].nf4) {
      if (store_.base_shape(i).count() > 0) nf4_quantize(context_, store_.base_nf4(i), rows(i));
      continue;
    }
    const TensorView to = store_.base_rows(i);
    if (to.count() == 0 || to.dtype == DType::kF8E4M3) continue;
    const TensorView from = rows(i);
    if (to.dtype == DType::kF32)
      copy_bytes(context_, to.data, from.data, from.bytes());
    else
      cast(context_, to, from);
  }
  for (QuantizedRefresh& of_view : fp8)
    of_view.run([this](ParamIndex index) { return rows(index); });
}

}  // namespace trireme
