#include "train/step_graph.h"

#include <gtest/gtest.h>

#include "base/op_trace.h"
#include "device/gpu.h"
#include "kernels/elementwise/elementwise.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {
namespace {

/// Counts how often the work is called, and adds 1 to a tensor where it runs.
struct Counted {
  Context context;
  Buffer sum, one;
  int calls = 0;

  Counted()
      : context({gpu::backend_name() == "none" ? DeviceKind::kCpu : DeviceKind::kCuda, 0}, 1,
                detect_isa()),
        sum(DType::kF32, {3}, context.device()),
        one(DType::kF32, {3}, context.device()) {
    const std::vector<float> ones(3, 1.0F);
    copy_in(context, one.view(), std::as_bytes(std::span(ones)));
  }
  void work() {
    ++calls;
    accumulate(context, sum.view(), one.view());
  }
  float result() {
    std::vector<float> values(3);
    copy_out(context, std::as_writable_bytes(std::span(values)), sum.view());
    return values[2];
  }
};

TEST(StepGraph, work_is_recorded_the_second_time_and_replayed_after) {
  Counted counted;
  const bool gpu = counted.context.on_gpu();
  StepGraph graph(counted.context, StepGraph::Mode::kAuto);
  for (int i = 1; i <= 5; ++i) {
    graph.run(7, [&] { counted.work(); });
    EXPECT_EQ(counted.result(), static_cast<float>(i));
  }
  EXPECT_EQ(counted.calls, gpu ? 2 : 5);
  EXPECT_EQ(graph.recorded(), gpu);
}

TEST(StepGraph, other_work_and_moved_scratch_begin_anew) {
  Counted counted;
  if (!counted.context.on_gpu()) GTEST_SKIP() << "the CPU records nothing";
  StepGraph graph(counted.context, StepGraph::Mode::kAuto);
  const auto run = [&](std::int64_t key) { graph.run(key, [&] { counted.work(); }); };
  run(1), run(1), run(1);
  EXPECT_EQ(counted.calls, 2);
  run(2);
  EXPECT_EQ(counted.calls, 3);
  run(1);
  EXPECT_EQ(counted.calls, 4);
  run(1), run(1);
  EXPECT_EQ(counted.calls, 5);
  counted.context.scratch(counted.context.scratch_bytes() + (1 << 20));
  run(1);
  EXPECT_EQ(counted.calls, 6);
  EXPECT_FALSE(graph.recorded());
  EXPECT_EQ(counted.result(), 8.0F);
}

TEST(StepGraph, off_and_traced_work_is_plain) {
  Counted counted;
  StepGraph off(counted.context, StepGraph::Mode::kOff);
  for (int i = 0; i < 3; ++i) off.run(1, [&] { counted.work(); });
  EXPECT_EQ(counted.calls, 3);
  const Trace phases(1);
  OpTrace ops(phases);
  counted.context.set_op_trace(&ops);
  StepGraph traced(counted.context, StepGraph::Mode::kAuto);
  for (int i = 0; i < 3; ++i) traced.run(1, [&] { counted.work(); });
  EXPECT_EQ(counted.calls, 6);
  EXPECT_EQ(counted.result(), 6.0F);
}

/// A recording that fails leaves a stream that works.
TEST(StepGraph, an_error_while_recording_is_passed_on) {
  Counted counted;
  if (!counted.context.on_gpu()) GTEST_SKIP() << "the CPU records nothing";
  StepGraph graph(counted.context, StepGraph::Mode::kAuto);
  graph.run(1, [&] { counted.work(); });
  EXPECT_THROW(graph.run(1, [&] { throw DataError("in between"); }), DataError);
  graph.run(1, [&] { counted.work(); });
  EXPECT_EQ(counted.result(), 2.0F);
}

TEST(StepGraph, work_that_cannot_be_recorded_is_plain_from_then_on) {
  Counted counted;
  if (!counted.context.on_gpu()) GTEST_SKIP() << "the CPU records nothing";
  StepGraph graph(counted.context, StepGraph::Mode::kAuto);
  for (int i = 1; i <= 4; ++i) {
    graph.run(1, [&] {
      counted.work();
      counted.context.synchronize();  // which a recording refuses
    });
    EXPECT_EQ(counted.result(), static_cast<float>(i));
  }
  EXPECT_FALSE(graph.recorded());
  EXPECT_EQ(counted.calls, 5);  // the second run tried both ways
}

/// An error that ends a step also ends its graph, whose stream then refuses to be waited for.
TEST(StepGraph, its_end_throws_nothing) {
  Counted counted;
  if (!counted.context.on_gpu()) GTEST_SKIP() << "the CPU records nothing";
  void* stream = counted.context.exec().stream;
  {
    StepGraph graph(counted.context, StepGraph::Mode::kAuto);
    for (int i = 0; i < 3; ++i) graph.run(1, [&] { counted.work(); });
    EXPECT_TRUE(graph.recorded());
    gpu::begin_capture(stream);
    EXPECT_THROW(counted.context.synchronize(), InternalError);
  }
  gpu::abandon_capture(stream);
  EXPECT_EQ(counted.result(), 3.0F);
}

}  // namespace
}  // namespace trireme
