#pragma once
// Tensors whose every element is known from its name and global position, so that any box of any
// rank can be checked.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/boxes.h"
#include "store/state.h"

namespace trireme {

/// Owns the buffers behind a State.
class TestState {
 public:
  struct Piece {
    std::string name;
    DType dtype = DType::kF32;
    Shape shape;
    Box box;
    int replica = 0, replicas = 1;
  };

  void add(const Piece& piece) {
    const std::size_t bytes =
        static_cast<std::size_t>(piece.box.shape.count()) * size_of(piece.dtype);
    buffers_.push_back(std::make_unique<std::byte[]>(bytes + 1));
    state_.tensors.push_back({piece.name, piece.dtype, piece.shape, piece.box,
                              buffers_.back().get(), piece.replica, piece.replicas});
  }
  void add_whole(const std::string& name, const Shape& shape, DType dtype = DType::kF32) {
    add({name, dtype, shape, whole(shape)});
  }

  /// Every element becomes a function of (salt, name, position in the whole tensor).
  void fill(std::uint64_t salt) {
    visit(
        [&](const StateTensor& tensor, std::size_t offset, std::uint64_t word) {
          std::memcpy(tensor.data + offset, &word, size_of(tensor.dtype));
          return true;
        },
        salt);
  }
  void clear() {
    for (const StateTensor& tensor : state_.tensors) {
      std::memset(tensor.data, 0,
                  static_cast<std::size_t>(tensor.box.shape.count()) * size_of(tensor.dtype));
    }
  }
  /// The first tensor that `fill` would have filled otherwise, "" where there is none.
  [[nodiscard]] std::string first_difference(std::uint64_t salt) const {
    std::string name;
    visit(
        [&](const StateTensor& tensor, std::size_t offset, std::uint64_t word) {
          if (std::memcmp(tensor.data + offset, &word, size_of(tensor.dtype)) != 0)
            name = tensor.name;
          return name.empty();
        },
        salt);
    return name;
  }

  State& state() { return state_; }

 private:
  template <class Work>
  void visit(const Work& work, std::uint64_t salt) const {
    for (const StateTensor& tensor : state_.tensors) {
      const std::uint64_t key = stream_key(salt, tensor.name);
      std::size_t offset = 0;
      for (const Box& element : cut_box(tensor.box, 1)) {
        std::uint64_t position = 0;
        for (int dim = 0; dim < tensor.global_shape.rank(); ++dim) {
          position = position * static_cast<std::uint64_t>(tensor.global_shape[dim]) +
                     static_cast<std::uint64_t>(element.offset[dim]);
        }
        const auto words = philox(key, position, 0);
        const std::uint64_t word = words[0] | (static_cast<std::uint64_t>(words[1]) << 32);
        if (!work(tensor, offset, word)) return;
        offset += size_of(tensor.dtype);
      }
    }
  }

  State state_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
};

/// Whole tensors of ranks 0 to 4, odd sizes, no elements, every type.
inline void add_odd_tensors(TestState& state) {
  state.add_whole("parameters/embed.weight", Shape{307, 24});
  state.add_whole("parameters/norm.weight", Shape{24});
  state.add_whole("parameters/scale", Shape{});
  state.add_whole("parameters/nothing", Shape{0, 5});
  state.add_whole("parameters/kernel", Shape{3, 5, 7});
  state.add_whole("parameters/four", Shape{1, 2, 1, 9});
  state.add_whole("parameters/half.weight", Shape{17, 3}, DType::kBF16);
  state.add_whole("optimizer/embed.weight/exp_avg", Shape{307, 24});
  state.add_whole("optimizer/embed.weight/exp_avg_sq", Shape{307, 24}, DType::kF64);
  state.add_whole("optimizer/count", Shape{1}, DType::kI32);
}

inline SaveRequest request_for(const std::filesystem::path& directory, std::int64_t step,
                               const State& state) {
  SaveRequest request;
  request.directory = directory;
  request.step = step;
  request.consumed_samples = step * 8;
  request.mesh["data"] = 1;
  request.model["model_type"] = "llama";
  request.versions["trireme"] = "test";
  request.state = &state;
  return request;
}

}  // namespace trireme
