#pragma once
// Joules that a machine says it has drawn: a CPU's packages and their memory by RAPL (Linux'
// powercap: Documentation/power/powercap), a GPU by NVML's nvmlDeviceGetTotalEnergyConsumption.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "device/nvml.h"

namespace trireme {

class EnergyMeter {
 public:
  struct Sources {
    bool packages = false;   ///< of this host: one of its ranks reads them
    std::string gpu_bus_id;  ///< "0000:3b:00.0"; empty: no GPU
    std::filesystem::path powercap = "/sys/class/powercap";
    std::string nvml = kNvml;  ///< looked for when the meter is made
  };
  /// Begins at zero. What is not there, or may not be read, is left out.
  explicit EnergyMeter(const Sources& sources);
  ~EnergyMeter();
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;

  /// Whether anything tells.
  [[nodiscard]] bool reads() const;
  /// What is there but may not be read, and what to do about it; else "".
  [[nodiscard]] const std::string& refused() const { return refused_; }
  /// Reads the packages: at least once in each turn of their counters, which is minutes.
  void poll();
  /// Since it began, or the last call.
  double take_joules();

 private:
  /// A counter of microjoules that starts again at 0 behind `range`.
  struct Zone {
    std::filesystem::path file;
    std::uint64_t range = 0, last = 0;
  };
  struct Gpu;
  void open_packages(const std::filesystem::path& powercap);

  std::vector<Zone> zones_;
  std::unique_ptr<Gpu> gpu_;
  std::string refused_;
  double joules_ = 0;
};

}  // namespace trireme
