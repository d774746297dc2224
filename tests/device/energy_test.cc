#include "device/energy.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_directory.h"

namespace trireme {
namespace {

/// A tree like /sys/class/powercap.
class Packages : public testing::Test {
 protected:
  void zone(const std::string& directory, const std::string& name, const std::string& energy) {
    std::filesystem::create_directories(folder_ / directory);
    write(directory + "/name", name);
    write(directory + "/max_energy_range_uj", "1000000000");
    if (!energy.empty()) write(directory + "/energy_uj", energy);
  }
  void write(const std::string& file, const std::string& text) {
    std::ofstream(folder_ / file) << text << "\n";
  }
  [[nodiscard]] EnergyMeter::Sources sources() const {
    EnergyMeter::Sources sources;
    sources.packages = true;
    sources.powercap = folder_.path();
    return sources;
  }
  TemporaryDirectory folder_;
};

TEST_F(Packages, and_their_memory_are_added) {
  zone("intel-rapl:0", "package-0", "100");
  zone("intel-rapl:0:0", "core", "100");
  zone("intel-rapl:0:1", "dram", "100");
  zone("intel-rapl:1", "package-1", "100");
  zone("intel-rapl:2", "psys", "100");
  zone("intel-rapl-mmio:0", "package-0", "100");
  EnergyMeter meter(sources());
  EXPECT_TRUE(meter.reads());
  EXPECT_EQ(meter.refused(), "");
  EXPECT_EQ(meter.take_joules(), 0);
  for (const char* each : {"intel-rapl:0", "intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:1",
                           "intel-rapl:2", "intel-rapl-mmio:0"})
    write(std::string(each) + "/energy_uj", "2000100");
  EXPECT_DOUBLE_EQ(meter.take_joules(), 3 * 2.0);
  EXPECT_EQ(meter.take_joules(), 0);
}

TEST_F(Packages, counters_begin_again_behind_their_range) {
  zone("intel-rapl:0", "package-0", "999000000");
  EnergyMeter meter(sources());
  write("intel-rapl:0/energy_uj", "2000000");  // behind 1,000 J
  meter.poll();
  write("intel-rapl:0/energy_uj", "1000000");  // and once more
  EXPECT_DOUBLE_EQ(meter.take_joules(), 3 + 999);
}

TEST_F(Packages, what_may_not_be_read_is_named_and_left_out) {
  zone("intel-rapl:0", "package-0", "");
  const EnergyMeter meter(sources());
  EXPECT_FALSE(meter.reads());
  EXPECT_NE(meter.refused().find("intel-rapl:0/energy_uj cannot be read"), std::string::npos);
  EXPECT_NE(meter.refused().find("chmod"), std::string::npos);
}

TEST_F(Packages, a_machine_without_them_tells_nothing) {
  EnergyMeter::Sources none = sources();
  none.powercap /= "missing";
  EnergyMeter meter(none);
  EXPECT_FALSE(meter.reads());
  EXPECT_EQ(meter.refused(), "");
  EXPECT_EQ(meter.take_joules(), 0);
  none.powercap = folder_.path();
  zone("intel-rapl:0", "package-0", "1");
  none.packages = false;  // another rank of the host reads them
  EXPECT_FALSE(EnergyMeter(none).reads());
}

TEST(EnergyOfGpus, is_nvmls_total) {
  EnergyMeter::Sources sources;
  sources.gpu_bus_id = "0000:3b:00.0";
  sources.nvml = TRIREME_NVML_STAND_IN;
  void* library = ::dlopen(TRIREME_NVML_STAND_IN, RTLD_NOW);
  ASSERT_NE(library, nullptr) << ::dlerror();
  auto* const add =
      reinterpret_cast<void (*)(unsigned long long)>(::dlsym(library, "stand_in_add_millijoules"));
  EnergyMeter meter(sources);
  ASSERT_TRUE(meter.reads());
  add(2500);
  EXPECT_DOUBLE_EQ(meter.take_joules(), 2.5);
  EXPECT_EQ(meter.take_joules(), 0);
  sources.gpu_bus_id = "0000:ff:00.0";  // none of the library's
  EXPECT_FALSE(EnergyMeter(sources).reads());
  sources.nvml = "libno-such-nvml.so.1";
  EXPECT_FALSE(EnergyMeter(sources).reads());
}

}  // namespace
}  // namespace trireme
