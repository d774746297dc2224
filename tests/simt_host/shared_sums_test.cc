// Products whose blocks share sums over k, with blocks that run at the same time: they wait for
// each other's turns, which keep the order of sums.

#include <gtest/gtest.h>

#include <random>

#include "kernels/common/gpu_kernels.h"
#include "kernels/gemm/gemm_quantized_internal.h"
#include "kernels/simt_host/runtime.h"
#include "simt_host/device_array.h"

namespace trireme::simt_cases {
namespace {

constexpr std::int64_t kRows = 104, kColumns = 40, kSteps = 64, kTerms = kSteps * 128;

class SharedSums : public testing::Test {
 protected:
  void TearDown() override { simt::options() = {}; }
};

/// Of e4m3 codes of magnitudes up to 16, in blocks of 1 x 128 with scales of their own.
struct Operand {
  ScaleDim rows;
  ScaleDim columns{kTerms, 128};
  DeviceArray<std::uint8_t> codes;
  DeviceArray<float> scales;

  Operand(std::int64_t count, std::mt19937_64& random)
      : rows(count, 1),
        codes(random_values<std::uint8_t>(count * kTerms,
                                          [&] { return random() % 0x59 + (random() & 0x80); })),
        scales(random_values<float>(count * kSteps,
                                    [&] { return static_cast<float>(random() % 64 + 1) / 64; })) {}
  [[nodiscard]] ConstQuantizedView view() const {
    return {
        {reinterpret_cast<const std::byte*>(codes.data()), DType::kF8E4M3, {rows.size(), kTerms}},
        {reinterpret_cast<const std::byte*>(scales.data()), DType::kF32, {rows.size(), kSteps}},
        rows,
        columns,
        true};
  }

 private:
  template <class T, class F>
  static std::vector<T> random_values(std::int64_t count, F f) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& value : values) value = static_cast<T>(f());
    return values;
  }
};

/// One tile, of which each of four blocks has a quarter of the steps.
std::vector<float> sums_of_four_blocks(int workers) {
  std::mt19937_64 random(7);
  const Operand a(kRows, random), b(kColumns, random);
  const DeviceArray<float> c(std::vector<float>(std::size_t{kRows * kColumns}, 0.5F));
  Context context({DeviceKind::kCuda, 0}, 1, Isa::kAvx2);
  simt::options().workers = workers;
  gemm_quantized_internal::gemm_by_table(
      context,
      {.c_MN = {reinterpret_cast<std::byte*>(c.data()), DType::kF32, {kRows, kColumns}},
       .a = a.view(),
       .b = b.view(),
       .accumulate = Accumulate::kYes},
      *gpu_kernels().gemm_fp8_split_sm90, 4);
  context.synchronize();
  return c.values();
}

TEST_F(SharedSums, have_one_order_where_blocks_run_at_the_same_time) {
  const std::vector<float> one = sums_of_four_blocks(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(sums_of_four_blocks(4) == one);
}

}  // namespace
}  // namespace trireme::simt_cases
