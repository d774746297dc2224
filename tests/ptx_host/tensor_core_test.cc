// Sums of tensor cores, bit for bit beside MMA-Sim's (tests/ptx_host/foreign/tensor_core_sums.py),
// which was fitted to hardware.
#include "kernels/ptx_host/tensor_core.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/ptx_host/numbers.h"

namespace trireme::ptx {
namespace {

Type type_of(const std::string& name) {
  const std::map<std::string, Type> types = {{"bf16", {Kind::kBf16, 16}},
                                             {"f16", {Kind::kFloat, 16}},
                                             {"e4m3", {Kind::kE4m3, 8}},
                                             {"e5m2", {Kind::kE5m2, 8}},
                                             {"f32", {Kind::kFloat, 32}}};
  return types.at(name);
}

TEST(PtxTensorCore, sums_have_the_bits_of_mma_sim) {
  std::ifstream file(std::string(TRIREME_GOLDEN) + "/tensor_core_sums.txt");
  std::map<std::string, int> lines, plain_equal;
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    std::string what, d, a, b;
    int k = 0;
    words >> what >> k >> d >> a >> b >> std::hex;
    const auto next = [&](Type type) {
      std::uint32_t code = 0;
      words >> code;
      return number_of(code, type);
    };
    std::vector<float> x, y;
    for (int i = 0; i < k; ++i) x.push_back(next(type_of(a)));
    for (int i = 0; i < k; ++i) y.push_back(next(type_of(b)));
    const float c = next(type_of(d));
    std::uint32_t expected = 0;
    words >> expected;
    const float sum = core_sum(x.data(), y.data(), k, c,
                               core_numbers(type_of(a), type_of(b), type_of(d), what == "wgmma"));
    const std::uint32_t got =
        d == "f16" ? half_of(double(sum), Round::kNearest) : std::bit_cast<std::uint32_t>(sum);
    const std::string name = what + " " + d + " " + a + " " + b;
    ++lines[name];
    EXPECT_EQ(got, expected) << text;
    float plain = c;
    for (int i = 0; i < k; ++i) plain += x[std::size_t(i)] * y[std::size_t(i)];
    plain_equal[name] += d == "f32" && std::bit_cast<std::uint32_t>(plain) == expected;
  }
  EXPECT_EQ(lines.size(), 9u);
  // The table can tell: sums rounded one after another have other bits.
  for (const auto& [name, count] : lines) EXPECT_LT(plain_equal[name], count) << name;
}

// By hand: 25 bits below the largest exponent are kept, what is smaller is cut.
TEST(PtxTensorCore, small_terms_are_cut) {
  const Type brain = {Kind::kBf16, 16}, code = {Kind::kE4m3, 8}, sum = {Kind::kFloat, 32};
  std::vector<float> a(32, 0), b(32, 0);
  a[0] = b[0] = 1;
  a[1] = 1, b[1] = 0x1p-26F;
  const float twice[] = {1, 0x1p-23F};
  EXPECT_EQ(core_sum(a.data(), b.data(), 16, 0, core_numbers(brain, brain, sum, true)), 1.0F);
  b[1] = twice[1];
  EXPECT_EQ(core_sum(a.data(), b.data(), 16, 0, core_numbers(brain, brain, sum, true)),
            1.0F + 0x1p-23F);
  // fp8 on a warpgroup: 13 bits; by mma.sync 25.
  a[1] = 0x1p-6F, b[1] = 0x1p-8F;
  EXPECT_EQ(core_sum(a.data(), b.data(), 32, 0, core_numbers(code, code, sum, true)), 1.0F);
  EXPECT_EQ(core_sum(a.data(), b.data(), 32, 0, core_numbers(code, code, sum, false)),
            1.0F + 0x1p-14F);
}

}  // namespace
}  // namespace trireme::ptx
