// A tensor core's sums of fp8, bit for bit beside MMA-Sim's (tests/ptx_host/foreign), which was
// fitted to hardware.
#include "kernels/simt_host/wgmma_sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "kernels/simt_host/runtime.h"

namespace trireme::simt {
namespace {

constexpr int kColumns = 8;

WgmmaShape shape_of(WgmmaFormat a, WgmmaFormat b) { return {kColumns, false, false, true, a, b}; }

/// The sum of one row and one column, which stand at the last places of their tiles.
float sum_of(const WgmmaShape& shape, const std::vector<float>& a, const std::vector<float>& b,
             float c) {
  std::vector<float> tile_a(64 * 32), tile_b(32 * kColumns), d(64 * kColumns);
  for (std::size_t k = 0; k < 32; ++k) {
    tile_a[63 * 32 + k] = a[k];
    tile_b[k * kColumns + kColumns - 1] = b[k];
  }
  d.back() = c;
  multiply(shape, d.data(), tile_a.data(), tile_b.data());
  return d.back();
}

class TensorCoreSums : public testing::Test {
 protected:
  TensorCoreSums() { options().tensor_core_sums = true; }
  ~TensorCoreSums() override { options().tensor_core_sums = false; }
};

TEST_F(TensorCoreSums, have_the_bits_of_mma_sim) {
  std::ifstream file(std::string(TRIREME_SOURCE_ROOT) + "/tests/golden/tensor_core_sums.txt");
  int lines = 0, otherwise_equal = 0;
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    std::string what, d, names[2];
    int k = 0;
    words >> what >> k >> d >> names[0] >> names[1] >> std::hex;
    if (what != "wgmma" || k != 32 || d != "f32") continue;
    const auto format = [](const std::string& name) {
      return name == "e4m3" ? WgmmaFormat::kE4m3 : WgmmaFormat::kE5m2;
    };
    const auto word = [&] {
      std::uint32_t bits = 0;
      words >> bits;
      return bits;
    };
    const WgmmaShape shape = shape_of(format(names[0]), format(names[1]));
    std::vector<float> a, b;
    for (int i = 0; i < k; ++i)
      a.push_back(float_of_code(shape.a, static_cast<unsigned char>(word())));
    for (int i = 0; i < k; ++i)
      b.push_back(float_of_code(shape.b, static_cast<unsigned char>(word())));
    const float c = std::bit_cast<float>(word());
    const std::uint32_t expected = word();
    ++lines;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(sum_of(shape, a, b, c)), expected) << text;
    options().tensor_core_sums = false;
    otherwise_equal += std::bit_cast<std::uint32_t>(sum_of(shape, a, b, c)) == expected;
    options().tensor_core_sums = true;
  }
  EXPECT_GE(lines, 100);
  EXPECT_LT(otherwise_equal, lines / 2);
}

TEST_F(TensorCoreSums, keep_13_bits_below_the_largest_exponent) {
  const WgmmaShape shape = shape_of(WgmmaFormat::kE4m3, WgmmaFormat::kE4m3);
  std::vector<float> a(32, 1), b(32, 1);
  a[0] = b[0] = 448;
  EXPECT_EQ(sum_of(shape, a, b, 0), 448.0F * 448);
  a[0] = b[0] = 1;
  EXPECT_EQ(sum_of(shape, a, b, 8192), 8192.0F + 32);
  EXPECT_EQ(sum_of(shape, a, b, 16384), 16384.0F);
  EXPECT_EQ(sum_of(shape, a, b, -16384), -16384.0F);
}

TEST_F(TensorCoreSums, pass_infinities_and_nans_on) {
  const WgmmaShape shape = shape_of(WgmmaFormat::kE5m2, WgmmaFormat::kE4m3);
  std::vector<float> a(32, 1), b(32, 1);
  a[3] = float_of_code(WgmmaFormat::kE5m2, 0xfc);
  EXPECT_EQ(sum_of(shape, a, b, 1), -HUGE_VALF);
  b[3] = 0;
  EXPECT_TRUE(std::isnan(sum_of(shape, a, b, 1)));
  EXPECT_TRUE(std::isnan(float_of_code(WgmmaFormat::kE4m3, 0x7f)));
  EXPECT_EQ(float_of_code(WgmmaFormat::kE4m3, 0x7e), 448.0F);
  EXPECT_EQ(float_of_code(WgmmaFormat::kE5m2, 0x7b), 57344.0F);
}

}  // namespace
}  // namespace trireme::simt
