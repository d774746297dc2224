#include "device/energy.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "device/nvml.h"
#include "device/sysfs.h"

namespace trireme {

namespace {

/// The number that a file of sysfs holds.
std::optional<std::uint64_t> number_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::uint64_t number = 0;
  if (!(stream >> number)) return std::nullopt;
  return number;
}

/// Packages, and their memory where it is counted apart. What lies in a package ("core", "uncore")
/// is counted with it, and "psys" has all of them once more.
bool counts(const std::string& zone) { return zone.starts_with("package") || zone == "dram"; }

}  // namespace

struct EnergyMeter::Gpu {
  NvmlGpu nvml;
  std::optional<std::uint64_t> last;

  explicit Gpu(const Sources& sources)
      : nvml(sources.nvml, sources.gpu_bus_id), last(nvml.millijoules()) {}
  double take_joules() {
    const std::optional<std::uint64_t> now = nvml.millijoules();
    if (!now || *now < *last) return 0;
    return static_cast<double>(*now - *std::exchange(last, now)) * 1e-3;
  }
};

EnergyMeter::EnergyMeter(const Sources& sources) {
  if (sources.packages) open_packages(sources.powercap);
  if (sources.gpu_bus_id.empty()) return;
  gpu_ = std::make_unique<Gpu>(sources);
  if (!gpu_->last) gpu_.reset();  // before Volta there is no counter
}

EnergyMeter::~EnergyMeter() = default;

void EnergyMeter::open_packages(const std::filesystem::path& powercap) {
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(powercap, absent)) {
    // "intel-rapl-mmio:0" has the same package by another way.
    if (!entry.path().filename().string().starts_with("intel-rapl:")) continue;
    if (!counts(first_word_of(entry.path() / "name"))) continue;
    Zone zone;
    zone.file = entry.path() / "energy_uj";
    zone.range = number_in(entry.path() / "max_energy_range_uj").value_or(0);
    const std::optional<std::uint64_t> now = number_in(zone.file);
    if (!now) {
      refused_ = fmt::format(
          "{} cannot be read: the CPU's energy is not in the metrics. The administrator may allow "
          "it: chmod a+r {}/intel-rapl:*/energy_uj",
          zone.file.string(), powercap.string());
      continue;
    }
    zone.last = *now;
    zones_.push_back(std::move(zone));
  }
}

bool EnergyMeter::reads() const { return !zones_.empty() || gpu_ != nullptr; }

void EnergyMeter::poll() {
  for (Zone& zone : zones_) {
    const std::optional<std::uint64_t> now = number_in(zone.file);
    if (!now) continue;
    const std::uint64_t turned = *now < zone.last ? zone.range : 0;
    joules_ += static_cast<double>(*now + turned - zone.last) * 1e-6;
    zone.last = *now;
  }
}

double EnergyMeter::take_joules() {
  poll();
  if (gpu_) joules_ += gpu_->take_joules();
  return std::exchange(joules_, 0);
}

}  // namespace trireme
