#include "device/gpu_peak.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

std::optional<double> of(std::string_view name) { return peak_tflops_of(name, PeakOf::kBf16); }

TEST(GpuPeak, of_fp8_where_the_gpu_has_it) {
  EXPECT_EQ(peak_tflops_of("NVIDIA H200", PeakOf::kFp8), 1979);
  EXPECT_EQ(peak_tflops_of("NVIDIA L40S", PeakOf::kFp8), 733);
  EXPECT_EQ(peak_tflops_of("NVIDIA L4", PeakOf::kFp8), 242.5);
  EXPECT_EQ(peak_tflops_of("NVIDIA RTX 6000 Ada Generation", PeakOf::kFp8), 728.5);
  EXPECT_EQ(peak_tflops_of("NVIDIA GeForce RTX 4090", PeakOf::kFp8), 330.3);
  EXPECT_EQ(peak_tflops_of("NVIDIA B200", PeakOf::kFp8), 4500);
  EXPECT_EQ(peak_tflops_of("NVIDIA A100-SXM4-80GB", PeakOf::kFp8), std::nullopt);
}

TEST(GpuPeak, names_are_told_apart_by_their_longest_part) {
  EXPECT_EQ(of("NVIDIA H200"), 989);
  EXPECT_EQ(of("NVIDIA H200 NVL"), 835.5);
  EXPECT_EQ(of("NVIDIA H100 80GB HBM3"), 989);
  EXPECT_EQ(of("NVIDIA H20"), 148);
  EXPECT_EQ(of("NVIDIA GH200 480GB"), 989);
  EXPECT_EQ(of("NVIDIA GB200"), 2500);
  EXPECT_EQ(of("NVIDIA L40"), 181);
  EXPECT_EQ(of("NVIDIA A100-SXM4-80GB"), 312);
  EXPECT_EQ(of("host execution"), std::nullopt);
}

TEST(GpuPeak, capabilities) {
  EXPECT_EQ(capability_of("A100 SXM 80GB"), 80);
  EXPECT_EQ(capability_of("NVIDIA A40"), 86);
  EXPECT_EQ(capability_of("NVIDIA L4"), 89);
  EXPECT_EQ(capability_of("NVIDIA H20"), 90);
  EXPECT_EQ(capability_of("NVIDIA GH200 480GB"), 90);
  EXPECT_EQ(capability_of("B200 SXM"), 100);
  EXPECT_EQ(capability_of("NVIDIA GeForce RTX 5090"), 120);
  EXPECT_EQ(capability_of("host execution"), std::nullopt);
}

}  // namespace
}  // namespace trireme
