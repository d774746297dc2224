// What cuBLASLt is asked for, beside what stands for it (kernels/simt_host/cublaslt), which
// multiplies what it is given: descriptors, layouts, scales.
//
// A program of its own, beside which a library of that name is found.
#include <dlfcn.h>

#include <cstdlib>
#include <thread>

#include "kernels/common/gpu_info.h"
#include "kernels/common/gpu_scratch.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm_quantized_support.h"

namespace trireme {
namespace {

using namespace gemm_quantized_testing;

/// A line for each product since the last time this was asked.
std::string calls() {
  void* const library = ::dlopen("libcublasLt.so." TRIREME_CUBLASLT_MAJOR, RTLD_NOW | RTLD_NOLOAD);
  expect(library != nullptr, "cuBLASLt was not opened");
  const auto told =
      reinterpret_cast<const char* (*)()>(::dlsym(library, "stand_in_cublaslt_calls"));
  expect(told != nullptr, "it is not what stands for cuBLASLt");
  return told();
}

/// A line of the above without scales and sums.
std::string call(const std::string& what, bool fast, const std::string& more = "") {
  return what + more + ", scales" + (fast ? ", fast" : "") + ", reduction 2\n";
}

class CublasLt : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuda::gemm_cublaslt.missing(), nullptr);
    ASSERT_EQ(cuda::gemm_cublaslt.version(), 1) << "not what stands for it";
  }
  [[nodiscard]] GemmQuantizedGpuArgs raw(const QuantizedGemm& args) const {
    return gemm_quantized_internal::gpu_args(context_, args);
  }
  [[nodiscard]] bool serves(const QuantizedGemm& args) const {
    return cuda::gemm_fp8_cublaslt.serves(raw(args));
  }
  std::string multiply(const QuantizedGemm& args) {
    EXPECT_EQ(cuda::gemm_fp8_cublaslt.workspace_bytes,
              gpu_scratch::kProductWorkspaceBytes + gpu_scratch::kFp8ProductBytes);
    (void)calls();
    gemm_quantized_internal::gemm_by_table(context_, args, cuda::gemm_fp8_cublaslt);
    context_.synchronize();
    return calls();
  }
  Context context_ = test_context(Isa::kAvx2);
};

TestTensor aligned_bias(std::int64_t n) {
  TestTensor bias(DType::kBF16, {n}, 0);
  for (std::int64_t i = 0; i < n; ++i) bias.set(i, 0.25 * static_cast<double>(i % 9) - 1);
  return bias;
}

TEST_F(CublasLt, a_forward_product_has_its_scales_its_bias_and_the_sums_that_it_may_have) {
  for (const DType format : {kE4M3, kE5M2}) {
    const Operand a(format, {20, 0}, {200, 0}, 1), b(kE4M3, {48, 0, 7}, {200, 0}, 2);
    const Sums expected = sums_of(a, b);
    const TestTensor bias = aligned_bias(48);
    for (const bool precise : {true, false}) {
      TestTensor c(DType::kBF16, {20, 48}, 0);
      QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view()};
      args.precise_sums = precise;
      const std::string what = std::string("TN e4m3 256x48/256, ") +
                               (format == kE4M3 ? "e4m3" : "e5m2") + " 256x20/256, bf16 48x20/48";
      EXPECT_EQ(multiply(args), call(what, !precise));
      expect_product(c, expected, std::vector<double>(20 * 48), 40, "product");
      args.bias_N = bias;
      EXPECT_EQ(multiply(args), call(what, !precise, ", bias bf16"));
      expect_product(c, expected, repeated(bias, 20), 40, "product with a bias");
    }
  }
}

TEST_F(CublasLt, a_weights_gradient_is_added) {
  const ScaleDim k = {90, 0, 10};
  for (const auto& [of_a, of_b] : {std::pair{kE5M2, kE4M3}, {kE4M3, kE5M2}}) {
    const Operand a(of_a, {24, 0}, k, 1), b(of_b, {48, 0}, k, 2);
    const Sums expected = sums_of(a, b);
    const std::string x = of_a == kE4M3 ? "e4m3" : "e5m2", y = of_b == kE4M3 ? "e4m3" : "e5m2";
    const std::string what = "TN " + y + " 128x48/128, " + x + " 128x24/128, f32 48x24/48";
    TestTensor c(DType::kF32, {24, 48}, 0);
    QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view()};
    EXPECT_EQ(multiply(args), call(what, false));
    expect_product(c, expected, std::vector<double>(24 * 48), 40, "product");
    const std::vector<double> before = c.values();
    args.accumulate = Accumulate::kYes;
    EXPECT_EQ(multiply(args), call(what, false, ", added"));
    expect_product(c, expected, before, 40, "product, added");
  }
}

/// Plans are kept by kind, of which alignments are part: the same codes by other scales, and a bias
/// that stands as the first does.
TEST_F(CublasLt, a_plan_that_is_kept_takes_the_scales_and_the_bias_of_each_product) {
  Operand a(kE4M3, {8, 0}, {128, 0}, 1), b(kE4M3, {16, 0}, {128, 0}, 2);
  const ConstQuantizedView view_a = a.view(), view_b = b.view();
  const std::vector<double> values = {0.5, 2, 0.25, 8, 4, 0.125};
  TestTensor scales(DType::kF32, {6, 4}, 0);  // 16 bytes apart
  for (std::int64_t i = 0; i < 6; ++i) scales.set(4 * i, values[static_cast<std::size_t>(i)]);
  const TestTensor biases = aligned_bias(3 * 256);
  TestTensor c(DType::kBF16, {8, 16}, 0);
  for (const std::int64_t i : {0, 1, 2}) {
    const auto scale = [&](std::int64_t at) {
      return ConstTensorView(scales.view()).rows(at, 1).reshape({4, 1}).rows(0, 1);
    };
    const ConstTensorView bias = biases.view().reshape({3, 256}).rows(i, 1).reshape({256, 1});
    QuantizedGemm args{.c_MN = c, .a = view_a, .b = view_b};
    args.a.scales = scale(2 * i), args.b.scales = scale(2 * i + 1);
    args.bias_N = bias.rows(0, 16).reshape({16});
    multiply(args);
    TestTensor added(DType::kBF16, {16});
    for (std::int64_t n = 0; n < 16; ++n)
      added.set(n, biases.values()[static_cast<std::size_t>(256 * i + n)]);
    a.scales.set(0, values[static_cast<std::size_t>(2 * i)]);
    b.scales.set(0, values[static_cast<std::size_t>(2 * i + 1)]);
    a.decode(), b.decode();
    expect_product(c, sums_of(a, b), repeated(added, 8), 40, std::to_string(i));
  }
}

TEST_F(CublasLt, what_it_has_no_kernel_for_is_left_to_ours) {
  const ScaleDim whole = {128, 0}, two = dim_of(0, {{128, 0}, {128, 0}}), blocks = {128, 128};
  TestTensor c(DType::kBF16, {8, 16}, 0), odd(DType::kBF16, {8, 16}, 1),
      wide(DType::kF32, {8, 16}, 0), narrow(DType::kBF16, {8, 24}, 0),
      half(DType::kBF16, {8, 8}, 0);
  const Operand a(kE4M3, {8, 0}, whole, 1), b(kE4M3, {16, 0}, whole, 2);
  const QuantizedGemm good{.c_MN = c, .a = a.view(), .b = b.view()};
  ASSERT_TRUE(serves(good));
  const auto with = [&](const auto& change) {
    QuantizedGemm args = good;
    change(args);
    return serves(args);
  };
  const Operand a_two(kE4M3, {8, 0}, two, 3), b_two(kE4M3, {16, 0}, two, 4);
  EXPECT_TRUE(with([&](auto& x) { x.a = a_two.view(), x.b = b_two.view(); }));
  const TestTensor bias = aligned_bias(16);
  EXPECT_FALSE(with([&](auto& x) { x.a = a_two.view(), x.b = b_two.view(), x.bias_N = bias; }))
      << "a bias on sums of parts";
  const Operand b_parts(kE4M3, dim_of(0, {{8, 0}, {8, 0}}), whole, 11);
  EXPECT_FALSE(with([&](auto& x) { x.b = b_parts.view(); })) << "parts of 8 columns";
  const TestTensor between(DType::kF32, {1, 1}, 1);
  EXPECT_TRUE(with([&](auto& x) { x.a.scales = x.b.scales = between.view(); }));
  const ScaleDim late = {16, 128, 64}, fine = {128, 32}, turned = dim_of(128, {{8, 0}, {8, 128}});
  const Operand a_blocks(kE4M3, {8, 1}, blocks, 5), b_blocks(kE4M3, {16, 128}, blocks, 6),
      a_square(kE4M3, {8, 128}, blocks, 12), a_6(kE4M3, {6, 1}, blocks, 13),
      b_late(kE4M3, late, blocks, 14), b_inside(kE4M3, turned, blocks, 15),
      a_fine(kE4M3, {8, 1}, fine, 16), b_fine(kE4M3, {16, 1}, fine, 17);
  const auto of_blocks = [&](const Operand& x, const Operand& y) {
    return with([&](auto& args) { args.a = x.view(), args.b = y.view(); });
  };
  EXPECT_TRUE(of_blocks(a_blocks, b_blocks));
  EXPECT_TRUE(of_blocks(a_square, Operand(kE4M3, {16, 1}, blocks, 18)));
  EXPECT_FALSE(of_blocks(a_square, b_blocks)) << "squares of both";
  EXPECT_FALSE(of_blocks(a_blocks, b_inside)) << "a part that ends inside a block";
  EXPECT_FALSE(of_blocks(a_fine, b_fine)) << "blocks of 32";
  EXPECT_FALSE(of_blocks(a, b_blocks)) << "one scale and blocks";
  EXPECT_FALSE(with([&](auto& x) {
    x.a = a_blocks.view(), x.b = b_blocks.view(), x.precise_sums = false;
  })) << "blocks by fast sums";
  TestTensor six(DType::kBF16, {6, 16}, 0);
  EXPECT_FALSE(with([&](auto& x) { x.a = a_6.view(), x.b = b_blocks.view(), x.c_MN = six; }))
      << "6 rows";
  EXPECT_FALSE(of_blocks(a_blocks, b_late)) << "a part that begins inside a block";
  const Operand b_24(kE4M3, {24, 0}, whole, 7);
  EXPECT_FALSE(with([&](auto& x) { x.c_MN = narrow, x.b = b_24.view(); })) << "24 columns";
  EXPECT_FALSE(with([&](auto& x) { x.c_MN = odd; })) << "an address between 16 bytes";
  EXPECT_TRUE(with([&](auto& x) { x.bias_N = bias; }));
  EXPECT_FALSE(with([&](auto& x) { x.bias_N = bias, x.c_MN = wide; })) << "a bias in f32 sums";
  EXPECT_TRUE(with([&](auto& x) { x.c_MN = wide, x.accumulate = Accumulate::kYes; }));
  const Operand a_e5m2(kE5M2, {8, 0}, whole, 8), b_e5m2(kE5M2, {16, 0}, whole, 9);
  EXPECT_FALSE(with([&](auto& x) { x.a = a_e5m2.view(), x.b = b_e5m2.view(); })) << "both e5m2";
  EXPECT_FALSE(with([&](auto& x) {
    x.c_MN = half, x.saved = odd, x.epilogue = GemmEpilogue::kSwiglu;
  })) << "an epilogue";
}

/// Each part of rows is a call, with the strides of the whole.
TEST_F(CublasLt, parts_of_rows_and_of_columns_are_calls_into_their_places) {
  const ScaleDim k = {200, 0, 7};
  const Operand a(kE5M2, dim_of(0, {{4, 0}, {0, 3}, {9, 5}}), k, 1),
      b(kE4M3, dim_of(0, {{32, 0}, {16, 16}}), k, 2);
  const Sums expected = sums_of(a, b);
  const auto calls_of = [&](const std::string& c, bool fast, const std::string& more) {
    std::string all;
    for (const std::string rows : {"4", "9"})
      for (const std::string columns : {"32", "16"})
        all += call("TN e4m3 256x" + columns + "/256, e5m2 256x" + rows + "/256, " + c + " " +
                        columns + "x" + rows + "/48",
                    fast, more);
    return all;
  };
  const TestTensor bias = aligned_bias(48);
  TestTensor y(DType::kBF16, {13, 48}, 0), sums(DType::kF32, {13, 48}, 0);
  QuantizedGemm args{.c_MN = y, .a = a.view(), .b = b.view()};
  args.bias_N = bias;
  args.precise_sums = false;
  EXPECT_EQ(multiply(args), calls_of("bf16", true, ", bias bf16"));
  expect_product(y, expected, repeated(bias, 13), 40, "bf16");
  args = {.c_MN = sums, .a = a.view(), .b = b.view()};
  EXPECT_EQ(multiply(args), calls_of("f32", false, ""));
  const std::vector<double> once = sums.values();
  expect_product(sums, expected, std::vector<double>(13 * 48), 40, "f32");
  args.accumulate = Accumulate::kYes;
  EXPECT_EQ(multiply(args), calls_of("f32", false, ", added"));
  expect_product(sums, expected, once, 40, "added");
}

/// Sums of parts of K are rounded once: whole numbers that bf16 would lose one by one.
TEST_F(CublasLt, parts_of_k_are_added_before_they_are_rounded) {
  const ScaleDim k = dim_of(0, {{100, 0}, {90, 4}, {130, 120}});
  const Operand a(kE4M3, {20, 0}, k, 1), b(kE5M2, {32, 0}, k, 2);
  const Sums expected = sums_of(a, b);
  const auto part = [&](const char* size, bool first) {
    return call(std::string("TN e5m2 ") + size + "x32/512, e4m3 " + size + "x20/512, f32 32x20/32",
                false, first ? "" : ", added");
  };
  const std::string sums_of_parts = part("128", true) + part("128", false) + part("256", false);
  const std::vector<double> zero(20 * 32);
  TestTensor y(DType::kBF16, {20, 32}, 0), sums(DType::kF32, {20, 32}, 0);
  EXPECT_EQ(multiply({.c_MN = y, .a = a.view(), .b = b.view()}), sums_of_parts);
  EXPECT_EQ(multiply({.c_MN = sums, .a = a.view(), .b = b.view()}), sums_of_parts);
  expect_product(sums, expected, zero, 22, "f32");
  EXPECT_EQ(y.bits(), TestTensor::of(DType::kBF16, {20, 32}, sums.values()).bits());
  const std::vector<double> once = sums.values();
  multiply({.c_MN = sums, .a = a.view(), .b = b.view(), .accumulate = Accumulate::kYes});
  expect_product(sums, expected, once, 22, "added");
}

TEST_F(CublasLt, parts_of_rows_and_of_k_have_a_scale_for_each_pair) {
  const ScaleDim k = dim_of(0, {{128, 0}, {60, 0}, {128, 0}}), rows = dim_of(0, {{6, 0}, {6, 0}}),
                 columns = dim_of(0, {{16, 0}, {32, 0}});
  const Operand a(kE4M3, rows, k, 1), b(kE5M2, columns, k, 2);
  TestTensor sums(DType::kF32, {12, 48}, 0), half(DType::kBF16, {12, 48}, 0);
  multiply({.c_MN = sums, .a = a.view(), .b = b.view()});
  expect_product(sums, sums_of(a, b), std::vector<double>(12 * 48), 22, "f32");
  EXPECT_FALSE(serves({.c_MN = half, .a = a.view(), .b = b.view()})) << "columns are rounded apart";
}

/// A plan is one of its strides; scales between 16 bytes are brought to a place of 16.
TEST_F(CublasLt, the_same_product_into_wider_rows_is_another_plan) {
  const ScaleDim k = {128, 0};
  const Operand a(kE4M3, {8, 0}, k, 1), b(kE4M3, {16, 0}, k, 2),
      two(kE4M3, dim_of(0, {{16, 0}, {16, 0}}), k, 3);
  TestTensor narrow(DType::kF32, {8, 16}, 0), wide(DType::kF32, {8, 32}, 0),
      between(DType::kF32, {1, 1}, 1);
  QuantizedGemm args{.c_MN = narrow, .a = a.view(), .b = b.view()};
  cast(context_, between, args.a.scales);
  args.a.scales = between;
  multiply(args);
  expect_product(narrow, sums_of(a, b), std::vector<double>(8 * 16), 40, "narrow");
  multiply({.c_MN = wide, .a = a.view(), .b = two.view()});
  expect_product(wide, sums_of(a, two), std::vector<double>(8 * 32), 40, "wide");
}

/// More rows than their sums have room: they come in turns, into c's rows.
TEST_F(CublasLt, sums_of_parts_take_no_more_than_their_room) {
  constexpr std::int64_t kN = 32768, kM = 260;
  const ScaleDim k = dim_of(0, {{1, 0}, {1, 0}});
  Operand a(kE4M3, {kM, 0}, k, 1), b(kE4M3, {kN, 0}, k, 2);
  for (const std::int64_t at : {0, 1}) a.scales.set(at, 1), b.scales.set(at, 1);
  const auto set = [](Operand& of, std::int64_t row, int first, int second) {
    of.codes.set(row * 256, first), of.codes.set(row * 256 + 128, second);
  };
  for (std::int64_t row = 0; row < kM; ++row) set(a, row, 0x38 + static_cast<int>(row % 8), 0x38);
  for (std::int64_t row = 0; row < kN; ++row) set(b, row, 0x38, 0x40 + static_cast<int>(row % 8));
  TestTensor y(DType::kBF16, {kM, kN}, 0);
  const std::string told = multiply({.c_MN = y, .a = a.view(), .b = b.view()});
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 4);
  const std::vector<double> values = y.values();
  for (std::int64_t i = 0; i < kM * kN; ++i) {
    const double row = 1 + 0.125 * static_cast<double>(i / kN % 8),
                 column = 2 + 0.25 * static_cast<double>(i % kN % 8);
    ASSERT_EQ(values[static_cast<std::size_t>(i)], row + column) << i;
  }
}

TEST_F(CublasLt, scales_of_blocks_come_in_the_librarys_order) {
  const TestTensor bias = aligned_bias(160);
  for (const std::int64_t size : {500, 520}) {  // 4 blocks; 5, which stand as 8
    const ScaleDim k = dim_of(128, {{size - 192, 0}, {192, 64}}),
                   rows = dim_of(128, {{128, 256}, {32, 0}});
    const std::string padded = std::to_string(k.padded_size());
    const auto what = [&](const char* a, const char* b, const char* c) {
      return "TN " + std::string(b) + " " + padded + "x160/" + padded + ", " + a + " " + padded +
             "x12/" + padded + ", " + c + " 160x12/160";
    };
    const Operand a(kE5M2, dim_of(1, {{5, 0}, {7, 9}}), k, 1), b(kE4M3, rows, k, 2),
        d(kE4M3, {160, 1}, k, 3);
    const std::vector<double> zero(12 * 160);
    TestTensor y(DType::kBF16, {12, 160}, 0), sums(DType::kF32, {12, 160}, 0);
    QuantizedGemm args{.c_MN = y, .a = a.view(), .b = b.view(), .bias_N = bias};
    EXPECT_EQ(multiply(args),
              what("e5m2", "e4m3", "bf16") + ", bias bf16, squares by rows, reduction 2\n");
    expect_product(y, sums_of(a, b), repeated(bias, 12), 40, "squares");
    args = {.c_MN = sums, .a = a.view(), .b = d.view()};
    EXPECT_EQ(multiply(args), what("e5m2", "e4m3", "f32") + ", rows by rows, reduction 2\n");
    const std::vector<double> once = sums.values();
    expect_product(sums, sums_of(a, d), zero, 40, "rows");
    args.accumulate = Accumulate::kYes;
    multiply(args);
    expect_product(sums, sums_of(a, d), once, 40, "rows, added");
    // Where they stand as a matrix of ours may, and behind a product of the same sizes.
    TestTensor aligned(DType::kF32, b.scales.shape(), 0);
    cast(context_, aligned, b.scales);
    args = {.c_MN = sums, .a = a.view(), .b = b.view()};
    args.b.scales = aligned;
    multiply(args);
    expect_product(sums, sums_of(a, b), zero, 40, "squares, aligned");
  }
}

/// On a thread of its own, which knows no GPU yet.
template <class F>
void with_capability(const char* capability, const F& f) {
  ::setenv("TRIREME_SIMT_CAPABILITY", capability, 1);
  std::thread(f).join();
  ::unsetenv("TRIREME_SIMT_CAPABILITY");
}

TEST_F(CublasLt, other_gpus_than_hopper_multiply_whole_tensors_by_it) {
  const Operand a(kE4M3, {20, 0}, {200, 0}, 1),
      b(kE4M3, dim_of(0, {{64, 0}, {64, 0}}), {200, 0}, 2), a_blocks(kE4M3, {20, 1}, {200, 128}, 3),
      b_blocks(kE4M3, {128, 128}, {200, 128}, 4);
  const Sums expected = sums_of(a, b);
  for (const char* capability : {"89", "100", "120"}) {
    with_capability(capability, [&] {
      Context context = test_context(Isa::kAvx2);
      const Device device = context.device();
      EXPECT_EQ(gemm_quantized_missing(device, 0), "");
      EXPECT_EQ(gemm_quantized_missing(device, 128),
                "products of blocks have kernels for compute capability 9.0 alone");
      TestTensor y(DType::kBF16, {20, 128}, 0), saved = y, c(DType::kBF16, {20, 64}, 0);
      TestTensor amax(DType::kI32, {1});
      gemm_quantized(context, {.c_MN = y, .a = a.view(), .b = b.view()});
      context.synchronize();
      expect_product(y, expected, std::vector<double>(20 * 128), 40, capability);
      QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view()};
      args.epilogue = GemmEpilogue::kSwiglu;
      args.saved = saved, args.amax_P = amax;
      gemm_quantized(context, args);
      context.synchronize();
      EXPECT_EQ(saved.bits(), y.bits()) << "the product, then an op";
      EXPECT_GT(amax.values()[0], 0);
      EXPECT_THROW(gemm_quantized(context, {.c_MN = y, .a = a_blocks.view(), .b = b_blocks.view()}),
                   EnvironmentError);
    });
  }
  with_capability("80", [] {
    const Context context = test_context(Isa::kAvx2);
    for (const std::int64_t block : {0, 128}) {
      EXPECT_EQ(gemm_quantized_missing(context.device(), block),
                "its tensor cores have no fp8, which begins at compute capability 8.9");
    }
  });
}

/// Of bf16: all four ways in which operands stand.
TEST_F(CublasLt, bf16_products_are_the_sums_of_their_operands) {
  constexpr std::int64_t kM = 6, kN = 10, kK = 7;
  const TestTensor a = TestTensor::random(DType::kBF16, {kM * kK}, 1),
                   b = TestTensor::random(DType::kBF16, {kN * kK}, 2),
                   bias = TestTensor::random(DType::kBF16, {kN}, 3);
  const std::vector<double> x = a.values(), y = b.values(), added = bias.values();
  void* const workspace = context_.scratch(cuda::gemm_cublaslt.workspace_bytes);
  for (const int way : {0, 1, 2, 3}) {
    const bool ta = way / 2 == 1, tb = way % 2 == 1;
    std::vector<double> expected(kM * kN);
    for (std::int64_t i = 0; i < kM * kN; ++i) {
      const std::int64_t m = i / kN, n = i % kN;
      for (std::int64_t k = 0; k < kK; ++k) {
        expected[static_cast<std::size_t>(i)] +=
            x[static_cast<std::size_t>(ta ? k * kM + m : m * kK + k)] *
            y[static_cast<std::size_t>(tb ? n * kK + k : k * kN + n)];
      }
    }
    TestTensor sums(DType::kF32, {kM, kN}), c(DType::kBF16, {kM, kN});
    GemmGpuArgs args{};
    args.c = TensorView(sums).data;
    args.a = ConstTensorView(a).data, args.b = ConstTensorView(b).data;
    args.m = kM, args.n = kN, args.k = kK;
    args.transpose_a = ta, args.transpose_b = tb;
    args.type = DType::kBF16, args.c_type = DType::kF32;
    args.workspace = workspace;
    ASSERT_TRUE(cuda::gemm_cublaslt.serves(args));
    cuda::gemm_cublaslt.multiply(args);
    context_.synchronize();
    expect_close(sums.values(), expected, {1e-6, 1e-6}, "sums");
    args.accumulate = true;
    cuda::gemm_cublaslt.multiply(args);
    args.accumulate = false;
    for (double& value : expected) value *= 2;
    expect_close(sums.values(), expected, {1e-6, 1e-6}, "added");
    args.bias = ConstTensorView(bias).data;
    EXPECT_FALSE(cuda::gemm_cublaslt.serves(args)) << "a bias of bf16 in f32";
    args.c = TensorView(c).data, args.c_type = DType::kBF16;
    ASSERT_TRUE(cuda::gemm_cublaslt.serves(args));
    (void)calls();
    cuda::gemm_cublaslt.multiply(args);
    const std::string told = calls();
    EXPECT_NE(told.find(", bias bf16, reduction 2\n"), std::string::npos) << told;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = expected[i] / 2 + added[i % kN];
    expect_close(c.values(), expected, {0x1p-8, 0x1p-8}, "with a bias");
    args.epilogue = GemmEpilogue::kGelu;
    EXPECT_FALSE(cuda::gemm_cublaslt.serves(args));
  }
}

}  // namespace
}  // namespace trireme
