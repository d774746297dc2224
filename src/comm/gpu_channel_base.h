#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace trireme {

/// What a channel between GPUs leaves to the communicator of the host: all that blocks.
class GpuChannel : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int size() const override { return host_->size(); }
  void barrier() override { host_->barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) override { host_->broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    host_->all_gather(mine, all);
  }
  std::vector<std::string> all_gather_text(std::string_view mine) override {
    return host_->all_gather_text(mine);
  }
  std::unique_ptr<Communicator> split(int color) override { return host_->split(color); }
  /// Of transfers as asked for; a recorded one counts once, however often replayed.
  [[nodiscard]] TrafficCounters counters() const override { return counters_; }

 protected:
  explicit GpuChannel(std::unique_ptr<Communicator> host) : host_(std::move(host)) {}
  void count(std::int64_t bytes_sent) {
    ++counters_.transfers;
    counters_.bytes_sent += bytes_sent;
  }
  [[nodiscard]] std::int64_t bytes_sent(std::span<const Message> sends) const {
    std::int64_t bytes = 0;
    for (const Message& message : sends)
      if (message.rank != rank()) bytes += static_cast<std::int64_t>(message.bytes.size());
    return bytes;
  }

  TrafficCounters counters_;
  std::unique_ptr<Communicator> host_;
};

}  // namespace trireme
