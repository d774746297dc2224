// Hopper's instructions against values by hand and scalar loops; the inputs make every sum exact.
#include "simt_host/hopper_units.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kernels/simt_host/runtime.h"
#include "kernels/simt_host/state.h"
#include "simt_host/device_array.h"
#include "support/cute_layouts.h"

namespace trireme::simt_cases {
namespace {

std::vector<Bf16> small_integers(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Bf16> values(count);
  for (auto& x : values) x = Bf16(float(int(random() % 5) - 2));
  return values;
}

struct Box {
  int c0, c1, c2;
};
class TmaTest : public testing::TestWithParam<Box> {};

TEST_P(TmaTest, a_box_is_loaded_and_stored_and_what_is_outside_left_alone) {
  constexpr int kD0 = 72, kD1 = 9, kD2 = 3;
  const auto [c0, c1, c2] = GetParam();
  const auto values = small_integers(std::size_t{kD0} * kD1 * kD2, 5);
  const DeviceArray<Bf16> from(values), to(std::vector<Bf16>(values.size(), Bf16(7.0f)));
  double_box(to.data(), from.data(), {kD0, kD1, kD2}, {c0, c1, c2});
  const auto result = to.values();
  for (int z = 0; z < kD2; ++z)
    for (int y = 0; y < kD1; ++y)
      for (int x = 0; x < kD0; ++x) {
        const auto i = std::size_t((z * kD1 + y) * kD0 + x);
        const bool inside =
            x >= c0 && x < c0 + 64 && y >= c1 && y < c1 + 8 && z >= c2 && z < c2 + 2;
        ASSERT_EQ(float(result[i]), inside ? 2 * float(values[i]) : 7.0f)
            << z << " " << y << " " << x;
      }
}
INSTANTIATE_TEST_SUITE_P(Boxes, TmaTest,
                         testing::Values(Box{0, 0, 0}, Box{40, 5, 2}, Box{-8, -3, -1}));

/// c[i, j] = sum over k < 64 of a(i, k) b(j, k).
template <class A, class B>
void expect_product(const std::vector<float>& c, int n, const A& a, const B& b) {
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int k = 0; k < 64; ++k) sum += double(float(a(i, k))) * double(float(b(j, k)));
      ASSERT_EQ(c[std::size_t(i * n + j)], sum) << i << " " << j;
    }
}

TEST(TmaLayout, the_swizzle_is_that_of_cute) {
  const auto layouts = cute_layouts("swizzle");
  ASSERT_EQ(layouts.size(), 3u);
  for (const CuteLayout& layout : layouts) {
    const auto row_bytes = std::uint32_t(std::stoi(layout.head[1]));
    ASSERT_EQ(layout.values.size(), 128u);
    for (std::size_t i = 0; i < layout.values.size(); ++i)
      ASSERT_EQ(simt::swizzled(std::uint32_t(i) * 16, row_bytes), std::uint32_t(layout.values[i]));
  }
}

TEST(StmatrixTest, a_lane_holds_pairs_of_a_row_of_each_matrix) {
  std::vector<std::uint32_t> registers;  // of bf16 that name lane, matrix and half
  const auto value = [](int lane, int matrix, int half) {
    return Bf16(float(lane * 8 + matrix * 2 + half));
  };
  for (int lane = 0; lane < 32; ++lane)
    for (int matrix = 0; matrix < 4; ++matrix) {
      const Bf16 pair[2] = {value(lane, matrix, 0), value(lane, matrix, 1)};
      std::memcpy(&registers.emplace_back(), pair, 4);
    }
  const DeviceArray<std::uint32_t> from(registers);
  const DeviceArray<Bf16> out(std::size_t{32} * 8);
  store_matrices(out.data(), from.data());
  const auto rows = out.values();
  for (int matrix = 0; matrix < 4; ++matrix)
    for (int row = 0; row < 8; ++row)
      for (int column = 0; column < 8; ++column)
        ASSERT_EQ(float(rows[std::size_t((matrix * 8 + row) * 8 + column)]),
                  float(value(row * 4 + column / 2, matrix, column % 2)));
}

TEST(BulkAddTest, adds_once_for_each_block) {
  std::vector<float> values(64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  const DeviceArray<float> from(values), to(std::vector<float>(64, 100.0f));
  add_in_bulk(to.data(), from.data(), 3);
  const auto sums = to.values();
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(sums[i], 100 + 3 * values[i]);
}

TEST(BulkAddTest, adds_a_box_and_leaves_what_is_outside_alone) {
  constexpr int kD0 = 40, kD1 = 2, kD2 = 9, kD3 = 2;
  std::vector<float> values(8 * 32);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(i + 1);
  const DeviceArray<float> from(values);
  for (const auto& [c0, c1, c2, c3] : {std::array{0, 1, 0, 1}, {32, 0, 5, 0}, {8, 1, -3, 1}}) {
    const DeviceArray<float> to(std::vector<float>(std::size_t{kD0} * kD1 * kD2 * kD3, 100.0f));
    add_box(to.data(), from.data(), {kD0, kD1, kD2, kD3}, {c0, c1, c2, c3}, 2);
    const auto sums = to.values();
    for (int i = 0; i < int(sums.size()); ++i) {
      const int column = i % kD0 - c0, row = i / (kD0 * kD1) % kD2 - c2;
      const bool inside = column >= 0 && column < 32 && row >= 0 && row < 8 &&
                          i / kD0 % kD1 == c1 && i / (kD0 * kD1 * kD2) == c3;
      ASSERT_EQ(sums[std::size_t(i)],
                inside ? 100 + 2 * values[std::size_t(row * 32 + column)] : 100)
          << i;
    }
  }
}

TEST(WgmmaTest, a_comes_from_shared_memory_or_from_registers) {
  for (const int n : {64, 128}) {
    const auto a = small_integers(64 * 64, 1), b = small_integers(std::size_t(n) * 64, 2);
    const DeviceArray<Bf16> device_a(a), device_b(b);
    const DeviceArray<float> out(std::size_t(64 * n));
    multiply_a_from_registers(out.data(), device_a.data(), device_b.data(), n);
    expect_product(
        out.values(), n, [&](int i, int k) { return 2 * float(a[std::size_t(i * 64 + k)]); },
        [&](int j, int k) { return b[std::size_t(j * 64 + k)]; });
  }
}

TEST(WgmmaTest, operands_are_contiguous_along_k_or_along_the_other_side) {
  for (const int n : {64, 96, 128, 192, 256})
    for (const bool a_mn : {false, true})
      for (const bool b_mn : {false, true}) {
        SCOPED_TRACE(testing::Message() << "n " << n << " a " << a_mn << " b " << b_mn);
        const auto a = small_integers(64 * 64, 1), b = small_integers(std::size_t(n) * 64, 2);
        const DeviceArray<Bf16> device_a(a), device_b(b);
        const DeviceArray<float> out(std::size_t(64 * n));
        multiply_majors(out.data(), device_a.data(), device_b.data(), n, a_mn, b_mn);
        expect_product(
            out.values(), n,
            [&](int i, int k) { return a[std::size_t(a_mn ? k * 64 + i : i * 64 + k)]; },
            [&](int j, int k) { return b[std::size_t(b_mn ? k * n + j : j * 64 + k)]; });
      }
}

}  // namespace
}  // namespace trireme::simt_cases
