#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace trireme {

/// What a channel that moves data in its own way leaves to the one that it is made of: its ranks,
/// and all that blocks.
class ForwardingCommunicator : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return inner_->rank(); }
  [[nodiscard]] int size() const override { return inner_->size(); }
  void barrier() override { inner_->barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) override { inner_->broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    inner_->all_gather(mine, all);
  }
  std::vector<std::string> all_gather_text(std::string_view mine) override {
    return inner_->all_gather_text(mine);
  }
  Pending start_combine(std::span<std::byte> value, Combine combine) override {
    return inner_->start_combine(value, combine);
  }
  Memory transfer_memory(Device device, std::size_t bytes) override {
    return inner_->transfer_memory(device, bytes);
  }
  std::shared_ptr<void> register_memory(std::span<std::byte> memory) override {
    return inner_->register_memory(memory);
  }
  std::unique_ptr<Communicator> split(int color) override { return inner_->split(color); }

 protected:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] Communicator& inner() const { return *inner_; }

 private:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace trireme
