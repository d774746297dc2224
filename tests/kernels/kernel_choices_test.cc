// Choices of kernels: as text, and as the products obey them.
#include "kernels/common/kernel_choices.h"

#include "device/gpu.h"
#include "kernels/gemm/gemm.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

KernelChoices parse(const std::string& text) {
  return KernelChoices::parse(parse_json(text, "choices.json"), "choices.json");
}

constexpr std::string_view kOne =
    R"({"products": [
        {"m": 8, "n": 16, "k": 24, "transpose_a": false, "transpose_b": true, "accumulate": false,
         "bias": true, "type": "bf16", "c_type": "fp32", "epilogue": "gelu_backward",
         "kernel": "hopper", "microseconds": {"own": 12.5, "hopper": 8}}],
        "fp8_products": [
        {"a_rows": [64], "b_rows": [32, 16, 16], "k": [128, 256], "a_scales": [1, 128],
         "b_scales": [0, 0], "a_format": "e5m2", "b_format": "e4m3", "c_type": "bf16",
         "accumulate": false, "bias": true, "precise_sums": false, "epilogue": "swiglu_backward",
         "kernel": "unfused", "microseconds": {"hopper": 7, "unfused": 3.5}}],
        "attention": [
        {"tokens": 32, "heads": 6, "kv_heads": 2, "head_dim": 64, "backward": true,
         "kernel": "cudnn", "microseconds": {"own": 9, "cudnn": 4}},
        {"tokens": 32, "heads": 6, "kv_heads": 6, "head_dim": 192, "value_dim": 128,
         "backward": true, "kernel": "own"}]})";

TEST(KernelChoices, are_read_as_they_are_written) {
  const KernelChoices choices = parse(std::string(kOne));
  ASSERT_EQ(choices.size(), 4U);
  ProductKey key{8,     16,   24,           false,       true,
                 false, true, DType::kBF16, DType::kF32, GemmEpilogue::kGeluBackward};
  const ProductChoice* choice = choices.find(key);
  ASSERT_NE(choice, nullptr);
  EXPECT_EQ(*choice, (ProductChoice{ProductKernel::kHopper, {12.5, 8, 0, 0}}));
  const KernelChoices again = parse(choices.json().dump());
  EXPECT_EQ(again.products(), choices.products());
  EXPECT_EQ(again.quantized_products(), choices.quantized_products());
  EXPECT_EQ(again.attention(), choices.attention());
  key.bias = false;
  EXPECT_EQ(choices.find(key), nullptr);
  const QuantizedProductKey fp8{
      {64},           {32, 16, 16}, {128, 256}, {1, 128}, {0, 0}, DType::kF8E5M2,
      DType::kF8E4M3, DType::kBF16, false,      true,     false,  GemmEpilogue::kSwigluBackward};
  ASSERT_NE(choices.find(fp8), nullptr);
  EXPECT_EQ(*choices.find(fp8), (ProductChoice{ProductKernel::kUnfused, {0, 7, 0, 3.5}}));
  AttentionKey pass{32, 6, 2, 64, 64, true};
  ASSERT_NE(choices.find(pass), nullptr);
  EXPECT_EQ(*choices.find(pass), (AttentionChoice{AttentionKernel::kLibrary, {9, 4}}));
  EXPECT_NE(choices.find(AttentionKey{32, 6, 6, 192, 128, true}), nullptr);
  EXPECT_EQ(choices.find(AttentionKey{32, 6, 6, 192, 192, true}), nullptr);
  pass.backward = false;
  EXPECT_EQ(choices.find(pass), nullptr);
  EXPECT_EQ(parse(R"({"products": []})").size(), 0U) << "a file from before others had choices";
}

TEST(KernelChoices, the_first_of_a_product_stays) {
  KernelChoices first, second;
  first.add(ProductKey{.m = 1}, {ProductKernel::kHopper, {}});
  second.add(ProductKey{.m = 1}, {ProductKernel::kLibrary, {}});
  second.add(ProductKey{.m = 2}, {ProductKernel::kLibrary, {}});
  first.add(QuantizedProductKey{.a_rows = {4}}, {ProductKernel::kHopper, {}});
  second.add(QuantizedProductKey{.a_rows = {4}}, {ProductKernel::kLibrary, {}});
  second.add(QuantizedProductKey{.a_rows = {4, 4}}, {ProductKernel::kLibrary, {}});
  second.add(AttentionKey{.tokens = 3}, {AttentionKernel::kLibrary, {}});
  first.add(second);
  EXPECT_EQ(first.size(), 5U);
  EXPECT_EQ(first.find(QuantizedProductKey{.a_rows = {4}})->kernel, ProductKernel::kHopper);
  EXPECT_EQ(first.find(ProductKey{.m = 1})->kernel, ProductKernel::kHopper);
  EXPECT_EQ(first.find(ProductKey{.m = 2})->kernel, ProductKernel::kLibrary);
}

TEST(KernelChoices, what_is_malformed_is_refused_with_its_place) {
  const auto refused = [](const std::string& from, const std::string& to,
                          const std::string& message) {
    std::string text(kOne);
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      parse(text);
      ADD_FAILURE() << to << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_NE(std::string_view(error.what()).find(message), std::string_view::npos)
          << error.what();
    }
  };
  const std::string place = "choices.json: products[0]";
  refused(R"("m": 8)", R"("m": 0)", place + ".m is 0 (legal: a whole number from 1 on)");
  refused(R"("m": 8)", R"("m": 8.5)", place + ".m is 8.5");
  refused(R"("n": 16, )", "", place + " has no n");
  refused("false", "1", place + ".transpose_a is 1 (legal: true or false)");
  refused("bf16", "fp8", place + R"(.type is "fp8" (legal: fp32, bf16))");
  refused("gelu_backward", "relu", place + ".epilogue is");
  refused(R"("hopper",)", R"("fastest",)",
          place + R"(.kernel is "fastest" (legal: own, hopper, cublaslt, unfused))");
  refused(R"("own": 12.5)", R"("own": -1)", place + ".microseconds.own is -1");
  refused(R"("own": 12.5)", R"("best": 1)", place + ".microseconds.best is 1");
  refused(R"({"own": 12.5, "hopper": 8})", "3", place + ".microseconds is 3");
  refused("[", "{\"list\": [", "line");
  refused("}}]", "}}, 3]", "products[1] is an integer, not an object");
  const std::string text(kOne);
  const auto begin = text.find("{\"m\""), end = text.find("}}]") + 2;
  refused("}}]", "}}, " + text.substr(begin, end - begin) + "]", "products[1] is there twice");
  refused("\"products\": [", "\"products\": 3, \"more\": [", "products is an integer, not a list");
  const std::string fp8 = "choices.json: fp8_products[0]";
  refused(R"("a_rows": [64])", R"("a_rows": [])",
          fp8 + ".a_rows is [] (legal: 1 to 4 whole numbers from 1 on)");
  refused("[32, 16, 16]", "[32, 16, 16, 8, 8]", fp8 + ".b_rows is [32,16,16,8,8]");
  refused("[32, 16, 16]", "[32, 0]", fp8 + ".b_rows is [32,0]");
  refused(R"("k": [128, 256])", R"("k": 128)", fp8 + ".k is 128");
  refused("[1, 128]", "[128]", fp8 + ".a_scales is [128] (legal: 2 to 2 whole numbers from 0 on)");
  refused("e5m2", "fp8", fp8 + R"(.a_format is "fp8" (legal: e4m3, e5m2))");
  refused(R"("unfused",)", R"("own",)",
          fp8 + R"(.kernel is "own" (legal: hopper, cublaslt, unfused, hopper_3, hopper_split))");
  refused(R"("fp8_products": [)", R"("fp8_products": 3, "more": [)",
          "fp8_products is an integer, not a list");
  refused(R"("backward": true)", R"("backward": 1)",
          "choices.json: attention[0].backward is 1 (legal: true or false)");
  refused(R"("cudnn",)", R"("hopper",)", R"(attention[0].kernel is "hopper" (legal: own, cudnn))");
}

class KernelChoicesOp : public OpTest {};
TRIREME_FOR_ALL_ISAS(KernelChoicesOp);

/// What a product of m rows gives with these choices; its operands are aligned, so that kernels
/// with TMA serve it.
TestTensor product(Isa isa, KernelChoices* choices, std::int64_t m) {
  Context context = test_context(isa);
  context.set_kernel_choices(choices);
  const auto random = [](Shape shape, std::uint64_t seed) {
    TestTensor aligned(DType::kBF16, shape, 0);
    const auto values = TestTensor::random(DType::kBF16, shape, seed).values();
    for (std::size_t i = 0; i < values.size(); ++i)
      aligned.set(static_cast<std::int64_t>(i), values[i]);
    return aligned;
  };
  const TestTensor a = random({m, 64}, 1), b = random({64, 128}, 2);
  TestTensor c(DType::kF32, {m, 128}, 0);
  Gemm args;
  args.c_MN = c;
  args.a = a;
  args.b = b;
  gemm(context, args);
  context.synchronize();
  return c;
}

TEST_P(KernelChoicesOp, measuring_gives_a_product_that_several_kernels_serve_one_choice) {
  const TestTensor by_rule = product(GetParam(), nullptr, 128);
  KernelChoices choices;
  product(GetParam(), &choices, 128);
  EXPECT_EQ(choices.size(), 0U) << "nobody measures unless told to";
  choices.set_measuring(true);
  const TestTensor c = product(GetParam(), &choices, 128);
  product(GetParam(), &choices, 128);
  product(GetParam(), &choices, 0);
  choices.set_measuring(false);
  product(GetParam(), &choices, 64);
  if (test_device::device().kind == DeviceKind::kCpu) {
    EXPECT_EQ(choices.size(), 0U) << "a CPU has one way";
    return;
  }
  const bool several = gpu::info(0).capability == 90 || gemm_missing_library().empty();
  ASSERT_EQ(choices.size(), several ? 1U : 0U);
  if (!several) return;
  expect_close(c.values(), by_rule.values(), {1e-5, 1e-5}, "the chosen kernel's product");
  const auto& [key, choice] = *choices.products().begin();
  EXPECT_EQ(key.m, 128);
  int measured = 0;
  for (const double time : choice.microseconds) {
    if (time == 0) continue;
    ++measured;
    EXPECT_GE(time, choice.microseconds[static_cast<std::size_t>(choice.kernel)]);
  }
  EXPECT_GE(measured, 2);
  EXPECT_GT(choice.microseconds[static_cast<std::size_t>(choice.kernel)], 0);
}

}  // namespace
}  // namespace trireme
