#include "train/step_graph.h"

#include <gtest/gtest.h>

#include "base/op_trace.h"
#include "device/gpu.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "pipeline/device_batches.h"
#include "support/program_device.h"
#include "tensor/buffer.h"
#include "tensor/transfer.h"

namespace trireme {
namespace {

std::vector<std::int64_t> one_key(std::int64_t key) { return {key}; }

/// Counts how often the work is called, and adds 1 to a tensor where it runs.
struct Counted {
  Context context;
  Buffer sum, one;
  int calls = 0;

  Counted()
      : context(program_device(), 1, detect_isa()),
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
    graph.run(one_key(7), [&] { counted.work(); });
    EXPECT_EQ(counted.result(), static_cast<float>(i));
  }
  EXPECT_EQ(counted.calls, gpu ? 2 : 5);
  EXPECT_EQ(graph.recorded(), gpu);
}

TEST(StepGraph, other_work_and_moved_scratch_begin_anew) {
  Counted counted;
  if (!counted.context.on_gpu()) GTEST_SKIP() << "the CPU records nothing";
  StepGraph graph(counted.context, StepGraph::Mode::kAuto);
  const auto run = [&](std::int64_t key) { graph.run(one_key(key), [&] { counted.work(); }); };
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

/// Token ids as a loader hands them out, `count` of them and all the same.
struct Ids {
  std::vector<std::int32_t> ids;
  MicroBatch batch;
  Ids(std::int64_t count, std::int32_t id) : ids(static_cast<std::size_t>(count), id) {
    batch.sequences = 1;
    batch.tokens = count;
    batch.input_ids = {reinterpret_cast<const std::byte*>(ids.data()), DType::kI32, {count}};
  }
};

TEST(StepGraph, a_step_follows_its_batches_where_they_move) {
  Counted counted;
  if (!counted.context.on_gpu()) GTEST_SKIP() << "the CPU records nothing";
  Context& context = counted.context;
  Buffer table(DType::kF32, {4, 1}, context.device()), out(DType::kF32, {3, 1}, context.device());
  const std::vector<float> values = {10, 11, 12, 13};
  copy_in(context, table.view(), std::as_bytes(std::span(values)));
  DeviceBatches device;
  StepGraph graph(context, StepGraph::Mode::kAuto);
  std::vector<std::int64_t> key;
  const auto step = [&](std::int32_t id) {
    const Ids ids(3, id);
    const auto batches = device.bring(context, {&ids.batch, 1});
    set_step_key(key, batches);
    graph.run(key, [&] {
      ++counted.calls;
      embedding_forward(context, {.out_TC = out.view(),
                                  .ids_T = batches[0].input_ids,
                                  .table_VC = std::as_const(table).view()});
    });
    std::vector<float> found(3);
    copy_out(context, std::as_writable_bytes(std::span(found)), out.view());
    return found[2];
  };
  EXPECT_EQ(step(0), 10);
  EXPECT_EQ(step(1), 11);
  EXPECT_EQ(step(2), 12);
  EXPECT_EQ(counted.calls, 2);
  EXPECT_TRUE(graph.recorded());
  const Ids larger(3000, 3);  // for which the memory moves
  device.bring(context, {&larger.batch, 1});
  EXPECT_EQ(step(1), 11);
  EXPECT_EQ(counted.calls, 3);
  EXPECT_EQ(step(2), 12);
  EXPECT_EQ(step(3), 13);
  EXPECT_EQ(counted.calls, 4);
}

TEST(StepGraph, off_and_traced_work_is_plain) {
  Counted counted;
  StepGraph off(counted.context, StepGraph::Mode::kOff);
  for (int i = 0; i < 3; ++i) off.run(one_key(1), [&] { counted.work(); });
  EXPECT_EQ(counted.calls, 3);
  const Trace phases(1);
  OpTrace ops(phases);
  counted.context.set_op_trace(&ops);
  StepGraph traced(counted.context, StepGraph::Mode::kAuto);
  for (int i = 0; i < 3; ++i) traced.run(one_key(1), [&] { counted.work(); });
  EXPECT_EQ(counted.calls, 6);
  EXPECT_EQ(counted.result(), 6.0F);
}

/// A recording that fails leaves a stream that works.
TEST(StepGraph, an_error_while_recording_is_passed_on) {
  Counted counted;
  if (!counted.context.on_gpu()) GTEST_SKIP() << "the CPU records nothing";
  StepGraph graph(counted.context, StepGraph::Mode::kAuto);
  graph.run(one_key(1), [&] { counted.work(); });
  EXPECT_THROW(graph.run(one_key(1), [&] { throw DataError("in between"); }), DataError);
  graph.run(one_key(1), [&] { counted.work(); });
  EXPECT_EQ(counted.result(), 2.0F);
}

TEST(StepGraph, work_that_cannot_be_recorded_is_plain_from_then_on) {
  Counted counted;
  if (!counted.context.on_gpu()) GTEST_SKIP() << "the CPU records nothing";
  StepGraph graph(counted.context, StepGraph::Mode::kAuto);
  for (int i = 1; i <= 4; ++i) {
    graph.run(one_key(1), [&] {
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
    for (int i = 0; i < 3; ++i) graph.run(one_key(1), [&] { counted.work(); });
    EXPECT_TRUE(graph.recorded());
    gpu::begin_capture(stream);
    EXPECT_THROW(counted.context.synchronize(), InternalError);
  }
  gpu::abandon_capture(stream);
  EXPECT_EQ(counted.result(), 3.0F);
}

}  // namespace
}  // namespace trireme
