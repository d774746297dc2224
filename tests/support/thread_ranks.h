#pragma once
// Ranks as threads of one process, for tests of what several ranks compute together without MPI.
//
//   on_threads(3, [&](Communicator& channel) { ... every rank's part ... });
//
// A transfer is made by its `wait`, as late as it may be: who reads what it brings before, or never
// waits, finds what stood there; who writes what it sends in between sends the wrong values. What a
// transfer leaves undefined becomes NaN.

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/math.h"
#include "comm/communicator.h"
#include "support/tree_sum.h"

namespace trireme {

inline float bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
/// Rounded to nearest, ties to even.
inline std::uint16_t bf16_bits(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  if (value != value) return 0x7FC0;
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
/// Element i of f32 or bf16 elements.
inline float element(const std::byte* data, DType dtype, std::size_t i) {
  std::uint16_t bits = 0;
  float value = 0;
  if (dtype == DType::kF32) {
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  }
  std::memcpy(&bits, data + i * sizeof bits, sizeof bits);
  return bf16_value(bits);
}
inline void set_element(std::byte* data, DType dtype, std::size_t i, float value) {
  const std::uint16_t bits = bf16_bits(value);
  if (dtype == DType::kF32) std::memcpy(data + i * sizeof value, &value, sizeof value);
  if (dtype != DType::kF32) std::memcpy(data + i * sizeof bits, &bits, sizeof bits);
}

/// Where the threads of a group meet; a rank that fails frees the others.
class ThreadGroup {
 public:
  explicit ThreadGroup(int size) : size_(size) {}
  [[nodiscard]] int size() const { return size_; }
  /// What the ranks bring to their transfer number `operation`, of which each holds a rank.
  struct Operands {
    std::vector<TensorView> values;
    std::vector<std::vector<Message>> sends, receives;
    std::vector<std::string> texts;
  };
  Operands& at(std::int64_t operation) {
    const std::lock_guard lock(mutex_);
    Operands& operands = operations_[operation];
    const auto ranks = static_cast<std::size_t>(size_);
    operands.values.resize(ranks);
    operands.sends.resize(ranks);
    operands.receives.resize(ranks);
    operands.texts.resize(ranks);
    return operands;
  }
  /// Until every rank is here.
  void meet() {
    std::unique_lock lock(mutex_);
    const std::int64_t meeting = meetings_;
    if (++here_ == size_) {
      here_ = 0;
      ++meetings_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return meetings_ != meeting || failed_; });
    expect(meetings_ != meeting, "another rank has failed");
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, Operands> operations_;
  int here_ = 0;
  std::int64_t meetings_ = 0;
  bool failed_ = false;
};

/// One rank. Transfers are waited for in one order on all ranks, and every rank takes part in each
/// exchange. Groups and channels of it there are none.
class ThreadCommunicator final : public Communicator {
 public:
  /// `shares_memory`: what the communicator says of itself.
  ThreadCommunicator(ThreadGroup& group, int rank, bool shares_memory)
      : group_(group), rank_(rank), shares_memory_(shares_memory) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return group_.size(); }
  [[nodiscard]] bool shares_memory() const override { return shares_memory_; }
  [[nodiscard]] TrafficCounters counters() const override { return {}; }
  void barrier() override { group_.meet(); }

  void broadcast(std::span<std::byte> bytes, int root) override {
    const std::vector<std::string> all = all_gather_text(text_of(bytes));
    const std::string& from = all[static_cast<std::size_t>(root)];
    std::memcpy(bytes.data(), from.data(), bytes.size());
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::size_t at = 0;
    for (const std::string& each : all_gather_text(text_of(mine))) {
      std::memcpy(all.data() + at, each.data(), each.size());
      at += each.size();
    }
  }
  std::vector<std::string> all_gather_text(std::string_view mine) override {
    ThreadGroup::Operands& operands = group_.at(next_++);
    operands.texts[here()] = mine;
    group_.meet();
    return operands.texts;
  }

  Pending start_all_reduce(TensorView values) override {
    expect_summable("all_reduce", values);
    return start(values, [values](const ThreadGroup::Operands& operands) {
      return sums(operands, values, {0, values.count()});
    });
  }
  Pending start_reduce_scatter(TensorView shards) override {
    expect_summable("reduce_scatter", shards);
    expect_shards("reduce_scatter", shards);
    return start(shards, [this, shards](const ThreadGroup::Operands& operands) {
      return sums(operands, shards, even_slice(shards.count(), size(), rank_));
    });
  }
  Pending start_all_gather(TensorView shards) override {
    expect_shards("all_gather", shards);
    return start(shards, [](const ThreadGroup::Operands& operands) {
      std::string all;
      for (std::size_t rank = 0; rank < operands.values.size(); ++rank) {
        const TensorView& theirs = operands.values[rank];
        const std::size_t shard = theirs.bytes() / operands.values.size();
        all += text_of({theirs.data + rank * shard, shard});
      }
      return all;
    });
  }
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override {
    expect_messages(sends, receives);
    const std::int64_t number = next_++;
    ThreadGroup::Operands& operands = group_.at(number);
    operands.sends[here()].assign(sends.begin(), sends.end());
    operands.receives[here()].assign(receives.begin(), receives.end());
    return Pending([this, &operands] {
      group_.meet();
      std::vector<std::string> came;
      std::vector<std::size_t> taken(operands.sends.size());
      for (const Message& receive : operands.receives[here()])
        came.push_back(sent_by(operands, receive, taken));
      group_.meet();
      for (std::size_t i = 0; i < came.size(); ++i)
        std::memcpy(operands.receives[here()][i].bytes.data(), came[i].data(), came[i].size());
    });
  }

  std::unique_ptr<Communicator> split(int) override { throw InternalError("no groups of threads"); }
  std::unique_ptr<Communicator> channel(std::string_view) override {
    throw InternalError("no channels of threads");
  }

 private:
  static std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  [[nodiscard]] std::size_t here() const { return static_cast<std::size_t>(rank_); }

  /// `result` is read of all ranks' operands once all are waiting, and written when all have read.
  template <class Result>
  Pending start(TensorView values, const Result& result) {
    ThreadGroup::Operands& operands = group_.at(next_++);
    operands.values[here()] = values;
    return Pending([this, &operands, values, result] {
      group_.meet();
      const std::string bytes = result(operands);
      group_.meet();
      std::memcpy(values.data, bytes.data(), bytes.size());
    });
  }
  /// Added in fp32, neighbours first, rounded once; NaN outside of `shard`.
  static std::string sums(const ThreadGroup::Operands& operands, const TensorView& like,
                          Slice shard) {
    std::string bytes(like.bytes(), '\0');
    auto* to = reinterpret_cast<std::byte*>(bytes.data());
    for (std::int64_t i = 0; i < like.count(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      float sum = std::numeric_limits<float>::quiet_NaN();
      if (i >= shard.begin && i < shard.begin + shard.size) {
        sum = tree_sum(operands.values.size(), [&](std::size_t rank) {
          return element(operands.values[rank].data, like.dtype, at);
        });
      }
      set_element(to, like.dtype, at, sum);
    }
    return bytes;
  }
  /// The first message to this rank of `receive.rank` that no earlier one has taken.
  std::string sent_by(const ThreadGroup::Operands& operands, const Message& receive,
                      std::vector<std::size_t>& taken) const {
    const auto from = static_cast<std::size_t>(receive.rank);
    for (std::size_t& next = taken[from]; next < operands.sends[from].size();) {
      const Message& message = operands.sends[from][next++];
      if (message.rank != rank_) continue;
      expect(message.bytes.size() == receive.bytes.size(), "a message of {} bytes taken as {}",
             message.bytes.size(), receive.bytes.size());
      return text_of(message.bytes);
    }
    throw InternalError("a message that nobody sends");
  }

  ThreadGroup& group_;
  const int rank_;
  const bool shares_memory_;
  std::int64_t next_ = 0;
};

/// `work` on every rank at once; an exception of one ends the others and is thrown again.
inline void on_threads(int ranks, const std::function<void(Communicator&)>& work,
                       bool shares_memory = false) {
  ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr first;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadCommunicator channel(group, rank, shares_memory);
        work(channel);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        group.fail();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace trireme
