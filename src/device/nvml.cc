#include "device/nvml.h"

#include <dlfcn.h>

#include <array>

namespace trireme {

namespace {

// Of nvml.h, which need not be there: the names and numbers of its interface.
constexpr int kMemoryErrorUncorrected = 1, kSinceStart = 0, kClockSm = 1;
constexpr unsigned long long kHardwareSlowdown = 0x8, kSoftwareThermal = 0x20,
                             kHardwareThermal = 0x40, kPowerBrake = 0x80;

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

template <class... Arguments>
bool NvmlGpu::ask(const char* name, Arguments... arguments) const {
  if (!there()) return false;
  auto* const function = find<int(void*, Arguments...)>(library_, name);
  return function != nullptr && function(device_, arguments...) == 0;
}

NvmlGpu::NvmlGpu(const std::string& library, const std::string& bus_id)
    : library_(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) return;
  auto* const init = find<int()>(library_, "nvmlInit_v2");
  auto* const device_of =
      find<int(const char*, void**)>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  if (init == nullptr || device_of == nullptr || init() != 0) return;
  if (device_of(bus_id.c_str(), &device_) != 0) device_ = nullptr;
}

std::string NvmlGpu::driver() const {
  if (!there()) return "";
  std::array<char, 80> version{};
  auto* const of_system = find<int(char*, unsigned)>(library_, "nvmlSystemGetDriverVersion");
  const bool told = of_system != nullptr && of_system(version.data(), version.size()) == 0;
  return told ? version.data() : "";
}

std::optional<std::uint64_t> NvmlGpu::millijoules() const {
  unsigned long long energy = 0;
  if (!ask("nvmlDeviceGetTotalEnergyConsumption", &energy)) return std::nullopt;
  return energy;
}

std::optional<bool> NvmlGpu::ecc() const {
  int current = 0, pending = 0;
  if (!ask("nvmlDeviceGetEccMode", &current, &pending)) return std::nullopt;
  return current != 0;
}

std::optional<std::uint64_t> NvmlGpu::uncorrected_errors() const {
  unsigned long long count = 0;
  if (!ask("nvmlDeviceGetTotalEccErrors", kMemoryErrorUncorrected, kSinceStart, &count))
    return std::nullopt;
  return count;
}

std::optional<unsigned> NvmlGpu::max_clock_mhz() const {
  unsigned clock = 0;
  if (!ask("nvmlDeviceGetMaxClockInfo", kClockSm, &clock)) return std::nullopt;
  return clock;
}

std::optional<unsigned> NvmlGpu::power_limit_watts() const {
  unsigned milliwatts = 0;
  if (!ask("nvmlDeviceGetEnforcedPowerLimit", &milliwatts)) return std::nullopt;
  return milliwatts / 1000;
}

std::string NvmlGpu::slowed_by() const {
  unsigned long long reasons = 0;
  if (!ask("nvmlDeviceGetCurrentClocksThrottleReasons", &reasons)) return "";
  std::string text;
  const auto say = [&](unsigned long long bits, const char* why) {
    if ((reasons & bits) != 0) text += (text.empty() ? "" : ", ") + std::string(why);
  };
  say(kHardwareSlowdown, "hardware slowdown");
  say(kSoftwareThermal | kHardwareThermal, "heat");
  say(kPowerBrake, "power brake");
  return text;
}

}  // namespace trireme
