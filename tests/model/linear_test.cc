// A linear layer in its three products beside loops in float64.
#include "model/linear.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "model/model_ranks.h"
#include "support/program_device.h"
#include "tensor/buffer.h"

namespace trireme {
namespace {

using reference::Values;

constexpr std::int64_t kTokens = 7, kIn = 11, kOut = 10;

class Linear : public testing::TestWithParam<bool> {  // in_out
 protected:
  Linear() : context_(program_device(), 2, detect_isa()) {}
  [[nodiscard]] bool in_out() const { return GetParam(); }
  Buffer tensor(Shape shape, const Values& values) {
    Buffer buffer(DType::kF32, shape, context_.device());
    write(context_, buffer.view(), values);
    return buffer;
  }
  Buffer zeros(Shape shape) { return {DType::kF32, shape, context_.device()}; }
  [[nodiscard]] Shape weight_shape() const {
    return in_out() ? Shape{kIn, kOut} : Shape{kOut, kIn};
  }
  /// W of output o and input i.
  [[nodiscard]] std::size_t at(std::int64_t o, std::int64_t i) const {
    return static_cast<std::size_t>(in_out() ? i * kOut + o : o * kIn + i);
  }

  Context context_;
  const Values x_ = numbers(kTokens * kIn, 1, 1), dy_ = numbers(kTokens * kOut, 2, 1),
               w_ = numbers(kOut * kIn, 3, 1), b_ = numbers(kOut, 4, 1);
};
INSTANTIATE_TEST_SUITE_P(orientations, Linear, testing::Bool(),
                         [](const auto& in_out) { return in_out.param ? "in_out" : "out_in"; });

TEST_P(Linear, forward_is_the_product_and_the_bias) {
  const Buffer x = tensor({kTokens, kIn}, x_), w = tensor(weight_shape(), w_),
               b = tensor({kOut}, b_);
  for (const bool bias : {false, true}) {
    Values expected;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t o = 0; o < kOut; ++o) {
        double sum = bias ? b_[static_cast<std::size_t>(o)] : 0;
        for (std::int64_t i = 0; i < kIn; ++i)
          sum += x_[static_cast<std::size_t>(t * kIn + i)] * w_[at(o, i)];
        expected.push_back(sum);
      }
    }
    LinearWeights weights{w.view(), {}, in_out()};
    if (bias) weights.bias = b.view();
    const Buffer y = zeros({kTokens, kOut});
    linear_forward(context_, y.view(), x.view(), weights);
    expect_near(read(context_, y.view()), expected, 1e-6, bias ? "with bias" : "without");
  }
}

TEST_P(Linear, backward_input_is_dy_by_the_weight) {
  Values expected;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t i = 0; i < kIn; ++i) {
      double sum = 0;
      for (std::int64_t o = 0; o < kOut; ++o)
        sum += dy_[static_cast<std::size_t>(t * kOut + o)] * w_[at(o, i)];
      expected.push_back(sum);
    }
  }
  const Buffer dy = tensor({kTokens, kOut}, dy_), w = tensor(weight_shape(), w_),
               b = tensor({kOut}, b_), dx = zeros({kTokens, kIn});
  linear_backward_input(context_, dx.view(), dy.view(), {w.view(), b.view(), in_out()});
  expect_near(read(context_, dx.view()), expected, 1e-6, "dx");
}

TEST_P(Linear, backward_weight_sets_or_adds_and_the_bias_always_adds) {
  const Values before_w = numbers(kOut * kIn, 5, 1), before_b = numbers(kOut, 6, 1);
  const Buffer x = tensor({kTokens, kIn}, x_), dy = tensor({kTokens, kOut}, dy_);
  for (const Accumulate accumulate : {Accumulate::kNo, Accumulate::kYes}) {
    Values dw = accumulate == Accumulate::kYes ? before_w : Values(before_w.size()), db = before_b;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t o = 0; o < kOut; ++o) {
        const double d = dy_[static_cast<std::size_t>(t * kOut + o)];
        db[static_cast<std::size_t>(o)] += d;
        for (std::int64_t i = 0; i < kIn; ++i)
          dw[at(o, i)] += d * x_[static_cast<std::size_t>(t * kIn + i)];
      }
    }
    const Buffer weight = tensor(weight_shape(), before_w), bias = tensor({kOut}, before_b);
    linear_backward_weight(context_, {{weight.view(), accumulate}, bias.view(), in_out()},
                           dy.view(), x.view());
    expect_near(read(context_, weight.view()), dw, 1e-6, "dW");
    expect_near(read(context_, bias.view()), db, 1e-6, "db");
    const Buffer alone = tensor(weight_shape(), before_w);
    linear_backward_weight(context_, {{alone.view(), accumulate}, {}, in_out()}, dy.view(),
                           x.view());
    EXPECT_EQ(read(context_, alone.view()), read(context_, weight.view())) << "without a bias";
  }
}

TEST_P(Linear, an_epilogue_goes_over_rows_as_over_all) {
  context_.set_batch_invariant(true);
  const Buffer x = tensor({kTokens, kIn}, x_), w = tensor(weight_shape(), w_),
               b = tensor({kOut}, b_);
  const LinearWeights weights{w.view(), b.view(), in_out()};
  const Buffer whole = zeros({kTokens, kOut / 2}), whole_saved = zeros({kTokens, kOut}),
               parts = zeros({kTokens, kOut / 2}), parts_saved = zeros({kTokens, kOut}),
               plain = zeros({kTokens, kOut});
  linear_forward(context_, plain.view(), x.view(), weights);
  linear_forward(context_, whole.view(), x.view(), weights,
                 {GemmEpilogue::kSwiglu, {}, whole_saved.view()});
  const LinearEpilogue epilogue{GemmEpilogue::kSwiglu, {}, parts_saved.view()};
  for (const auto& [first, count] : {std::pair{0, 3}, std::pair{3, 4}})
    linear_forward(context_, parts.view().rows(first, count), x.view().rows(first, count), weights,
                   epilogue.rows(first, count));
  EXPECT_EQ(read(context_, whole_saved.view()), read(context_, plain.view()));
  EXPECT_EQ(read(context_, parts_saved.view()), read(context_, plain.view()));
  EXPECT_EQ(read(context_, parts.view()), read(context_, whole.view()));
}

TEST_P(Linear, what_follows_the_product_sees_each_row_once) {
  const Buffer x = tensor({kTokens, kIn}, x_), w = tensor(weight_shape(), w_),
               y = zeros({kTokens, kOut});
  std::vector<int> seen(kTokens);
  std::mutex mutex;
  const auto count_rows = [&](Context&, std::int64_t first, std::int64_t count) {
    const std::lock_guard lock(mutex);
    for (std::int64_t row = first; row < first + count; ++row)
      ++seen[static_cast<std::size_t>(row)];
  };
  LinearEpilogue epilogue;
  epilogue.then = count_rows;
  linear_forward(context_, y.view(), x.view(), {w.view(), {}, in_out()}, epilogue);
  EXPECT_EQ(seen, std::vector<int>(kTokens, 1));
  EXPECT_FALSE(epilogue.rows(0, 1).then.given());
}

}  // namespace
}  // namespace trireme
