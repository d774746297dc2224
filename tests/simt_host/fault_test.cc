// Every detector of kernels/simt_host is proved by a kernel that has the fault: it is found in
// every order of the threads, by the right name, at its line; without the fault the kernel passes.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "simt_host/cases.h"
#include "simt_host/device_array.h"

namespace trireme::simt_cases {
namespace {

/// "file.cu:12" of the line that ends in "// fault: NAME"; "" where none does.
std::string marked_line(const std::string& name) {
  const std::string mark = "// fault: " + name;
  for (const char* file : {"memory_cases.cu", "barrier_cases.cu", "async_cases.cu",
                           "hopper_cases.cu", "cluster_cases.cu", "turn_cases.cu"}) {
    std::ifstream source(std::string(TRIREME_SOURCE_ROOT) + "/tests/simt_host/" + file);
    EXPECT_TRUE(source) << file;
    std::string line;
    for (int number = 1; std::getline(source, line); ++number)
      if (line.ends_with(mark)) return std::string(file) + ":" + std::to_string(number);
  }
  return "";
}

class FaultTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    DeviceArray<float> freed(Buffers::kFloats);
    buffers_ = {out_.data(), in_.data(), unset_.data(), a_.data(),
                b_.data(),   to_.data(), host_.data(),  freed.data()};
  }
  void TearDown() override { simt::options() = {}; }
  void run(bool faulty) {
    GetParam().run(faulty, buffers_);
    cudaDeviceSynchronize();
  }

 private:
  static constexpr std::size_t kTile = Buffers::kSide * Buffers::kSide;
  std::vector<float> host_ = std::vector<float>(Buffers::kFloats, 1.0f);
  DeviceArray<float> out_{host_}, in_{host_}, unset_{Buffers::kFloats};
  DeviceArray<__nv_bfloat16> a_{std::vector<__nv_bfloat16>(kTile, 1.0f)},
      b_{std::vector<__nv_bfloat16>(kTile, 1.0f)}, to_{kTile};
  Buffers buffers_{};
};

TEST_P(FaultTest, is_found_at_its_line) {
  try {
    run(true);
    FAIL() << "nothing was found";
  } catch (const simt::Fault& fault) {
    EXPECT_EQ(fault.kind, GetParam().kind) << fault.what();
    const std::string line = marked_line(GetParam().name);
    EXPECT_NE(std::string(fault.what()).find(line), std::string::npos)
        << "expected " << line << "\n"
        << fault.what();
    if (std::getenv("TRIREME_SHOW_FAULTS") != nullptr) std::puts(fault.what());
  }
}

TEST_P(FaultTest, is_found_in_every_order) {
  for (const simt::Order order : {simt::Order::kBackward, simt::Order::kRandom}) {
    for (simt::options().seed = 1; simt::options().seed < 5; ++simt::options().seed) {
      simt::options().order = order;
      try {
        run(true);
        ADD_FAILURE() << "nothing was found in order " << static_cast<int>(order);
      } catch (const simt::Fault& fault) {
        EXPECT_TRUE(fault.kind == GetParam().kind || fault.kind == GetParam().other)
            << fault.what();
      }
    }
  }
}

TEST_P(FaultTest, a_sound_kernel_passes) {
  for (const simt::Order order :
       {simt::Order::kForward, simt::Order::kBackward, simt::Order::kRandom}) {
    simt::options().order = order;
    EXPECT_NO_THROW(run(false));
  }
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Memory, FaultTest, testing::ValuesIn(memory_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Barriers, FaultTest, testing::ValuesIn(barrier_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Copies, FaultTest, testing::ValuesIn(async_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Hopper, FaultTest, testing::ValuesIn(hopper_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Clusters, FaultTest, testing::ValuesIn(cluster_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Turns, FaultTest, testing::ValuesIn(turn_cases()), name_of_case);

}  // namespace
}  // namespace trireme::simt_cases
