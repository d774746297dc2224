#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/context.h"
#include "tensor/buffer.h"

namespace trireme {

/// A channel whose sums are added in rank order where those of `inner` come in an order of its own
/// (NCCL's): shards go to their owners, the context adds them, sums go back. The bytes of a ring,
/// and memory for the shards of others; the addition begins when the transfer is waited for.
class RankOrderChannel final : public Communicator {
 public:
  /// `inner` moves the context's memory.
  RankOrderChannel(std::unique_ptr<Communicator> inner, Context& context);

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
  Pending start_all_reduce(TensorView values) override;
  Pending start_reduce_scatter(TensorView shards) override;
  Pending start_all_gather(TensorView shards) override { return inner_->start_all_gather(shards); }
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override {
    return inner_->start_exchange(sends, receives);
  }
  std::unique_ptr<Communicator> split(int color) override { return inner_->split(color); }
  std::unique_ptr<Communicator> channel(std::string_view name) override {
    return std::make_unique<RankOrderChannel>(inner_->channel(name), context_);
  }
  [[nodiscard]] TrafficCounters counters() const override { return inner_->counters(); }

 private:
  enum class Back : std::uint8_t { kNo, kYes };
  struct Sum {
    TensorView values;  ///< flat
    Back back = Back::kNo;
    Buffer others;  ///< this rank's shard as every other rank has it
    Pending scatter;
    bool busy = false;
  };

  Pending start(TensorView values, Back back);
  void finish(Sum& sum);
  [[nodiscard]] TensorView shard(const TensorView& values, int rank) const;
  [[nodiscard]] TensorView of_other(const Sum& sum, int rank) const;

  std::unique_ptr<Communicator> inner_;
  Context& context_;
  std::deque<Sum> sums_;  // as many as were ever under way; their memory stays
  std::vector<Message> sends_, receives_;
};

}  // namespace trireme
