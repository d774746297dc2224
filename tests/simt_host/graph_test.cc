// Captures and graphs: replayed in any order that their dependencies allow; what CUDA refuses while
// it captures is refused.

#include <gtest/gtest.h>

#include "simt_host/device_array.h"
#include "simt_host/stream_kernels.h"

namespace trireme::simt_cases {
namespace {

constexpr int kCount = 100;

class GraphTest : public testing::Test {
 protected:
  void SetUp() override {
    cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming);
  }
  void TearDown() override {
    simt::set_streams(simt::Streams::kEager);
    cudaEventDestroy(forked_);
    cudaEventDestroy(joined_);
    cudaStreamDestroy(a_);
    cudaStreamDestroy(b_);
    cudaGetLastError();
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    ASSERT_EQ(cudaStreamBeginCapture(a_, mode), cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(a_, &graph);
    if (error == cudaSuccess) cudaGraphDestroy(graph);
    return error;
  }

  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
  DeviceArray<float> in_{std::vector<float>(kCount, 1.0f)}, x_{kCount}, y_{kCount}, out_{kCount};
};

TEST_F(GraphTest, a_capture_runs_nothing_and_a_graph_runs_it_again_and_again) {
  cudaMemset(x_.data(), 0, kCount * sizeof(float));
  begin();
  add_one(x_.data(), x_.data(), kCount, a_);
  add_one(x_.data(), x_.data(), kCount, a_);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(a_, &status);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
  EXPECT_EQ(x_.values()[0], 0.0f);
  std::size_t nodes = 0;
  cudaGraphGetNodes(graph, nullptr, &nodes);
  EXPECT_EQ(nodes, 2U);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  cudaGraphDestroy(graph);
  for (int i = 0; i < 3; ++i) cudaGraphLaunch(exec, a_);
  cudaGraphExecDestroy(exec);
  cudaStreamSynchronize(a_);
  EXPECT_EQ(x_.values(), std::vector<float>(kCount, 6.0f));
}

TEST_F(GraphTest, streams_fork_and_join_by_events) {
  for (const auto mode : {simt::Streams::kEager, simt::Streams::kLazy, simt::Streams::kRandom}) {
    simt::set_streams(mode, 3);
    begin();
    add_one(x_.data(), in_.data(), kCount, a_);
    cudaEventRecord(forked_, a_);
    cudaStreamWaitEvent(b_, forked_, 0);
    add_one(y_.data(), x_.data(), kCount, b_);
    cudaEventRecord(joined_, b_);
    cudaStreamWaitEvent(a_, joined_, 0);
    add_one(out_.data(), y_.data(), kCount, a_);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphLaunch(exec, a_);
    cudaStreamSynchronize(a_);
    EXPECT_EQ(out_.values(), std::vector<float>(kCount, 4.0f));
    cudaGraphDestroy(graph);
    cudaGraphExecDestroy(exec);
  }
}

TEST_F(GraphTest, a_missing_dependency_shows_in_a_replay) {
  begin();
  cudaEventRecord(forked_, a_);
  cudaStreamWaitEvent(b_, forked_, 0);
  add_one(x_.data(), in_.data(), kCount, a_);
  add_one(out_.data(), x_.data(), kCount, b_);  // nothing says that a's work comes first
  cudaEventRecord(joined_, b_);
  cudaStreamWaitEvent(a_, joined_, 0);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  cudaGraphInstantiate(&exec, graph, 0);
  simt::set_streams(simt::Streams::kLazy);
  cudaGraphLaunch(exec, a_);
  EXPECT_THROW(cudaStreamSynchronize(a_), simt::Fault);
  cudaGraphDestroy(graph);
  cudaGraphExecDestroy(exec);
}

TEST_F(GraphTest, a_stream_that_was_not_joined_is_refused) {
  begin();
  cudaEventRecord(forked_, a_);
  cudaStreamWaitEvent(b_, forked_, 0);
  add_one(x_.data(), in_.data(), kCount, b_);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  // Both streams are ordinary ones again.
  add_one(x_.data(), in_.data(), kCount, b_);
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(x_.values()[0], 2.0f);
}

TEST_F(GraphTest, synchronising_makes_a_capture_invalid) {
  begin();
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  cudaEventRecord(forked_, a_);
  EXPECT_EQ(cudaEventSynchronize(forked_), cudaErrorStreamCaptureUnsupported);
  end();
}

TEST_F(GraphTest, pageable_copies_and_allocations_are_refused) {
  std::vector<float> host(kCount);
  begin();
  EXPECT_EQ(cudaMemcpyAsync(x_.data(), host.data(), 4, cudaMemcpyDefault, a_),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(GraphTest, pinned_copies_read_what_stands_there_at_the_replay) {
  float* pinned = nullptr;
  cudaHostAlloc(reinterpret_cast<void**>(&pinned), 4, cudaHostAllocDefault);
  *pinned = 1.0f;
  begin();
  cudaMemcpyAsync(x_.data(), pinned, 4, cudaMemcpyDefault, a_);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  cudaGraphInstantiate(&exec, graph, 0);
  *pinned = 5.0f;
  cudaGraphLaunch(exec, a_);
  cudaStreamSynchronize(a_);
  EXPECT_EQ(x_.values()[0], 5.0f);
  cudaGraphDestroy(graph);
  cudaGraphExecDestroy(exec);
  cudaFreeHost(pinned);
}

TEST_F(GraphTest, a_captured_stream_may_not_wait_for_the_outside) {
  cudaEventRecord(forked_, b_);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(a_, forked_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(GraphTest, ends_and_beginnings_must_match) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
            cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorIllegalState);
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  EXPECT_EQ(end(), cudaSuccess);
}

}  // namespace
}  // namespace trireme::simt_cases
