#include "device/sysfs.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_directory.h"

namespace trireme {
namespace {

/// A tree like /sys.
class Sysfs : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((sys_ / file).parent_path());
    std::ofstream(sys_ / file) << text << "\n";
  }
  void link(const std::string& lanes, const std::string& lanes_max) const {
    const std::string device = "bus/pci/devices/0000:3b:00.0/";
    write(device + "current_link_width", lanes);
    write(device + "max_link_width", lanes_max);
    write(device + "max_link_speed", "32.0 GT/s PCIe");
  }
  void port(const std::string& name, const std::string& state, const std::string& downs) const {
    const std::string folder = "class/infiniband/" + name;
    write(folder + "/state", state);
    write(folder + "/rate", "400 Gb/sec (4X NDR)");
    write(folder + "/link_layer", "InfiniBand");
    if (!downs.empty()) write(folder + "/counters/link_downed", downs);
  }
  TemporaryDirectory sys_;
};

TEST_F(Sysfs, has_a_link_of_a_card) {
  link("8", "16");
  const std::optional<PcieLink> found = pcie_link("0000:3b:00.0", sys_.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->lanes, 8);
  EXPECT_EQ(found->lanes_max, 16);
  EXPECT_EQ(found->speed_max, "32.0 GT/s PCIe");
  EXPECT_FALSE(pcie_link("0000:ff:00.0", sys_.path()));
}

TEST_F(Sysfs, of_a_card_behind_no_link_says_nothing) {
  link("0", "255");
  EXPECT_FALSE(pcie_link("0000:3b:00.0", sys_.path()));
  link("x16", "16");
  EXPECT_FALSE(pcie_link("0000:3b:00.0", sys_.path()));
}

TEST_F(Sysfs, has_the_ports_by_name) {
  port("mlx5_1/ports/1", "1: DOWN", "7");
  port("mlx5_0/ports/1", "4: ACTIVE", "");
  port("mlx5_0/ports/2", "4: ACTIVE", "0");
  const std::vector<FabricPort> ports = fabric_ports(sys_.path());
  ASSERT_EQ(ports.size(), 3U);
  EXPECT_EQ(ports[0].name, "mlx5_0/1");
  EXPECT_EQ(ports[0].layer, "InfiniBand");
  EXPECT_EQ(ports[0].state, "ACTIVE");
  EXPECT_EQ(ports[0].rate, "400 Gb/sec (4X NDR)");
  EXPECT_EQ(ports[0].times_down, 0);
  EXPECT_EQ(ports[2].name, "mlx5_1/1");
  EXPECT_EQ(ports[2].state, "DOWN");
  EXPECT_EQ(ports[2].times_down, 7);
}

TEST_F(Sysfs, of_a_host_without_fabric_has_no_ports) {
  EXPECT_TRUE(fabric_ports(sys_.path()).empty());
}

}  // namespace
}  // namespace trireme
