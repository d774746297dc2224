#include "plan/op_measure.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/trace.h"
#include "support/small_config.h"

namespace trireme {
namespace {

bool has(const std::vector<ProductShape>& shapes, const ProductShape& shape) {
  return std::find(shapes.begin(), shapes.end(), shape) != shapes.end();
}

ModelConfig llama() {
  return small_config(parse_json(R"({"model_type":"llama","hidden_size":64,"num_hidden_layers":3,
      "num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":96,"vocab_size":200})",
                                 "model"))
      .model;
}

TEST(OpMeasure, products_are_those_of_the_layers_whole_and_cut) {
  const std::vector<ProductShape> shapes = products_to_measure(llama(), 128, 1e12);
  // q, k and v together; all three uses.
  EXPECT_TRUE(has(shapes, {128, 128, 64, ProductUse::kForward}));
  EXPECT_TRUE(has(shapes, {128, 64, 128, ProductUse::kInput}));
  EXPECT_TRUE(has(shapes, {128, 64, 128, ProductUse::kWeight}));
  EXPECT_TRUE(has(shapes, {32, 192, 64, ProductUse::kForward}));  // a quarter of the tokens
  EXPECT_TRUE(has(shapes, {128, 96, 64, ProductUse::kForward}));  // two tensor ranks: gate and up
  EXPECT_TRUE(has(shapes, {128, 64, 48, ProductUse::kForward}));  // and down
  EXPECT_TRUE(has(shapes, {128, 48, 64, ProductUse::kInput}));    // its input
  EXPECT_TRUE(has(shapes, {200, 64, 128, ProductUse::kWeight}));  // the head's
  EXPECT_TRUE(has(shapes, {512, 2048, 256, ProductUse::kForward}));
  for (std::size_t i = 0; i < shapes.size(); ++i)
    EXPECT_EQ(std::count(shapes.begin(), shapes.end(), shapes[i]), 1) << i;
}

TEST(OpMeasure, long_products_are_cut_along_their_longest_side) {
  const std::vector<ProductShape> shapes = products_to_measure(llama(), 4096, 2e6);
  EXPECT_TRUE(has(shapes, {128, 96, 64, ProductUse::kForward}));  // of 4096, 192, 64
  for (const ProductShape& each : shapes)
    EXPECT_LE(2 * each.m * each.n * each.k, 2'000'000) << each.m << " " << each.n << " " << each.k;
}

TEST(OpMeasure, the_median_time_of_one_counts) {
  Context context({}, 1, detect_isa());
  int meetings = 0, calls = 0;
  const Measurement measurement{context, [&] { ++meetings; }};
  const double seconds = seconds_of(measurement, {3, 5}, [&] {
    // One repetition is slow.
    const std::int64_t end_ns = steady_now_ns() + (calls++ == 0 ? 20'000'000 : 100'000);
    while (steady_now_ns() < end_ns) {
    }
  });
  EXPECT_EQ(calls, 15);
  EXPECT_EQ(meetings, 10);
  EXPECT_GE(seconds, 1e-4);
  EXPECT_LT(seconds, 5e-3);
}

TEST(OpMeasure, uses_of_equal_sizes_are_one_entry) {
  Context context({}, 1, detect_isa());
  const std::vector<ProductSeconds> measured =
      measure_products({context},
                       {{32, 64, 48, ProductUse::kForward},
                        {32, 64, 48, ProductUse::kInput},
                        {32, 64, 48, ProductUse::kWeight},
                        {64, 64, 48, ProductUse::kForward}},
                       DType::kF32);
  ASSERT_EQ(measured.size(), 2U);
  EXPECT_EQ(measured[0].m, 32);
  EXPECT_EQ(measured[1].m, 64);
  EXPECT_GT(measured[0].seconds, 0);
  EXPECT_EQ(measured[1].type, DType::kF32);
}

TEST(OpMeasure, passes_go_up_to_the_largest) {
  Context context({}, 1, detect_isa());
  const std::vector<MemorySeconds> measured = measure_passes({context}, 64, DType::kF32, 3 << 20);
  ASSERT_EQ(measured.size(), 4U);
  EXPECT_EQ(measured.front().bytes, 1 << 16);
  EXPECT_EQ(measured.back().bytes, 3 << 20);
  for (std::size_t i = 1; i < measured.size(); ++i)
    EXPECT_GT(measured[i].seconds, measured[i - 1].seconds);
}

TEST(OpMeasure, attention_of_windows_and_shared_key_heads) {
  Context context({}, 1, detect_isa());
  AttentionConfig attention;
  attention.heads = 4;
  attention.kv_heads = 2;
  attention.head_dim = 16;
  for (const std::int64_t window : {0, 24}) {
    attention.window = window;
    const double flops = measure_attention({context}, attention, 96, DType::kF32);
    EXPECT_GT(flops, 1e7);
    EXPECT_LT(flops, 1e12);
  }
}

}  // namespace
}  // namespace trireme
