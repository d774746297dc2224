#pragma once
// What Linux' sysfs says of a device's PCIe link and of a host's fabric (InfiniBand, RoCE). `sys`
// is where it is mounted.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// The first word or the first line of a file, without a line feed; empty where there is none.
std::string first_word_of(const std::filesystem::path& file);
std::string first_line_of(const std::filesystem::path& file);

/// Documentation/ABI/testing/sysfs-bus-pci. Speeds fall while a device is idle: only the most that
/// both ends agree on is of use.
struct PcieLink {
  int lanes = 0, lanes_max = 0;
  std::string speed_max;  ///< "32.0 GT/s PCIe"
};
/// Of a device by its bus id, "0000:3b:00.0"; none where the system does not say.
std::optional<PcieLink> pcie_link(const std::string& bus_id,
                                  const std::filesystem::path& sys = "/sys");

/// Documentation/ABI/stable/sysfs-class-infiniband.
struct FabricPort {
  std::string name;             ///< "mlx5_0/1"
  std::string layer;            ///< "InfiniBand", "Ethernet"
  std::string state;            ///< "ACTIVE"
  std::string rate;             ///< "400 Gb/sec (4X NDR)"
  std::int64_t times_down = 0;  ///< since the counter was last cleared
};
/// All ports of this host, by name.
std::vector<FabricPort> fabric_ports(const std::filesystem::path& sys = "/sys");

}  // namespace trireme
