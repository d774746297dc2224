// What fp8 products are chosen among on a GPU: cuBLASLt where it serves, ours with an epilogue,
// ours and an op behind it.
#include "kernels/common/gpu_info.h"
#include "kernels/gemm_quantized_support.h"

namespace trireme {
namespace {

using namespace gemm_quantized_testing;

class GemmQuantizedLibrary : public OpTest {
 protected:
  void SetUp() override {
    const Context context = test_context(GetParam());
    if (gemm_gpu_library_version() == 0 || !context.on_gpu() || !multiplies_fp8(info_of(context)))
      GTEST_SKIP() << "no cuBLASLt that multiplies fp8";
  }
};
TRIREME_FOR_ALL_ISAS(GemmQuantizedLibrary);
/// Exponentials have other bits in other executors (tests/ptx_host/compare_bits.py).
class GemmEpilogueQuantizedChoice : public QuantizedGpuTest {};
TRIREME_FOR_ALL_ISAS(GemmEpilogueQuantizedChoice);

constexpr std::int64_t kRows = 300;

/// Sizes, addresses and scales as training has them: none may be left to our own kernels.
TEST_P(GemmQuantizedLibrary, the_library_serves_scales_of_whole_tensors) {
  Context context = test_context(GetParam());
  const Way& library = kLibraryWay;
  const ScaleDim k = {340, 0, 40}, rows = {192, 0, 77};
  const TestTensor bias = [] {
    TestTensor aligned(DType::kBF16, {192}, 0);
    for (int i = 0; i < 192; ++i) aligned.set(i, 0.25 * (i % 7));
    return aligned;
  }();
  for (const DType format : {kE4M3, kE5M2}) {
    const Operand tokens(format, {kRows, 0}, k, 1), weight(kE4M3, rows, k, 2);
    const Sums expected = sums_of(tokens, weight);
    for (const bool precise : {true, false}) {
      TestTensor c(DType::kBF16, {kRows, 192}, 0);
      QuantizedGemm args{.c_MN = c, .a = tokens.view(), .b = weight.view()};
      args.precise_sums = precise;
      args.bias_N = bias;
      ASSERT_TRUE(serves(context, args, library));
      expect_same_bits([&] {
        multiply(context, args, library);
        return c.bits();
      });
      expect_product(c, expected, repeated(bias, kRows), bits_of_sums(340), "forward");
    }
    const Operand gradients(format, rows, k, 3), inputs(kE4M3, {80, 0}, k, 4);
    const Sums sums = sums_of(gradients, inputs);
    TestTensor dw(DType::kF32, {192, 80}, 0);
    QuantizedGemm args{.c_MN = dw, .a = gradients.view(), .b = inputs.view()};
    ASSERT_TRUE(serves(context, args, library));
    multiply(context, args, library);
    args.accumulate = Accumulate::kYes;
    const std::vector<double> once = dw.values();
    expect_product(dw, sums, std::vector<double>(once.size()), bits_of_sums(340), "gradient");
    multiply(context, args, library);
    expect_product(dw, sums, once, bits_of_sums(340), "gradient, added");
  }
}

/// As q, k and v are: their columns forward, their sums along K, their rows of a gradient.
TEST_P(GemmQuantizedLibrary, the_library_serves_parts_with_scales_of_their_own) {
  Context context = test_context(GetParam());
  const Way& library = kLibraryWay;
  const ScaleDim parts = dim_of(0, {{96, 0}, {32, 64}, {48, 80}}), k = {340, 0};
  for (const DType format : {kE4M3, kE5M2}) {
    const Operand x(kE4M3, {kRows, 0}, k, 1), weight(kE4M3, parts, k, 2);
    TestTensor y(DType::kBF16, {kRows, 176}, 0);
    QuantizedGemm forward{.c_MN = y, .a = x.view(), .b = weight.view()};
    forward.precise_sums = false;
    ASSERT_TRUE(serves(context, forward, library));
    multiply(context, forward, library);
    const std::vector<double> zero(static_cast<std::size_t>(kRows * 176));
    expect_product(y, sums_of(x, weight), zero, bits_of_sums(340), "columns");

    const Operand dy(format, {kRows, 0}, parts, 3), turned(kE4M3, {80, 0}, parts, 4);
    TestTensor dx(DType::kBF16, {kRows, 80}, 0);
    const QuantizedGemm backward{.c_MN = dx, .a = dy.view(), .b = turned.view()};
    ASSERT_TRUE(serves(context, backward, library));
    expect_same_bits([&] {
      multiply(context, backward, library);
      return dx.bits();
    });
    expect_product(dx, sums_of(dy, turned), zero, bits_of_sums(512), "sums of parts");

    const Operand gradient(format, parts, k, 5), inputs(kE4M3, {80, 0}, k, 6);
    TestTensor dw(DType::kF32, {176, 80}, 0);
    QuantizedGemm update{.c_MN = dw, .a = gradient.view(), .b = inputs.view()};
    ASSERT_TRUE(serves(context, update, library));
    multiply(context, update, library);
    const std::vector<double> once = dw.values();
    expect_product(dw, sums_of(gradient, inputs), zero, bits_of_sums(340), "rows");
    update.accumulate = Accumulate::kYes;
    multiply(context, update, library);
    expect_product(dw, sums_of(gradient, inputs), once, bits_of_sums(340), "rows, added");
  }
}

/// Scales in an order that is not ours; 5 blocks of K have no multiple of 4.
TEST_P(GemmQuantizedLibrary, the_library_serves_blocks_where_they_lie_as_it_takes_them) {
  Context context = test_context(GetParam());
  if (!runs_sm90a(info_of(context))) GTEST_SKIP() << "Hopper's alone";
  const Way& library = kLibraryWay;
  constexpr std::int64_t kTokens = 44;
  for (const std::int64_t size : {512, 600}) {
    const ScaleDim k = {size, 128}, weights = dim_of(128, {{256, 128}, {48, 256}});
    const std::vector<double> zero(static_cast<std::size_t>(kTokens * 304));
    for (const DType format : {kE4M3, kE5M2}) {
      const Operand x(format, {kTokens, 1}, k, 1), weight(kE4M3, weights, k, 2),
          other(kE4M3, {304, 1}, k, 3);
      TestTensor y(DType::kBF16, {kTokens, 304}, 0), dw(DType::kF32, {kTokens, 304}, 0);
      const QuantizedGemm forward{.c_MN = y, .a = x.view(), .b = weight.view()};
      ASSERT_TRUE(serves(context, forward, library));
      multiply(context, forward, library);
      expect_product(y, sums_of(x, weight), zero, bits_of_sums(size), "squares");
      QuantizedGemm update{.c_MN = dw, .a = x.view(), .b = other.view()};
      ASSERT_TRUE(serves(context, update, library));
      multiply(context, update, library);
      const std::vector<double> once = dw.values();
      expect_product(dw, sums_of(x, other), zero, bits_of_sums(size), "rows");
      update.accumulate = Accumulate::kYes;
      multiply(context, update, library);
      expect_product(dw, sums_of(x, other), once, bits_of_sums(size), "rows, added");
    }
  }
}

bool always(const GemmQuantizedGpuArgs&) { return true; }
bool without_epilogue(const GemmQuantizedGpuArgs& args) {
  return args.product.epilogue == GemmEpilogue::kNone;
}

/// Of gate and up in two blocks of columns each, by a recipe.
GemmQuantizedGpuArgs up_of(std::int64_t block, GemmEpilogue epilogue) {
  GemmQuantizedGpuArgs args{};
  args.format_a = args.format_b = kE4M3;
  args.product.c_type = DType::kBF16;
  args.product.epilogue = epilogue;
  args.a.row_block = block == 0 ? 0 : 1;
  args.a.column_block = args.b.row_block = args.b.column_block = block;
  args.a.parts = 1;
  args.a.sizes[0] = 64;
  args.b.parts = 2;
  args.b.sizes[0] = args.b.sizes[1] = 256;
  args.k_parts = 1;
  args.k_ends[0] = 3;
  return args;
}

TEST(GemmQuantizedRule, is_ours_and_the_librarys_where_there_is_none_of_ours) {
  using gemm_quantized_internal::choose_kernel;
  const GemmQuantizedGpuKernels own{always, nullptr}, library{without_epilogue, nullptr},
      useless{[](const GemmQuantizedGpuArgs&) { return false; }, nullptr};
  const auto chosen = [&](const gemm_quantized_internal::GpuTables& tables, GemmEpilogue epilogue) {
    return choose_kernel(tables, up_of(0, epilogue));
  };
  using enum GemmEpilogue;
  for (const GemmEpilogue epilogue :
       {kNone, kAddResidual, kGelu, kGeluBackward, kSwiglu, kSwigluBackward}) {
    const GemmQuantizedGpuKernels* const without = epilogue == kNone ? &library : nullptr;
    EXPECT_EQ(chosen({&own, &library}, epilogue), &own);
    EXPECT_EQ(chosen({&useless, &library}, epilogue), without);
    EXPECT_EQ(chosen({nullptr, &library}, epilogue), without);
    EXPECT_EQ(chosen({nullptr, nullptr}, epilogue), nullptr);
  }
}

TEST(GemmQuantizedRule, a_choice_that_was_made_is_kept_where_its_kernel_serves) {
  using gemm_quantized_internal::chosen_kernel;
  const GemmQuantizedGpuKernels own{always, nullptr}, library{without_epilogue, nullptr};
  const gemm_quantized_internal::GpuTables both{&own, &library}, alone{&own, nullptr};
  const GemmQuantizedGpuArgs plain = up_of(0, GemmEpilogue::kNone),
                             swiglu = up_of(0, GemmEpilogue::kSwiglu);
  const auto pinned = [](const GemmQuantizedGpuArgs& args, ProductKernel kernel) {
    KernelChoices choices;
    choices.add(gemm_quantized_internal::key_of(args), {kernel, {}});
    return choices;
  };
  const KernelChoices by_library = pinned(plain, ProductKernel::kLibrary),
                      fused = pinned(swiglu, ProductKernel::kHopper);
  EXPECT_EQ(chosen_kernel(both, plain, by_library), &library);
  EXPECT_EQ(chosen_kernel(alone, plain, by_library), nullptr) << "it is not here";
  EXPECT_EQ(chosen_kernel(both, swiglu, by_library), nullptr) << "another product";
  EXPECT_EQ(chosen_kernel(both, swiglu, fused), &own);
  EXPECT_EQ(chosen_kernel(both, swiglu, pinned(swiglu, ProductKernel::kLibrary)), nullptr);
  EXPECT_EQ(chosen_kernel(both, swiglu, pinned(swiglu, ProductKernel::kUnfused)), nullptr);
}

TEST(GemmQuantizedRule, what_makes_a_difference_to_time_is_in_the_key) {
  using gemm_quantized_internal::key_of;
  const GemmQuantizedGpuArgs args = up_of(128, GemmEpilogue::kNone);
  const QuantizedProductKey key = key_of(args);
  EXPECT_EQ(key.a_rows, (QuantizedProductKey::Parts{64}));
  EXPECT_EQ(key.b_rows, (QuantizedProductKey::Parts{256, 256}));
  EXPECT_EQ(key.k, (QuantizedProductKey::Parts{384}));
  EXPECT_EQ(key.a_scales, (QuantizedProductKey::Block{1, 128}));
  EXPECT_EQ(key.b_scales, (QuantizedProductKey::Block{128, 128}));
  const auto differs = [&](const auto& change) {
    GemmQuantizedGpuArgs other = args;
    change(other);
    return key_of(other) != key;
  };
  EXPECT_TRUE(differs([](auto& x) { x.a.sizes[0] = 65; }));
  EXPECT_TRUE(differs([](auto& x) { x.b.sizes[0] = 128, x.b.sizes[1] = 384; }));
  EXPECT_TRUE(differs([](auto& x) { x.k_parts = 2, x.k_ends[0] = 1, x.k_ends[1] = 3; }));
  EXPECT_TRUE(differs([](auto& x) { x.a.row_block = x.a.column_block = 0; }));
  EXPECT_TRUE(differs([](auto& x) { x.b.row_block = 1; }));
  EXPECT_TRUE(differs([](auto& x) { x.format_a = kE5M2; }));
  EXPECT_TRUE(differs([](auto& x) { x.format_b = kE5M2; }));
  EXPECT_TRUE(differs([](auto& x) { x.product.c_type = DType::kF32; }));
  EXPECT_TRUE(differs([](auto& x) { x.product.accumulate = true; }));
  EXPECT_TRUE(differs([](auto& x) { x.product.bias = &x; }));
  EXPECT_TRUE(differs([](auto& x) { x.product.epilogue = GemmEpilogue::kGelu; }));
  EXPECT_TRUE(differs([](auto& x) { x.precise_sums = true; }));
  EXPECT_FALSE(differs([](auto& x) { x.b.offsets[1] = 40; })) << "ranks share a choice";
}

/// gate and up with SwiGLU.
struct Up {
  Operand a, b;
  TestTensor saved, c;
  Up()
      : a(kE4M3, {40, 0}, {200, 0}, 1),
        b(kE4M3, dim_of(0, {{64, 0}, {64, 0}}), {200, 0}, 2),
        saved(DType::kBF16, {40, 128}, 0),
        c(DType::kBF16, {40, 64}, 0) {}
  QuantizedGemm args() {
    QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view()};
    args.precise_sums = false;
    args.epilogue = GemmEpilogue::kSwiglu;
    args.saved = saved;
    return args;
  }
  /// The bits that the op gives with these choices.
  std::string bits(Isa isa, KernelChoices* choices) {
    Context context = test_context(isa);
    context.set_kernel_choices(choices);
    saved = TestTensor(DType::kBF16, {40, 128}, 0);
    c = TestTensor(DType::kBF16, {40, 64}, 0);
    gemm_quantized(context, args());
    context.synchronize();
    return c.bits() + saved.bits();
  }
};

TEST_P(GemmEpilogueQuantizedChoice, measuring_gives_each_product_with_several_ways_one_choice) {
  Up up;
  const std::string by_rule = up.bits(GetParam(), nullptr);
  KernelChoices choices;
  EXPECT_EQ(up.bits(GetParam(), &choices), by_rule);
  EXPECT_EQ(choices.size(), 0U) << "nobody measures unless told to";
  choices.set_measuring(true);
  up.bits(GetParam(), &choices);
  up.bits(GetParam(), &choices);
  // Alone the product has one way, or cuBLASLt's too.
  const std::size_t alone = gemm_gpu_library_version() != 0 ? 1 : 0;
  ASSERT_EQ(choices.quantized_products().size(), 1 + alone);
  EXPECT_EQ(choices.size(), 1 + alone);
  Context context = test_context(GetParam());
  const QuantizedProductKey key =
      gemm_quantized_internal::key_of(gemm_quantized_internal::gpu_args(context, up.args()));
  ASSERT_NE(choices.find(key), nullptr);
  const ProductChoice choice = *choices.find(key);
  const auto& times = choice.microseconds;
  EXPECT_EQ(times[0], 0) << "a kernel of bf16";
  EXPECT_EQ(times[2], 0) << "cuBLASLt has no epilogue of ours";
  EXPECT_GT(times[1], 0);
  EXPECT_GT(times[3], 0);
  EXPECT_EQ(static_cast<int>(choice.kernel), times[3] < times[1] ? 3 : 1);
  choices.set_measuring(false);
  const std::string chosen = up.bits(GetParam(), &choices);
  if (alone == 0) {
    EXPECT_EQ(chosen, by_rule);
  }
  EXPECT_EQ(up.bits(GetParam(), &choices), chosen);
}

TEST_P(GemmEpilogueQuantizedChoice, a_choice_decides_whether_the_epilogue_is_an_op) {
  Up up;
  Context context = test_context(GetParam());
  const QuantizedProductKey key =
      gemm_quantized_internal::key_of(gemm_quantized_internal::gpu_args(context, up.args()));
  std::string bits;
  for (const ProductKernel kernel : {ProductKernel::kHopper, ProductKernel::kUnfused}) {
    KernelChoices choices;
    choices.add(key, {kernel, {}});
    context.set_kernel_choices(&choices);
    const GemmQuantizedGpuKernels* const chosen =
        gemm_quantized_internal::choose_kernel(context, up.args());
    const bool fused = kernel == ProductKernel::kHopper;
    EXPECT_EQ(chosen, fused ? gpu_kernels().gemm_fp8_sm90 : nullptr);
    const std::string now = up.bits(GetParam(), &choices);
    if (!bits.empty()) {
      EXPECT_EQ(now, bits) << "of one product, fused and not";
    }
    bits = now;
    context.set_batch_invariant(true);
    EXPECT_EQ(gemm_quantized_internal::choose_kernel(context, up.args()),
              gpu_kernels().gemm_fp8_sm90)
        << "by rule";
    context.set_batch_invariant(false);
  }
}

/// Three warpgroups are a rival of blocks' plain products alone, and are what a choice says.
TEST_P(GemmEpilogueQuantizedChoice, three_warpgroups_serve_where_they_were_chosen) {
  Context context = test_context(GetParam());
  const GemmQuantizedGpuKernels* const triple = gpu_kernels().gemm_fp8_triple_sm90;
  if (triple == nullptr || !runs_sm90a(gpu::info(context.device().index)))
    GTEST_SKIP() << "kernels for Hopper";
  const Operand a(DType::kF8E4M3, {70, 1}, {256, 128}, 1),
      b(DType::kF8E4M3, {96, 128}, {256, 128}, 2);
  TestTensor c(DType::kBF16, {70, 96});
  QuantizedGemm args{.c_MN = c, .a = a.view(), .b = b.view()};
  const auto raw = gemm_quantized_internal::gpu_args(context, args);
  EXPECT_TRUE(triple->serves(raw));
  KernelChoices choices;
  choices.add(gemm_quantized_internal::key_of(raw), {ProductKernel::kTriple, {}});
  context.set_kernel_choices(&choices);
  EXPECT_EQ(gemm_quantized_internal::choose_kernel(context, args), triple);
  Up up;
  args = up.args();
  EXPECT_FALSE(triple->serves(gemm_quantized_internal::gpu_args(context, args))) << "an epilogue";
}

}  // namespace
}  // namespace trireme
