// Layouts beside tables that CuTe's host code wrote (scripts/foreign_kernels.sh layouts): an
// executor by the same hands from the same manual would share an error of ours; CuTe's layouts have
// run on hardware.
#include <gtest/gtest.h>

#include "kernels/ptx_host/fragments.h"
#include "kernels/ptx_host/shared_matrix.h"
#include "support/cute_layouts.h"

namespace trireme::ptx {
namespace {

TEST(PtxLayouts, swizzles_are_those_of_cute) {
  const auto lines = cute_layouts("swizzle");
  ASSERT_EQ(lines.size(), 3u);
  for (const CuteLayout& line : lines)
    for (std::size_t i = 0; i < line.values.size(); ++i)
      ASSERT_EQ(swizzled(std::uint32_t(i) * 16, std::uint32_t(std::stoi(line.head[1]))),
                std::uint32_t(line.values[i]))
          << line.head[1];
}

TEST(PtxLayouts, descriptors_lead_to_the_elements_of_cute) {
  const auto lines = cute_layouts("matrix");
  ASSERT_EQ(lines.size(), 10u);
  for (const CuteLayout& line : lines) {
    const SharedMatrix matrix = SharedMatrix::of(std::stoull(line.head[4], nullptr, 16));
    const auto size = std::uint32_t(std::stoi(line.head[2]));
    const bool mn_major = line.head[3] == "1";
    EXPECT_EQ(matrix.row_bytes,
              line.head[1] == "none" ? 16u : std::uint32_t(std::stoi(line.head[1])));
    ASSERT_EQ(line.values.size(), 128u * 32 / size);
    for (std::size_t i = 0; i < line.values.size(); ++i)
      ASSERT_EQ(matrix.address(std::uint32_t(i % 128), std::uint32_t(i / 128), size, mn_major),
                std::uint32_t(line.values[i]))
          << line.head[1] << " element " << i % 128 << ", " << i / 128;
  }
}

TEST(PtxLayouts, fragments_are_those_of_cute) {
  const auto lines = cute_layouts("fragment");
  ASSERT_EQ(lines.size(), 6u);
  for (const CuteLayout& line : lines) {
    const std::string& name = line.head[1];
    const int threads = std::stoi(line.head[2]), values = std::stoi(line.head[3]);
    const bool is_d = name.ends_with("_c"), is_b = name == "mma_b_16",
               is_group = name.starts_with("wgmma");
    const int per = name == "wgmma_a_32" ? 4 : 2, columns = is_d ? (is_group ? 32 : 8) : per * 8;
    for (int thread = 0; thread < threads; ++thread)
      for (int v = 0; v < values; ++v) {
        const int lane = thread % 32, rows_before = thread / 32 * 16;
        Place place = is_d   ? d_place(lane, v)
                      : is_b ? b_place(lane, v / per, v % per, per)
                             : a_place(lane, v / per, v % per, per);
        if (is_b) std::swap(place.row, place.column);  // CuTe's B is N x K
        ASSERT_EQ((place.row + rows_before) * columns + place.column,
                  line.values[std::size_t(thread * values + v)])
            << name << " thread " << thread << " value " << v;
      }
  }
}

}  // namespace
}  // namespace trireme::ptx
