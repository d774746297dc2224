#pragma once
// One GPU as NVML, the management library of NVIDIA's driver, sees it. The library is loaded at run
// time where it is there; what it, the driver or the GPU does not tell is left out.

#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

inline constexpr const char* kNvml = "libnvidia-ml.so.1";

class NvmlGpu {
 public:
  /// `library` as dlopen takes it; `bus_id` "0000:3b:00.0".
  NvmlGpu(const std::string& library, const std::string& bus_id);

  /// Whether there is such a GPU, of which the following tell.
  [[nodiscard]] bool there() const { return device_ != nullptr; }
  /// "550.54.15"; empty: not known.
  [[nodiscard]] std::string driver() const;
  /// Drawn since the driver was loaded. None before Volta.
  [[nodiscard]] std::optional<std::uint64_t> millijoules() const;
  /// Whether memory corrects errors.
  [[nodiscard]] std::optional<bool> ecc() const;
  /// Memory errors that were not corrected since the last start of the machine.
  [[nodiscard]] std::optional<std::uint64_t> uncorrected_errors() const;
  [[nodiscard]] std::optional<unsigned> max_clock_mhz() const;
  [[nodiscard]] std::optional<unsigned> power_limit_watts() const;
  /// Why clocks are lowered now, but for idleness, settings and the power limit, which all GPUs
  /// under load have: "heat, hardware slowdown"; empty: they are not, or it is not known.
  [[nodiscard]] std::string slowed_by() const;

 private:
  /// Whether there is such a function, and it has filled in what `arguments` point to.
  template <class... Arguments>
  [[nodiscard]] bool ask(const char* name, Arguments... arguments) const;
  void* library_ = nullptr;  // stays loaded: its threads and exit handlers may be in use
  void* device_ = nullptr;
};

}  // namespace trireme
