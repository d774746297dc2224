#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gelu/gelu.h"
#include "kernels/gelu_reference.h"
#include "kernels/gemm_support.h"
#include "kernels/glu/glu.h"
#include "kernels/glu_reference.h"

namespace trireme {
namespace {

using enum GemmEpilogue;

class GemmEpilogueOp : public OpTest {};
TRIREME_FOR_ALL_ISAS(GemmEpilogueOp);

constexpr std::array kEpilogues = {kAddResidual,    kGelu,  kGeluBackward, kSwiglu,
                                   kSwigluBackward, kGeglu, kGegluBackward};

std::int64_t columns_of_c(GemmEpilogue epilogue, std::int64_t n) {
  return is_glu(epilogue) ? n / 2 : is_glu_backward(epilogue) ? 2 * n : n;
}

GluGate gate_of(GemmEpilogue epilogue) {
  return epilogue == kGeglu || epilogue == kGegluBackward ? GluGate::kGelu : GluGate::kSilu;
}

/// A product with an epilogue, and what it writes.
struct Fused {
  GemmOperands x;
  TestTensor operand, saved, c;
  Gemm args;

  Fused(reference::GemmCase sizes, DType type, GemmEpilogue epilogue, bool with_bias)
      : x(sizes, type, type),
        operand(TestTensor::random(
            type, {sizes.m, is_glu_backward(epilogue) ? 2 * sizes.n : sizes.n}, 5, 2)),
        saved(type, {sizes.m, sizes.n}),
        c(type, {sizes.m, columns_of_c(epilogue, sizes.n)}),
        args(x.args) {
    args.c_MN = c;
    args.epilogue = epilogue;
    if (with_bias) args.bias_N = x.bias;
    if (epilogue != kGelu && !is_glu(epilogue)) args.operand = operand;
    if (epilogue != kAddResidual) args.saved = saved;
  }
};

/// The same by the product and the op that follows it.
struct Unfused {
  TestTensor c, saved;
};
Unfused unfused(Context& context, const GemmWay& way, const Fused& fused) {
  const DType type = fused.c.dtype();
  Unfused result{fused.c, fused.saved};
  TestTensor y(type, {fused.x.sizes.m, fused.x.sizes.n});
  Gemm product = fused.args;
  product.epilogue = kNone;
  product.operand = {};
  product.saved = {};
  product.c_MN = y;
  way.run(product);
  switch (fused.args.epilogue) {
    case kAddResidual: {
      const std::vector<double> sums = y.values(), other = fused.operand.values();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const float sum = static_cast<float>(sums[i]) + static_cast<float>(other[i]);
        result.c.set(static_cast<std::int64_t>(i), sum);
      }
      break;
    }
    case kGelu:
      result.saved = y;
      gelu_forward(context, result.c, y);
      break;
    case kGeluBackward:
      gelu_backward(context, result.c, y, fused.operand, result.saved);
      break;
    case kSwiglu:
    case kGeglu:
      result.saved = y;
      glu_forward(context, gate_of(fused.args.epilogue), result.c, y);
      break;
    case kSwigluBackward:
    case kGegluBackward:
      glu_backward(context, gate_of(fused.args.epilogue), result.c, y, fused.operand, result.saved);
      break;
    case kNone:
      break;
  }
  return result;
}

std::string name_of_case(const GemmWay& way, GemmEpilogue epilogue, const reference::GemmCase& s) {
  return way.name + ", epilogue " + std::to_string(static_cast<int>(epilogue)) + ", " +
         std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k) +
         (s.transpose_a ? " T" : " N") + (s.transpose_b ? "T" : "N");
}

/// Multiples of nothing; of 8, as Hopper's kernel asks; more than one tile of each size.
std::vector<reference::GemmCase> cases() {
  std::vector<reference::GemmCase> all;
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 2, 1}, {5, 6, 3}, {70, 142, 33}}) {
    for (const int transposes : {0, 2}) all.push_back({m, n, k, false, transposes != 0});
  }
  all.push_back({136, 48, 72, false, false});
  all.push_back({136, 144, 40, false, true});
  all.push_back({24, 48, 40, true, false});
  all.push_back({24, 48, 40, true, true});
  return all;
}

void expect_bits_of_the_unfused(Context& context, const reference::GemmCase& sizes, DType type,
                                GemmEpilogue epilogue) {
  Fused fused(sizes, type, epilogue, sizes.m % 2 == 1);
  for (const GemmWay& way : gemm_ways(context)) {
    // Where a library is installed it computes what has no epilogue, and adds in its own order.
    if (context.on_gpu() && way.name == "gemm") continue;
    if (!way.serves(fused.args)) continue;
    fused.c = TestTensor(type, fused.c.shape());
    fused.args.c_MN = fused.c;
    if (fused.args.saved.given()) {
      fused.saved = TestTensor(type, fused.saved.shape());
      fused.args.saved = fused.saved;
    }
    way.run(fused.args);
    const Unfused expected = unfused(context, way, fused);
    EXPECT_EQ(fused.c.bits(), expected.c.bits()) << name_of_case(way, epilogue, sizes);
    EXPECT_EQ(fused.saved.bits(), expected.saved.bits()) << name_of_case(way, epilogue, sizes);
  }
}

TEST_P(GemmEpilogueOp, fused_has_the_bits_of_the_unfused_sequence) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const GemmEpilogue epilogue : kEpilogues) {
      for (const reference::GemmCase& sizes : cases())
        expect_bits_of_the_unfused(context, sizes, type, epilogue);
    }
  }
}

TEST_P(GemmEpilogueOp, rows_go_on_once_all_blocks_of_a_large_product_are_added) {
  Context context = test_context(GetParam(), 2);
  if (context.on_gpu()) GTEST_SKIP() << "a way of the CPU";
  for (const GemmEpilogue epilogue : kEpilogues) {
    expect_bits_of_the_unfused(context, {201, 1502, 1040, false, true}, DType::kF32, epilogue);
    expect_bits_of_the_unfused(context, {201, 834, 1602, false, true}, DType::kBF16, epilogue);
    // Without an epilogue threads would share out the tokens of this one.
    expect_bits_of_the_unfused(context, {136, 38, 301, true, false}, DType::kF32, epilogue);
  }
}

/// Rows go on once each, when they are what they are to be: what `then` reads is the result.
TEST_P(GemmEpilogueOp, rows_go_on_when_they_are_complete) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t m : {1, 127, 200, 401}) {
        if (context.on_gpu() && m > 1) continue;  // all at once, whatever the size
        for (const bool transpose_a : {false, true}) {
          for (const GemmEpilogue epilogue : {kNone, kSwiglu}) {
            // Columns and K in more blocks than one, and none that ends with a tile. In bf16 ours
            // multiplies an even K, without a bias.
            const bool f32 = type == DType::kF32;
            Fused fused({m, 834,
                         transpose_a ? 300
                         : f32       ? 1101
                                     : 1602,
                         transpose_a, true},
                        type, epilogue, f32);
            if (epilogue == kNone) {
              fused.args.saved = {};
              fused.args.operand = {};
            }
            TestTensor seen(type, fused.c.shape());
            std::mutex lock;
            std::vector<int> times(static_cast<std::size_t>(m));
            int calls = 0;
            const auto then = [&](Context& of, std::int64_t first, std::int64_t count) {
              cast(of, seen.view().rows(first, count), fused.c.view().rows(first, count));
              const std::lock_guard guard(lock);
              ++calls;
              for (std::int64_t i = first; i < first + count; ++i)
                ++times.at(static_cast<std::size_t>(i));
            };
            fused.args.then = then;
            gemm(context, fused.args);
            context.synchronize();
            EXPECT_EQ(seen.bits(), fused.c.bits()) << m;
            EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << m;
            const bool own = f32 || (GetParam() >= Isa::kAvx512Bf16 &&
                                     !gemm_internal::library_multiplies_bf16_tiles());
            const bool by_rows = !context.on_gpu() && own && !transpose_a && m >= 128;
            EXPECT_EQ(calls > 1, by_rows) << m;
          }
        }
      }
    }
  }
}

TEST_P(GemmEpilogueOp, every_epilogue_equals_its_formula) {
  Context context = test_context(GetParam(), 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const GemmEpilogue epilogue : kEpilogues) {
      Fused fused({33, 34, 65, false, true}, type, epilogue, true);
      gemm(context, fused.args);
      const std::vector<double> y = fused.x.expected(fused.x.bias_rows()),
                                operand = fused.operand.values(), saved = fused.saved.values(),
                                c = fused.c.values();
      const Tolerance once = tolerance_of(type);
      if (epilogue == kGelu || is_glu(epilogue))
        expect_close(saved, y, gemm_tolerance(type), "what is saved");
      std::vector<double> expected = y;
      switch (epilogue) {
        case kAddResidual:
          for (std::size_t i = 0; i < y.size(); ++i) expected[i] += operand[i];
          expect_close(c, expected, {2 * once.relative, 2 * gemm_tolerance(type).relative}, "sum");
          break;
        case kGelu:
          expect_close(c, reference::gelu_forward(saved), once, "gelu");
          break;
        case kGeluBackward:
          expected = reference::gelu_backward(y, operand);
          expect_close(c, expected, {2.02 * once.relative, 1e-5}, "gelu's gradient");
          expect_close(saved, reference::gelu_forward(operand), once, "gelu once more");
          break;
        case kSwiglu:
        case kGeglu:
          expect_close(c, reference::glu_forward(gate_of(epilogue), saved, fused.x.sizes.n / 2),
                       once, "the unit");
          break;
        case kSwigluBackward:
        case kGegluBackward:
          expected = reference::glu_backward(gate_of(epilogue), y, operand, fused.x.sizes.n);
          expect_close(c, expected, {2.02 * once.relative, 1e-5}, "the unit's gradient");
          expect_close(saved, reference::glu_forward(gate_of(epilogue), operand, fused.x.sizes.n),
                       once, "the unit once more");
          break;
        case kNone:
          break;
      }
    }
  }
}

TEST_P(GemmEpilogueOp, what_is_saved_may_be_left_out) {
  Context context = test_context(GetParam());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const GemmEpilogue epilogue : {kGelu, kGeluBackward}) {
      Fused fused({7, 9, 11, false, true}, type, epilogue, false);
      gemm(context, fused.args);
      const std::string with = fused.c.bits();
      fused.args.saved = {};
      fused.c = TestTensor(type, fused.c.shape());
      fused.args.c_MN = fused.c;
      gemm(context, fused.args);
      EXPECT_EQ(fused.c.bits(), with);
    }
  }
}

TEST_P(GemmEpilogueOp, an_empty_sum_is_a_sum) {
  Context context = test_context(GetParam());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Fused fused({3, 4, 0, false, true}, type, kAddResidual, false);
    gemm(context, fused.args);
    EXPECT_EQ(fused.c.values(), fused.operand.values());
  }
}

TEST_P(GemmEpilogueOp, the_same_bits_in_every_order) {
  Context context = test_context(GetParam(), 2);
  for (const GemmEpilogue epilogue : kEpilogues) {
    Fused fused({136, 80, 72, false, true}, DType::kBF16, epilogue, true);
    for (const GemmWay& way : gemm_ways(context)) {
      if (!way.serves(fused.args)) continue;
      expect_same_bits([&] {
        way.run(fused.args);
        return fused.c.bits() + fused.saved.bits();
      });
    }
  }
}

TEST_P(GemmEpilogueOp, the_size_of_tiles_decides_nothing_about_the_bits) {
  Context context = test_context(GetParam());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Fused fused({136, 72, 168, false, true}, type, kAddResidual, true);
    std::map<std::string, std::string> bits;  // by the kernel's name
    for (const GemmWay& way : gemm_ways(context)) {
      if (way.name == "gemm" || !way.serves(fused.args)) continue;
      way.run(fused.args);
      const std::string kernel = way.name.substr(0, way.name.find("tiles") - 6);
      const auto [first, added] = bits.emplace(kernel, fused.c.bits());
      EXPECT_EQ(first->second, fused.c.bits()) << way.name;
    }
  }
}

TEST_P(GemmEpilogueOp, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  const auto refused = [&](GemmEpilogue epilogue, const auto& change, const std::string& message) {
    Fused fused({4, 6, 5, false, true}, DType::kF32, epilogue, false);
    change(fused);
    expect_refused([&] { gemm(context, fused.args); }, message);
  };
  refused(
      kNone, [](Fused& f) { f.args.operand = f.operand; }, "gemm.operand: expected nothing");
  refused(
      kAddResidual, [](Fused& f) { f.args.saved = f.saved; }, "gemm.saved: expected nothing");
  refused(
      kAddResidual, [](Fused& f) { f.args.operand = {}; }, "gemm.operand: expected [4, 6] fp32");
  refused(
      kAddResidual, [](Fused& f) { f.args.operand = f.c; }, "gemm.c: shares memory with operand");
  refused(
      kSwiglu, [](Fused& f) { f.args.saved = {}; }, "gemm.saved: expected [4, 6] fp32");
  refused(
      kSwiglu, [](Fused& f) { f.args.c_MN = f.saved; }, "gemm.saved: shares memory with c");
  refused(
      kGelu, [](Fused& f) { f.args.saved = f.c; }, "gemm.saved: shares memory with c");
  refused(
      kGelu, [](Fused& f) { f.args.accumulate = Accumulate::kYes; },
      "gemm.c: an epilogue accumulates nothing");
  refused(
      kSwigluBackward, [](Fused& f) { f.args.saved = {}; }, "gemm.saved: expected [4, 6] fp32");
  refused(
      kSwigluBackward, [](Fused& f) { f.args.operand = f.x.before; },
      "gemm.operand: expected [4, 12] fp32");
  Fused odd({4, 5, 3, false, true}, DType::kF32, kSwiglu, false);
  expect_refused([&] { gemm(context, odd.args); }, "have an even number of columns");
}

bool always(const GemmGpuArgs&) { return true; }
bool never(const GemmGpuArgs&) { return false; }
bool without_epilogue(const GemmGpuArgs& args) { return args.epilogue == kNone; }

TEST(GemmChoice, follows_gpu_shape_and_epilogue) {
  const GemmGpuKernels own{always, nullptr}, hopper{always, nullptr},
      library{without_epilogue, nullptr}, useless{never, nullptr};
  gpu::Info h200, other;
  h200.capability = 90;
  h200.multiprocessors = 132;
  other.capability = 100;
  other.multiprocessors = 132;
  GemmGpuArgs large{}, small{};
  large.m = large.n = large.k = 4096;
  small.m = 16;
  small.n = small.k = 4096;
  const auto choose = [&](const gemm_internal::GpuTables& tables, const gpu::Info& info,
                          GemmGpuArgs args, GemmEpilogue epilogue) {
    args.epilogue = epilogue;
    return gemm_internal::choose_kernel(tables, info, args);
  };
  EXPECT_EQ(choose({&own, &hopper, &library}, h200, large, kNone), &library);
  EXPECT_EQ(choose({&own, &hopper, &library}, h200, large, kSwiglu), &hopper);
  EXPECT_EQ(choose({&own, &hopper, &library}, h200, small, kSwiglu), &own);
  EXPECT_EQ(choose({&own, &hopper, &library}, other, large, kSwiglu), &own);
  EXPECT_EQ(choose({&own, &hopper, nullptr}, h200, large, kNone), &hopper);
  EXPECT_EQ(choose({&own, &hopper, nullptr}, h200, small, kNone), &own);
  EXPECT_EQ(choose({&own, nullptr, nullptr}, h200, large, kGelu), &own);
  EXPECT_EQ(choose({&own, &useless, &useless}, h200, large, kGelu), &own);
  EXPECT_EQ(choose({&useless, nullptr, &library}, h200, large, kGelu), nullptr);
}

TEST(GemmChoice, one_that_was_made_is_kept_where_its_kernel_serves) {
  using gemm_internal::chosen_kernel;
  const GemmGpuKernels own{always, nullptr}, hopper{always, nullptr},
      library{without_epilogue, nullptr};
  const gemm_internal::GpuTables tables{&own, &hopper, &library};
  gpu::Info h200, other;
  h200.capability = 90;
  other.capability = 100;
  GemmGpuArgs args{};
  args.m = args.n = args.k = 64;
  KernelChoices choices;
  EXPECT_EQ(chosen_kernel(tables, h200, args, choices), nullptr) << "there is none";
  const auto pin = [&](ProductKernel kernel) {
    choices = {};
    choices.add(gemm_internal::key_of(args), {kernel, {}});
  };
  pin(ProductKernel::kHopper);
  EXPECT_EQ(chosen_kernel(tables, h200, args, choices), &hopper);
  EXPECT_EQ(chosen_kernel(tables, other, args, choices), nullptr) << "not on this GPU";
  EXPECT_EQ(chosen_kernel({&own, nullptr, nullptr}, h200, args, choices), nullptr);
  pin(ProductKernel::kOwn);
  EXPECT_EQ(chosen_kernel(tables, h200, args, choices), &own);
  args.epilogue = kGelu;
  EXPECT_EQ(chosen_kernel(tables, h200, args, choices), nullptr) << "another product";
  pin(ProductKernel::kLibrary);
  EXPECT_EQ(chosen_kernel(tables, h200, args, choices), nullptr) << "it does not serve that";
}

TEST_P(GemmEpilogueOp, a_choice_to_leave_it_unfused_gives_the_bits_of_the_product_chosen) {
  if (test_device::device().kind == DeviceKind::kCpu) GTEST_SKIP() << "a CPU has no choice";
  for (const GemmEpilogue epilogue : kEpilogues) {
    Context context = test_context(GetParam());
    KernelChoices choices;
    context.set_kernel_choices(&choices);
    choices.set_measuring(true);
    Fused measured({16, 32, 24, false, true}, DType::kBF16, epilogue, true);
    gemm(context, measured.args);
    choices.set_measuring(false);
    ProductKey key;
    for (const auto& [product, choice] : choices.products()) {
      if (product.epilogue != epilogue) continue;
      key = product;
      EXPECT_GT(choice.microseconds[static_cast<std::size_t>(ProductKernel::kUnfused)], 0);
    }
    if (gate_of(epilogue) == GluGate::kGelu) {
      EXPECT_EQ(key.m, 0) << "no kernel ends with it: there is nothing to choose";
      continue;
    }
    ASSERT_EQ(key.m, 16) << "every epilogue can be left to an op";
    const auto bits = [&](ProductKernel kernel) {
      KernelChoices pinned;
      pinned.add(key, {kernel, {}});
      context.set_kernel_choices(&pinned);
      Fused fused({16, 32, 24, false, true}, DType::kBF16, epilogue, true);
      gemm(context, fused.args);
      test_device::synchronize();
      return fused.c.bits() + (fused.args.saved.given() ? fused.saved.bits() : "");
    };
    if (gemm_gpu_library_version() != 0) continue;  // its product would be another
    EXPECT_EQ(bits(ProductKernel::kUnfused), bits(ProductKernel::kOwn));
  }
}

TEST(GemmChoice, a_library_that_is_missing_is_told_with_its_reason) {
  GemmGpuKernels library{never, nullptr};
  EXPECT_EQ(gemm_internal::missing_library(nullptr), "");
  EXPECT_EQ(gemm_internal::missing_library(&library), "") << "a table without a library";
  library.missing = [] { return static_cast<const char*>(nullptr); };
  EXPECT_EQ(gemm_internal::missing_library(&library), "");
  library.missing = [] { return "libcublasLt.so.13: not there"; };
  const std::string text = gemm_internal::missing_library(&library);
  EXPECT_TRUE(text.starts_with("cuBLASLt is not used (libcublasLt.so.13: not there): ")) << text;
  EXPECT_NE(text.find("slower"), std::string::npos);
}

}  // namespace
}  // namespace trireme
