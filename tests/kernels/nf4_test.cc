#include "kernels/nf4/nf4.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/nf4_reference.h"
#include "kernels/support/op_test.h"
#include "support/golden.h"

namespace trireme {
namespace {

class Nf4Op : public OpTest {};
TRIREME_FOR_ALL_ISAS(Nf4Op);

/// A tensor's memory in NF4.
struct Coded {
  Shape shape;
  TestTensor codes, absmax;

  explicit Coded(const Shape& shape_)
      : shape(shape_),
        codes(DType::kU8, nf4_codes_shape(shape)),
        absmax(DType::kF32, nf4_absmax_shape(shape)) {
    // What is not written is seen.
    for (std::int64_t i = 0; i < codes.shape().count(); ++i) codes.set(i, 0x55);
  }
  Nf4View view() { return {codes, absmax, shape}; }
};

TestTensor of_f32(const std::vector<double>& x) {
  return TestTensor::of(DType::kF32, {static_cast<std::int64_t>(x.size())}, x);
}

/// x' is `expected`, of which a CPU that rounds to bf16 itself loses subnormal ones.
void expect_values(const TestTensor& found, const std::vector<double>& expected) {
  const std::vector<double> values = found.values();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool lost =
        found.dtype() == DType::kBF16 && std::abs(expected[i]) < 0x1p-126 && values[i] == 0;
    EXPECT_TRUE(values[i] == expected[i] || lost) << i << ": " << values[i] << ", " << expected[i];
  }
}

TEST_P(Nf4Op, values_by_hand) {
  Context context = test_context(GetParam());
  // A block whose largest magnitude is 2: each level twice itself, what lies between two levels,
  // a midpoint (of 0 and the next: to 0), and zeros.
  std::vector<double> x(64);
  for (int code = 0; code < 16; ++code)
    x[static_cast<std::size_t>(code)] = 2 * reference::nf4_level(code);
  x[16] = 2 * 0.45;                  // 0.4407 is nearer than 0.5626
  x[17] = -2 * 0.60;                 // -0.5251, midpoint -0.6106
  x[18] = 2 * 0.03979014977812767;   // the midpoint of codes 7 and 8, as an f32
  x[19] = 2 * 0.039790153503417969;  // the next f32
  const TestTensor values = of_f32(x);
  Coded out({64});
  nf4_quantize(context, out.view(), values);
  std::vector<double> bytes(32, 0x77);
  const int first[] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xc2, 0x78};
  std::copy(std::begin(first), std::end(first), bytes.begin());
  EXPECT_EQ(out.codes.values(), bytes);
  EXPECT_EQ(out.absmax.values(), std::vector<double>{2});

  TestTensor back(DType::kF32, {64});
  nf4_dequantize(context, back, out.view());
  std::vector<double> expected(64);
  std::copy(x.begin(), x.begin() + 16, expected.begin());
  expected[16] = 2 * reference::nf4_level(12);
  expected[17] = 2 * reference::nf4_level(2);
  expected[19] = 2 * reference::nf4_level(8);
  expect_values(back, expected);
}

TEST_P(Nf4Op, equals_bitsandbytes) {
  Context context = test_context(GetParam());
  const GoldenTensors golden = read_tensors(golden_path("nf4/tensors.safetensors"));
  const auto of = [&](const std::string& name, const char* key) -> const std::vector<double>& {
    return golden.at(name + "." + key).values;
  };
  int cases = 0;
  for (const auto& [key, tensor] : golden) {
    if (!key.ends_with(".x")) continue;
    const std::string name = key.substr(0, key.size() - 2);
    SCOPED_TRACE(name);
    ++cases;
    const TestTensor x = of_f32(tensor.values);
    Coded out(x.shape());
    nf4_quantize(context, out.view(), x);
    EXPECT_EQ(out.codes.values(), of(name, "codes"));
    EXPECT_EQ(out.absmax.values(), of(name, "absmax"));
    TestTensor in_f32(DType::kF32, x.shape()), in_bf16(DType::kBF16, x.shape());
    nf4_dequantize(context, in_f32, out.view());
    nf4_dequantize(context, in_bf16, out.view());
    expect_values(in_f32, of(name, "f32"));
    expect_values(in_bf16, of(name, "bf16"));
  }
  EXPECT_EQ(cases, 11);
}

TEST_P(Nf4Op, equals_the_formula_at_any_size_type_and_number_of_threads) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const Shape& shape : {Shape{1}, Shape{8}, Shape{3, 43}, Shape{16, 64}, Shape{7, 200},
                               Shape{41, 999}, Shape{0, 64}}) {
      SCOPED_TRACE(shape.text());
      const TestTensor x = TestTensor::random(DType::kF32, shape, 3, 0.02);
      const reference::Nf4 expected = reference::nf4_quantize(x.values());
      Coded out(shape);
      nf4_quantize(context, out.view(), x);
      EXPECT_EQ(out.codes.values(), expected.codes);
      EXPECT_EQ(out.absmax.values(), expected.absmax);
      const std::vector<double> back =
          reference::nf4_dequantize(expected, static_cast<std::size_t>(shape.count()));
      for (const DType type : {DType::kF32, DType::kBF16}) {
        TestTensor found(type, shape);
        nf4_dequantize(context, found, out.view());
        expect_values(found, TestTensor::of(type, shape, back).values());
      }
    }
  }
}

TEST_P(Nf4Op, a_block_with_a_value_that_is_not_finite_shows_it_and_no_other_does) {
  Context context = test_context(GetParam());
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    for (const std::int64_t size : {192, 150}) {
      TestTensor x = TestTensor::random(DType::kF32, {size}, 5);
      x.set(70, bad);
      x.set(149, bad);
      Coded out(x.shape());
      nf4_quantize(context, out.view(), x);
      TestTensor back(DType::kF32, x.shape());
      nf4_dequantize(context, back, out.view());
      const std::vector<double> values = back.values();
      for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isfinite(values[i]), i < 64);
    }
  }
}

TEST_P(Nf4Op, the_same_bits_each_time) {
  const TestTensor x = TestTensor::random(DType::kF32, {20, 321}, 9);
  expect_same_bits([&] {
    Context context = test_context(GetParam(), 2);
    Coded out(x.shape());
    nf4_quantize(context, out.view(), x);
    TestTensor back(DType::kBF16, x.shape());
    nf4_dequantize(context, back, out.view());
    return out.codes.bits() + out.absmax.bits() + back.bits();
  });
}

TEST_P(Nf4Op, wrong_operands_are_refused) {
  Context context = test_context(GetParam());
  const Shape shape{3, 43};
  TestTensor x(DType::kF32, shape), half(DType::kBF16, shape), whole(DType::kI32, shape);
  Coded good(shape), other({3, 44}), more({3, 65});
  const auto view = [&](Coded& codes, Coded& absmax) {
    return Nf4View(codes.codes, absmax.absmax, shape);
  };
  const auto quantize = [&](const Nf4View& out, ConstTensorView from) {
    return [&context, out, from] { nf4_quantize(context, out, from); };
  };
  const auto dequantize = [&](TensorView to, const Nf4View& from) {
    return [&context, to, from] { nf4_dequantize(context, to, from); };
  };
  expect_refused(quantize(good.view(), half),
                 "nf4_quantize.x: expected [3, 43] fp32, found [3, 43] bf16");
  expect_refused(quantize(other.view(), x), "nf4_quantize.x: expected [3, 44]");
  expect_refused(quantize(view(other, good), x),
                 "nf4_quantize.codes: expected [65] uint8, found [66] uint8");
  expect_refused(quantize(view(good, more), x), "nf4_quantize.absmax");
  expect_refused(dequantize(whole, good.view()),
                 "nf4_dequantize.x: expected fp32 or bf16, found int32");
  expect_refused(dequantize(x, view(other, good)), "nf4_dequantize.codes");
  const Nf4View shared(good.codes, x.view().reshape({129}).rows(0, 3), shape);
  expect_refused(dequantize(x, shared), "nf4_dequantize.x");
  const Nf4View codes_in_x({x.view().data, DType::kU8, {65}}, good.absmax, shape);
  expect_refused(quantize(codes_in_x, x), "nf4_quantize.x");
}

}  // namespace
}  // namespace trireme
