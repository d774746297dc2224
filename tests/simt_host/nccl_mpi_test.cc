// What stands for NCCL, and the channels of the program over it: each fault that a cluster would
// meet as a hang or as wrong numbers is found here, and the same without the fault is not.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "comm/gpu_channel.h"
#include "device/gpu.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/simt_host/runtime.h"
#include "support/mpi_test.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {
namespace {

constexpr std::int64_t kCount = 1000;

class NcclRanks : public testing::Test {
 protected:
  void SetUp() override { simt::set_streams(simt::Streams::kLazy); }
  void TearDown() override { simt::set_streams(simt::Streams::kEager); }

  [[nodiscard]] int rank() const { return test_world().rank(); }
  [[nodiscard]] int size() const { return test_world().size(); }

  /// [kCount] f32 on the GPU, each this.
  Buffer filled(float value) {
    Buffer buffer(DType::kF32, {kCount}, context_.device());
    fill(buffer, value);
    return buffer;
  }
  void fill(const Buffer& buffer, float value) {
    const std::vector<float> host(kCount, value);
    copy_in(context_, buffer.view(), std::as_bytes(std::span(host)));
  }
  /// The first element, once all that the context was asked for is done.
  float value_of(const Buffer& buffer) {
    std::vector<float> host(kCount);
    copy_out(context_, std::as_writable_bytes(std::span(host)), buffer.view());
    for (const float value : host) EXPECT_EQ(value, host[0]);
    return host[0];
  }
  /// 1 + 2 + ... of ranks.
  [[nodiscard]] float sum_of_ranks() const { return static_cast<float>(size() * (size() + 1)) / 2; }
  std::unique_ptr<Communicator> channel(const char* name) {
    return gpus_->channel(test_world(), name);
  }
  /// Whether it holds on any rank; every rank asks.
  static bool any(bool mine) {
    std::array<std::int64_t, 1> met{mine ? 1 : 0};
    test_world().maximum(met);
    return met[0] != 0;
  }

  Context context_{{DeviceKind::kCuda, 0}, 1, detect_isa()};
  TransferFaults faults_;
  FlightRecorder recorder_;
  std::unique_ptr<GpuChannels> gpus_ =
      make_gpu_channels(test_world(), context_, recorder_, faults_);
};

TEST_F(NcclRanks, sums_gathers_and_exchanges) {
  const auto data = channel("data");
  const Buffer sum = filled(static_cast<float>(rank() + 1));
  data->start_all_reduce(sum.view()).wait();
  EXPECT_EQ(value_of(sum), sum_of_ranks());

  const std::int64_t piece = 10;
  Buffer shards(DType::kF32, {size() * piece}, context_.device());
  std::vector<float> host(static_cast<std::size_t>(shards.view().count()));
  for (std::size_t i = 0; i < host.size(); ++i)
    host[i] = static_cast<float>(i) * static_cast<float>(rank() + 1);
  copy_in(context_, shards.view(), std::as_bytes(std::span(host)));
  data->start_reduce_scatter(shards.view()).wait();
  data->start_all_gather(shards.view()).wait();
  copy_out(context_, std::as_writable_bytes(std::span(host)), shards.view());
  for (std::size_t i = 0; i < host.size(); ++i)
    EXPECT_EQ(host[i], static_cast<float>(i) * sum_of_ranks());

  // To the next rank, from the one before.
  const Buffer mine = filled(static_cast<float>(rank())), theirs = filled(-1);
  const Message to = message_of((rank() + 1) % size(), mine.view());
  const Message from = message_of((rank() + size() - 1) % size(), theirs.view());
  data->start_exchange({&to, 1}, {&from, 1}).wait();
  EXPECT_EQ(value_of(theirs), static_cast<float>((rank() + size() - 1) % size()));
  EXPECT_EQ(data->counters().transfers, 4);
}

TEST_F(NcclRanks, a_channel_of_some_ranks_and_none_of_the_others) {
  const auto pair = test_world().split(rank() < 2 ? 0 : 1 + rank());
  const auto some = gpus_->channel(*pair, "some");
  EXPECT_EQ(some->size(), rank() < 2 ? std::min(size(), 2) : 1);
  const Buffer value = filled(static_cast<float>(rank() + 1));
  some->start_all_reduce(value.view()).wait();
  EXPECT_EQ(value_of(value), rank() < 2 ? 3 : static_cast<float>(rank() + 1));
}

TEST_F(NcclRanks, a_result_that_nobody_waited_for_is_not_there) {
  const auto data = channel("data");
  const Buffer sum = filled(1), copy = filled(0);
  Pending pending = data->start_all_reduce(sum.view());
  accumulate(context_, copy.view(), sum.view());  // planted: before the wait
  EXPECT_NE(value_of(copy), static_cast<float>(size()));
  pending.wait();
  fill(copy, 0);
  accumulate(context_, copy.view(), sum.view());
  EXPECT_EQ(value_of(copy), static_cast<float>(size()));
}

TEST_F(NcclRanks, a_buffer_that_is_used_again_while_it_is_sent_spoils_what_is_sent) {
  const auto data = channel("data");
  for (const bool planted : {false, true}) {
    const Buffer mine = filled(5), theirs = filled(-1);
    const Message to = message_of((rank() + 1) % size(), mine.view());
    const Message from = message_of((rank() + size() - 1) % size(), theirs.view());
    Pending pending = data->start_exchange({&to, 1}, {&from, 1});
    if (!planted) pending.wait();
    fill(mine, 7);
    pending.wait();
    EXPECT_EQ(value_of(theirs), planted ? 7 : 5);
    test_world().barrier();
  }
}

/// What never ends on a GPU ends after some seconds here, as a deadlock that is told.
class NcclDeadlock : public NcclRanks {
 protected:
  void SetUp() override {
    ::setenv("TRIREME_SIMT_PATIENCE_SECONDS", "4", 1);
    NcclRanks::SetUp();
  }
  void TearDown() override {
    ::unsetenv("TRIREME_SIMT_PATIENCE_SECONDS");
    NcclRanks::TearDown();
  }
  /// Rank 0's message to rank 1 is answered by another.
  struct Talk {
    Buffer out, in;
    std::unique_ptr<Communicator> there, back;
    Message to, from;
  };
  Talk make_talk() {
    Talk talk{filled(3), filled(0), channel("there"), channel("back"), {}, {}};
    talk.to = message_of(1 - rank(), talk.out.view());
    talk.from = message_of(1 - rank(), talk.in.view());
    return talk;
  }
  void answer(const Talk& talk) {
    talk.there->start_exchange({}, {&talk.from, 1}).wait();
    const Message same = message_of(0, talk.in.view());
    talk.back->start_exchange({&same, 1}, {}).wait();
    context_.synchronize();
  }
  /// `work(planted)` ends in a deadlock on some rank where its fault is planted, and only there; it
  /// is told where ranks stood.
  void expect_deadlock_where_planted(const std::function<void(bool)>& work) {
    for (const bool planted : {false, true}) {
      bool mine = false;
      try {
        work(planted);
      } catch (const simt::Fault& fault) {
        mine = fault.kind == simt::FaultKind::kDeadlock;
        EXPECT_NE(std::string(fault.what()).find("rank 1 "), std::string::npos) << fault.what();
      }
      EXPECT_EQ(any(mine), planted);
    }
  }
};

TEST_F(NcclDeadlock, two_communicators_in_two_orders) {
  expect_deadlock_where_planted([&](bool planted) {
    const auto first = channel("first"), second = channel("second");
    const Buffer a = filled(1), b = filled(2);
    const bool swapped = planted && rank() == 1;
    Communicator &one = swapped ? *second : *first, &two = swapped ? *first : *second;
    Pending early = one.start_all_reduce((swapped ? b : a).view());
    two.start_all_reduce((swapped ? a : b).view()).wait();
    early.wait();
    context_.synchronize();
  });
}

/// Small as they are, messages one way stand behind each other too.
TEST_F(NcclDeadlock, two_messages_that_cross_in_two_orders) {
  expect_deadlock_where_planted([&](bool planted) {
    const Talk talk = make_talk();
    if (rank() > 1) return;
    const auto there = [&] {
      return rank() == 0 ? talk.there->start_exchange({&talk.to, 1}, {})
                         : talk.there->start_exchange({}, {&talk.from, 1});
    };
    const auto back = [&] {
      return rank() == 0 ? talk.back->start_exchange({}, {&talk.from, 1})
                         : talk.back->start_exchange({&talk.to, 1}, {});
    };
    Pending first, second;
    if (planted && rank() == 0) {
      second = back();
      first = there();
    } else {
      first = there();
      second = back();
    }
    first.wait();
    second.wait();
    context_.synchronize();
  });
}

TEST_F(NcclDeadlock, a_receive_in_front_of_what_it_needs) {
  expect_deadlock_where_planted([&](bool planted) {
    const Talk talk = make_talk();
    if (rank() == 1) answer(talk);
    if (rank() != 0) return;
    // Planted: in the stream of the message that it answers, and in front of it.
    Communicator& channel = planted ? *talk.there : *talk.back;
    Pending received;
    if (planted) received = channel.start_exchange({}, {&talk.from, 1});
    talk.there->start_exchange({&talk.to, 1}, {}).wait();
    if (!planted) received = channel.start_exchange({}, {&talk.from, 1});
    received.wait();
    context_.synchronize();
  });
}

/// However many streams there are: freeing memory waits for the device, and a receive that spins
/// there for what the host has not asked for yet.
TEST_F(NcclDeadlock, memory_freed_while_a_receive_spins) {
  expect_deadlock_where_planted([&](bool planted) {
    const Talk talk = make_talk();
    // The message comes when the host of its receiver has been told to go on.
    struct Meeting {
      ~Meeting() { test_world().barrier(); }
    };
    if (rank() == 1) {
      { const Meeting meeting; }
      const Message message = message_of(0, talk.in.view());
      talk.back->start_exchange({&message, 1}, {}).wait();
      context_.synchronize();
    }
    if (rank() > 1) const Meeting meeting;
    if (rank() != 0) return;
    void* scratch = nullptr;
    cudaMalloc(&scratch, 64);
    Pending received = talk.back->start_exchange({}, {&talk.from, 1});
    {
      const Meeting meeting;
      if (planted) cudaFree(scratch);
    }
    received.wait();
    context_.synchronize();
    if (!planted) cudaFree(scratch);
  });
}

class NcclWindows : public NcclRanks {
 protected:
  /// [2 * kCount] f32 of NCCL's memory.
  struct Registered {
    Memory memory;
    std::shared_ptr<void> registration;
    [[nodiscard]] TensorView view(std::int64_t offset) const {
      return {memory.data() + offset * 4, DType::kF32, {kCount}};
    }
  };
  static constexpr std::size_t kBytes = 2 * kCount * 4;
  Registered registered(Communicator& channel, std::size_t bytes = kBytes) {
    Registered made{channel.transfer_memory(context_.device(), kBytes), nullptr};
    made.registration = channel.register_memory({made.memory.data(), bytes});
    return made;
  }
  /// What a step that all ranks take is refused with, on any of them.
  template <class F>
  bool refused(std::string_view what, const F& step) {
    bool named = false;
    try {
      step();
      context_.synchronize();
    } catch (const simt::Fault& fault) {
      named = std::string_view(fault.what()).find(what) != std::string_view::npos;
    }
    return any(named);
  }
};

TEST_F(NcclWindows, transfers_in_registered_memory_give_what_others_give) {
  const auto data = channel("data"), replicas = channel("replicas");
  const Registered ring = registered(*data);
  const std::shared_ptr<void> also = replicas->register_memory({ring.memory.data(), kBytes});
  EXPECT_NE(ring.registration, nullptr);
  EXPECT_NE(also, nullptr);
  for (const std::int64_t offset : {std::int64_t{0}, kCount}) {
    const std::vector<float> host(kCount, static_cast<float>(rank() + 1));
    copy_in(context_, ring.view(offset), std::as_bytes(std::span(host)));
    data->start_all_reduce(ring.view(offset)).wait();
    replicas->start_all_reduce(ring.view(offset)).wait();
    std::vector<float> sums(kCount);
    copy_out(context_, std::as_writable_bytes(std::span(sums)), ring.view(offset));
    EXPECT_EQ(sums.front(), sum_of_ranks() * static_cast<float>(size()));
  }
}

/// NCCL reads and writes other ranks' memory at this rank's offset: on a cluster, wrong numbers.
TEST_F(NcclWindows, operands_at_two_offsets_are_named) {
  if (size() == 1) GTEST_SKIP() << "one rank has one offset";
  const auto data = channel("data");
  const Registered ring = registered(*data);
  EXPECT_TRUE(refused("at byte 4000 of window 1",
                      [&] { data->start_all_reduce(ring.view(rank() == 0 ? 0 : kCount)).wait(); }));
}

/// Other ranks may read and write it still: on a cluster, a fault of whoever comes first.
TEST_F(NcclWindows, memory_that_is_freed_while_registered_is_named) {
  const auto data = channel("data");
  const Registered ring = registered(*data);
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto release = reinterpret_cast<int (*)(void*)>(::dlsym(library, "ncclMemFree"));
  EXPECT_TRUE(refused("freed that is registered still", [&] { release(ring.memory.data()); }));
}

TEST_F(NcclWindows, memory_of_other_sizes_or_of_another_allocator_is_not_registered) {
  const auto data = channel("data");
  if (size() > 1) {
    EXPECT_EQ(registered(*data, kBytes - (rank() == 0 ? 16 : 0)).registration, nullptr);
  }
  const Buffer plain = filled(1);
  EXPECT_EQ(data->register_memory({plain.view().data, plain.bytes()}), nullptr);
}

TEST_F(NcclDeadlock, messages_of_two_lengths_are_named) {
  const Buffer buffer = filled(1);
  const auto data = channel("data");  // ends before the buffer is freed, which would wait for it
  Message message = message_of(1 - rank(), buffer.view());
  if (rank() == 1) message.bytes = message.bytes.first(8);
  bool named = false;
  try {
    if (rank() == 0) data->start_exchange({}, {&message, 1}).wait();
    if (rank() == 1) data->start_exchange({&message, 1}, {}).wait();
    context_.synchronize();
  } catch (const simt::Fault& fault) {
    named = std::string(fault.what()).find("expects 4000 bytes of rank 1, which sends 8") !=
            std::string::npos;
  }
  EXPECT_TRUE(any(named));
}

}  // namespace
}  // namespace trireme
