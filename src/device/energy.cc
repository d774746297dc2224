#include "device/energy.h"

#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <system_error>

#include "base/error.h"

namespace trireme {

namespace {

/// The number that a file of sysfs holds.
std::optional<std::uint64_t> number_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::uint64_t number = 0;
  if (!(stream >> number)) return std::nullopt;
  return number;
}

std::string word_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

/// Packages, and their memory where it is counted apart. What lies in a package ("core", "uncore")
/// is counted with it, and "psys" has all of them once more.
bool counts(const std::string& zone) { return zone.starts_with("package") || zone == "dram"; }

/// NVML's functions, or null where the library is missing.
struct Nvml {
  explicit Nvml(const std::string& name) : handle(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle == nullptr) return;
    find("nvmlInit_v2", init);
    find("nvmlDeviceGetHandleByPciBusId_v2", device_of);
    find("nvmlDeviceGetTotalEnergyConsumption", energy_of);
  }
  template <class Function>
  void find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
  }
  void* handle;  // stays loaded: its threads and exit handlers may be in use
  int (*init)() = nullptr;
  int (*device_of)(const char* bus_id, void** device) = nullptr;
  int (*energy_of)(void* device, unsigned long long* millijoules) = nullptr;
};

}  // namespace

struct EnergyMeter::Gpu {
  Nvml nvml;
  void* device = nullptr;
  unsigned long long last = 0;

  explicit Gpu(const Sources& sources) : nvml(sources.nvml) {
    const bool complete =
        nvml.init != nullptr && nvml.device_of != nullptr && nvml.energy_of != nullptr;
    if (!complete || nvml.init() != 0) return;
    if (nvml.device_of(sources.gpu_bus_id.c_str(), &device) != 0 ||
        nvml.energy_of(device, &last) != 0)
      device = nullptr;  // GPUs before Volta have no counter
  }
  double take_joules() {
    unsigned long long now = 0;
    if (nvml.energy_of(device, &now) != 0 || now < last) return 0;
    return static_cast<double>(now - std::exchange(last, now)) * 1e-3;
  }
};

EnergyMeter::EnergyMeter(const Sources& sources) {
  if (sources.packages) open_packages(sources.powercap);
  if (sources.gpu_bus_id.empty()) return;
  gpu_ = std::make_unique<Gpu>(sources);
  if (gpu_->device == nullptr) gpu_.reset();
}

EnergyMeter::~EnergyMeter() = default;

void EnergyMeter::open_packages(const std::filesystem::path& powercap) {
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(powercap, absent)) {
    // "intel-rapl-mmio:0" has the same package by another way.
    if (!entry.path().filename().string().starts_with("intel-rapl:")) continue;
    if (!counts(word_in(entry.path() / "name"))) continue;
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
