#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/forwarding_communicator.h"
#include "device/context.h"
#include "tensor/buffer.h"

namespace trireme {

/// A channel whose sums are added in rank order where those of `inner` come in an order of its own
/// (NCCL's): shards go to their owners, the context adds them, sums go back. The bytes of a ring,
/// and memory for the shards of others, taken at once; the addition begins when the transfer is
/// waited for, or when kUnderWay others have been started.
class RankOrderChannel final : public ForwardingCommunicator {
 public:
  static constexpr std::int64_t kUnderWay = 2;
  /// `inner` moves the context's memory; sums are of operands of up to `largest_bytes`.
  RankOrderChannel(std::unique_ptr<Communicator> inner, Context& context,
                   std::int64_t largest_bytes);
  /// What it takes of the context's memory.
  static std::int64_t memory_bytes(std::int64_t largest_bytes, int ranks);

  Pending start_all_reduce(TensorView values) override;
  Pending start_reduce_scatter(TensorView shards) override;
  Pending start_all_gather(TensorView shards) override { return inner().start_all_gather(shards); }
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override {
    return inner().start_exchange(sends, receives);
  }
  std::unique_ptr<Communicator> channel(std::string_view name) override {
    return std::make_unique<RankOrderChannel>(inner().channel(name), context_, largest_bytes_);
  }
  [[nodiscard]] TrafficCounters counters() const override { return inner().counters(); }

 private:
  enum class Back : std::uint8_t { kNo, kYes };
  struct Sum {
    TensorView values;  ///< flat
    Back back = Back::kNo;
    Buffer others;  ///< this rank's shard as every other rank has it
    Pending scatter;
    std::int64_t number = -1;  ///< of the transfer that it is for; -1: none
  };

  Pending start(TensorView values, Back back);
  void finish(Sum& sum);
  [[nodiscard]] TensorView shard(const TensorView& values, int rank) const;
  [[nodiscard]] TensorView of_other(const Sum& sum, int rank) const;

  Context& context_;
  const std::int64_t largest_bytes_;
  std::array<Sum, kUnderWay> sums_;
  std::int64_t started_ = 0;
  std::vector<Message> sends_, receives_;
};

}  // namespace trireme
