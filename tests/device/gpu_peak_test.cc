#include "device/gpu_peak.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(GpuPeak, names_are_told_apart_by_their_longest_part) {
  EXPECT_EQ(peak_bf16_tflops("NVIDIA H200"), 989);
  EXPECT_EQ(peak_bf16_tflops("NVIDIA H200 NVL"), 835.5);
  EXPECT_EQ(peak_bf16_tflops("NVIDIA H100 80GB HBM3"), 989);
  EXPECT_EQ(peak_bf16_tflops("NVIDIA H20"), 148);
  EXPECT_EQ(peak_bf16_tflops("NVIDIA GH200 480GB"), 989);
  EXPECT_EQ(peak_bf16_tflops("NVIDIA A100-SXM4-80GB"), 312);
  EXPECT_EQ(peak_bf16_tflops("host execution"), std::nullopt);
}

}  // namespace
}  // namespace trireme
