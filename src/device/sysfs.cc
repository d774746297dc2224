#include "device/sysfs.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>

namespace trireme {

namespace fs = std::filesystem;

namespace {

/// 0 where the file holds no number.
std::int64_t number_of(const fs::path& file) {
  const std::string word = first_word_of(file);
  std::int64_t number = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), number);
  return fault == std::errc() && end == word.data() + word.size() ? number : 0;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code fault;
  for (fs::directory_iterator at(folder, fault), end; !fault && at != end; at.increment(fault))
    entries.push_back(at->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

/// "4: ACTIVE" without its number.
std::string state_of(const std::string& line) {
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

}  // namespace

std::string first_word_of(const fs::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

std::string first_line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::optional<PcieLink> pcie_link(const std::string& bus_id, const fs::path& sys) {
  const fs::path device = sys / "bus" / "pci" / "devices" / bus_id;
  const auto lanes = [&](const char* file) { return static_cast<int>(number_of(device / file)); };
  PcieLink link{lanes("current_link_width"), lanes("max_link_width"),
                first_line_of(device / "max_link_speed")};
  if (link.lanes == 0 || link.lanes_max == 0) return std::nullopt;
  return link;
}

std::vector<FabricPort> fabric_ports(const fs::path& sys) {
  std::vector<FabricPort> ports;
  for (const fs::path& device : entries_of(sys / "class" / "infiniband")) {
    for (const fs::path& port : entries_of(device / "ports")) {
      ports.push_back({device.filename().string() + "/" + port.filename().string(),
                       first_line_of(port / "link_layer"), state_of(first_line_of(port / "state")),
                       first_line_of(port / "rate"), number_of(port / "counters" / "link_downed")});
    }
  }
  return ports;
}

}  // namespace trireme
