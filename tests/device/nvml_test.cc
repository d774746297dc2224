#include "device/nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

constexpr const char* kThere = "0000:3b:00.0";

TEST(Nvml, tells_of_a_gpu) {
  const NvmlGpu gpu(TRIREME_NVML_STAND_IN, kThere);
  ASSERT_TRUE(gpu.there());
  EXPECT_EQ(gpu.driver(), "550.54.15");
  EXPECT_TRUE(gpu.millijoules());
  EXPECT_EQ(gpu.ecc(), true);
  EXPECT_EQ(gpu.uncorrected_errors(), 2U);
  EXPECT_EQ(gpu.max_clock_mhz(), 1980U);
  EXPECT_EQ(gpu.power_limit_watts(), 700U);
}

TEST(Nvml, tells_what_lowers_clocks_but_for_what_always_does) {
  void* library = ::dlopen(TRIREME_NVML_STAND_IN, RTLD_NOW);
  ASSERT_NE(library, nullptr) << ::dlerror();
  auto* const lower =
      reinterpret_cast<void (*)(unsigned long long)>(::dlsym(library, "stand_in_lower_clocks"));
  const NvmlGpu gpu(TRIREME_NVML_STAND_IN, kThere);
  lower(0x1 | 0x2 | 0x4);  // idle, a setting, the power limit
  EXPECT_EQ(gpu.slowed_by(), "");
  lower(0x8 | 0x40);
  EXPECT_EQ(gpu.slowed_by(), "hardware slowdown, heat");
  lower(0x80);
  EXPECT_EQ(gpu.slowed_by(), "power brake");
  lower(0);
}

TEST(Nvml, without_a_library_or_gpu_says_nothing) {
  for (const NvmlGpu& gpu :
       {NvmlGpu("libno-such-nvml.so.1", kThere), NvmlGpu(TRIREME_NVML_STAND_IN, "0000:ff:00.0")}) {
    EXPECT_FALSE(gpu.there());
    EXPECT_EQ(gpu.driver(), "");
    EXPECT_FALSE(gpu.millijoules());
    EXPECT_FALSE(gpu.ecc());
    EXPECT_FALSE(gpu.uncorrected_errors());
    EXPECT_FALSE(gpu.max_clock_mhz());
    EXPECT_FALSE(gpu.power_limit_watts());
    EXPECT_EQ(gpu.slowed_by(), "");
  }
}

}  // namespace
}  // namespace trireme
