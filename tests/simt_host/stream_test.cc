// Streams, events and copies as lazy queues: what a program forgot to order is found.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "simt_host/device_array.h"
#include "simt_host/stream_kernels.h"

namespace trireme::simt_cases {
namespace {

constexpr int kCount = 100;

class StreamTest : public testing::Test {
 protected:
  void SetUp() override {
    simt::set_streams(simt::Streams::kLazy);
    cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    cudaHostAlloc(reinterpret_cast<void**>(&pinned_), kCount * sizeof(float), cudaHostAllocDefault);
  }
  void TearDown() override {
    simt::set_streams(simt::Streams::kEager);
    cudaEventDestroy(event_);
    cudaStreamDestroy(a_);
    cudaStreamDestroy(b_);
    cudaFreeHost(pinned_);
    simt::options() = {};
  }
  static std::size_t bytes() { return kCount * sizeof(float); }

  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t event_ = nullptr;
  float* pinned_ = nullptr;
};

TEST_F(StreamTest, work_runs_when_it_is_waited_for) {
  const DeviceArray<float> in(std::vector<float>(kCount, 1.0f)), out(kCount);
  add_one(out.data(), in.data(), kCount, a_);
  EXPECT_EQ(cudaStreamQuery(a_), cudaErrorNotReady);
  EXPECT_TRUE(std::isnan(out.data()[0]));  // host execution: the host may look
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(out.values(), std::vector<float>(kCount, 2.0f));
}

TEST_F(StreamTest, an_event_orders_two_streams) {
  for (const auto mode : {simt::Streams::kLazy, simt::Streams::kRandom, simt::Streams::kEager}) {
    simt::set_streams(mode, 7);
    const DeviceArray<float> in(std::vector<float>(kCount, 1.0f)), middle(kCount), out(kCount);
    add_one(middle.data(), in.data(), kCount, a_);
    cudaEventRecord(event_, a_);
    cudaStreamWaitEvent(b_, event_, 0);
    add_one(out.data(), middle.data(), kCount, b_);
    cudaStreamSynchronize(b_);
    EXPECT_EQ(out.values(), std::vector<float>(kCount, 3.0f));
    cudaStreamSynchronize(a_);
  }
}

TEST_F(StreamTest, a_forgotten_wait_reads_what_nobody_wrote) {
  const DeviceArray<float> in(std::vector<float>(kCount, 1.0f)), middle(kCount), out(kCount);
  add_one(middle.data(), in.data(), kCount, a_);
  cudaEventRecord(event_, a_);
  add_one(out.data(), middle.data(), kCount, b_);
  try {
    cudaStreamSynchronize(b_);
    FAIL();
  } catch (const simt::Fault& fault) {
    EXPECT_EQ(fault.kind, simt::FaultKind::kUninitialised) << fault.what();
  }
  simt::options().check_memory = false;  // as in a program whose kernels are not checked
  add_one(out.data(), middle.data(), kCount, b_);
  cudaStreamSynchronize(b_);
  EXPECT_TRUE(std::isnan(out.data()[0]));
}

TEST_F(StreamTest, an_event_stands_for_what_came_before_its_last_record) {
  const DeviceArray<float> in(std::vector<float>(kCount, 1.0f)), x(kCount), y(kCount), out(kCount);
  cudaStreamWaitEvent(b_, event_, 0);  // never recorded: no wait
  add_one(x.data(), in.data(), kCount, a_);
  cudaEventRecord(event_, a_);
  add_one(y.data(), x.data(), kCount, a_);
  cudaEventRecord(event_, a_);
  cudaStreamWaitEvent(b_, event_, 0);
  add_one(out.data(), y.data(), kCount, b_);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  cudaStreamSynchronize(b_);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(out.values(), std::vector<float>(kCount, 4.0f));
}

TEST_F(StreamTest, a_wait_that_nobody_will_end_is_reported) {
  // A faulty operation of stream b is dropped, the record behind it never comes to be waited for.
  simt::enqueue(b_, [] { throw simt::Fault(simt::FaultKind::kRace, "planted"); });
  cudaEventRecord(event_, b_);
  cudaStreamWaitEvent(a_, event_, 0);
  EXPECT_THROW(cudaStreamSynchronize(a_), simt::Fault);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
}

TEST_F(StreamTest, pinned_memory_used_again_too_early_shows) {
  const DeviceArray<float> x(kCount);
  std::fill_n(pinned_, kCount, 1.0f);
  cudaMemcpyAsync(x.data(), pinned_, bytes(), cudaMemcpyHostToDevice, a_);
  std::fill_n(pinned_, kCount, 2.0f);  // before the copy was waited for
  cudaStreamSynchronize(a_);
  EXPECT_EQ(x.values(), std::vector<float>(kCount, 2.0f));
}

TEST_F(StreamTest, pageable_memory_is_read_at_once_and_written_at_once) {
  const DeviceArray<float> x(kCount);
  std::vector<float> host(kCount, 1.0f);
  cudaMemcpyAsync(x.data(), host.data(), bytes(), cudaMemcpyDefault, a_);
  host.assign(kCount, 2.0f);
  add_one(x.data(), x.data(), kCount, a_);
  cudaMemcpyAsync(host.data(), x.data(), bytes(), cudaMemcpyDefault, a_);
  EXPECT_EQ(host, std::vector<float>(kCount, 2.0f));
}

TEST_F(StreamTest, the_kind_of_a_copy_must_be_true) {
  const DeviceArray<float> x(kCount);
  std::vector<float> host(kCount);
  EXPECT_EQ(cudaMemcpyAsync(x.data(), host.data(), bytes(), cudaMemcpyDeviceToHost, a_),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(StreamTest, managed_memory_is_either_side_of_a_copy) {
  float* managed = nullptr;
  cudaMallocManaged(reinterpret_cast<void**>(&managed), bytes(), cudaMemAttachGlobal);
  const std::vector<float> host(kCount, 1.0f);
  const DeviceArray<float> out(kCount);
  EXPECT_EQ(cudaMemcpyAsync(managed, host.data(), bytes(), cudaMemcpyDefault, a_), cudaSuccess);
  add_one(managed, managed, kCount, a_);
  EXPECT_EQ(cudaMemcpyAsync(out.data(), managed, bytes(), cudaMemcpyHostToDevice, a_), cudaSuccess);
  cudaStreamSynchronize(a_);
  EXPECT_EQ(managed[5], 2.0f);
  EXPECT_EQ(out.values()[5], 2.0f);
  cudaFree(managed);
}

TEST_F(StreamTest, bytes_nobody_wrote_stay_such_when_they_are_copied) {
  const DeviceArray<float> from(kCount), to(kCount), out(kCount);
  cudaMemsetAsync(from.data(), 0, 4, a_);
  cudaMemcpyAsync(to.data(), from.data(), bytes(), cudaMemcpyDefault, a_);
  add_one(out.data(), to.data(), 1, a_);
  EXPECT_NO_THROW(cudaStreamSynchronize(a_));
  add_one(out.data(), to.data(), 2, a_);
  EXPECT_THROW(cudaStreamSynchronize(a_), simt::Fault);
}

TEST_F(StreamTest, rows_of_two_pitches_are_copied_and_filled) {
  const DeviceArray<float> x(12), y(std::vector<float>(12, 9.0f));
  const std::vector<float> host = {1, 2, 3, 4, 5, 6};
  cudaMemset2DAsync(x.data(), 16, 0, 16, 3, a_);
  cudaMemcpy2DAsync(x.data(), 16, host.data(), 8, 8, 3, cudaMemcpyDefault, a_);
  cudaMemcpy2DAsync(y.data(), 12, x.data(), 16, 12, 3, cudaMemcpyDefault, a_);
  cudaStreamSynchronize(a_);
  EXPECT_EQ(x.values(), (std::vector<float>{1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0}));
  EXPECT_EQ(y.values(), (std::vector<float>{1, 2, 0, 3, 4, 0, 5, 6, 0, 9, 9, 9}));
  EXPECT_EQ(cudaMemcpy2DAsync(x.data(), 4, host.data(), 8, 8, 3, cudaMemcpyDefault, a_),
            cudaErrorInvalidPitchValue);
  cudaGetLastError();
}

TEST_F(StreamTest, a_copy_past_the_end_is_found) {
  const DeviceArray<float> x(4);
  std::vector<float> host(8);
  cudaMemcpyAsync(x.data(), host.data(), 32, cudaMemcpyHostToDevice, a_);
  EXPECT_THROW(cudaStreamSynchronize(a_), simt::Fault);
}

TEST_F(StreamTest, memory_freed_under_an_operation_in_a_queue_is_found) {
  const DeviceArray<float> in(std::vector<float>(kCount, 1.0f)), out(kCount);
  for (const bool by_kernel : {true, false}) {
    float* x = nullptr;
    cudaMalloc(reinterpret_cast<void**>(&x), bytes());
    if (by_kernel) {
      add_one(x, in.data(), kCount, a_);
    } else {
      cudaMemcpyAsync(x, in.data(), bytes(), cudaMemcpyDefault, a_);
    }
    cudaFree(x);
    try {
      cudaStreamSynchronize(a_);
      ADD_FAILURE();
    } catch (const simt::Fault& fault) {
      EXPECT_EQ(fault.kind, simt::FaultKind::kOutOfBounds);
      EXPECT_NE(std::string(fault.what()).find("freed"), std::string::npos) << fault.what();
    }
  }
}

}  // namespace
}  // namespace trireme::simt_cases
