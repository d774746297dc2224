#include "preflight/rank_facts.h"

#include <gnu/libc-version.h>

#include <cstdlib>
#include <map>

#include "base/file.h"
#include "base/hash.h"
#include "base/human_format.h"
#include "base/version.h"
#include "checkpoint/hdf5_file.h"
#include "comm/launch.h"
#include "config/parse.h"
#include "device/cpu_info.h"
#include "device/gpu.h"
#include "device/sysfs.h"
#include "kernels/gemm/gemm.h"
#include "train/inputs.h"
#include "train/run_kernels.h"

namespace trireme {

namespace {

constexpr std::size_t kHashShown = 12;
std::string short_hash(std::string_view text) { return xxh3_128_hex(text).substr(0, kHashShown); }

std::string hash_of_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  return xxh3_128_hex(file.bytes()).substr(0, kHashShown);
}

std::string libraries_text(const Device& device) {
  std::string text = fmt::format("{}, HDF5 {}, oneDNN {}, glibc {}", mpi_library_name(),
                                 hdf5_version(), gemm_library_version(), gnu_get_libc_version());
  if (device.kind == DeviceKind::kCuda)
    text += fmt::format(", cuBLASLt {}", gemm_gpu_library_version());
  return text;
}

/// A run takes rank 0's: a host that cannot read the files says nothing.
std::string config_text(const ConfigInput* input) {
  if (input == nullptr) return "";
  try {
    return "resolved, xxh3 " +
           short_hash(resolved_json(read_config_with_model(*input).config).dump());
  } catch (const Error&) {
    return "";
  }
}

std::string kernel_choices_text(const std::string& run_directory) {
  const char* const variable = std::getenv("TRIREME_KERNEL_CHOICES");
  const std::filesystem::path path =
      variable != nullptr ? std::filesystem::path(variable)
                          : std::filesystem::path(run_directory) / RunKernels::kFileName;
  if (variable == nullptr && (run_directory.empty() || !is_there(path))) return "none";
  try {
    return fmt::format("{}, xxh3 {}", path.string(), hash_of_file(path));
  } catch (const Error&) {  // the word "measure", or a file that is not there
    return path.string();
  }
}

std::string device_text_of(const Device& device) {
  if (device.kind == DeviceKind::kCpu) return "";
  const gpu::Info info = gpu::info(device.index);
  return fmt::format("{}, {}", info.name,
                     format_bytes(static_cast<std::int64_t>(info.total_bytes)));
}

std::string bus_of(const Device& device) {
  return device.kind == DeviceKind::kCuda ? gpu::info(device.index).pci_bus_id : "";
}

std::string settings_text(const NvmlGpu& nvml) {
  std::string text;
  const auto say = [&](const std::string& more) { text += (text.empty() ? "" : ", ") + more; };
  if (const auto ecc = nvml.ecc()) say(*ecc ? "ECC on" : "ECC off");
  if (const auto clock = nvml.max_clock_mhz()) say(fmt::format("at most {} MHz", *clock));
  if (const auto watts = nvml.power_limit_watts()) say(fmt::format("{} W", *watts));
  return text;
}

/// "16 lanes of 16, 32.0 GT/s PCIe".
std::string pcie_text(const std::string& bus_id, const std::filesystem::path& sys) {
  if (bus_id.empty()) return "";
  const std::optional<PcieLink> link = pcie_link(bus_id, sys);
  return link ? fmt::format("{} of {}, {}", counted(link->lanes, "lane"), link->lanes_max,
                            link->speed_max)
              : "";
}

/// "8 x InfiniBand ACTIVE 400 Gb/sec (4X NDR)": names of devices follow from slots.
std::string fabric_text(const std::filesystem::path& sys) {
  std::map<std::string, int> kinds;
  for (const FabricPort& port : fabric_ports(sys))
    ++kinds[fmt::format("{} {} {}", port.layer, port.state, port.rate)];
  std::string text;
  for (const auto& [kind, count] : kinds)
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, kind);
  return text.empty() ? "none" : text;
}

}  // namespace

Fact program_fact() {
  return {"program",
          fmt::format("{} ({}), xxh3 {}", program_version(), program_commit(),
                      hash_of_file("/proc/self/exe")),
          "start the same file on all hosts: programs that differ may not even understand each "
          "other"};
}

std::vector<Fact> facts_of_rank(const FactRequest& request) {
  const Placement& placement = request.placement;
  const std::filesystem::path& sys = request.sources.sys;
  const std::string bus = bus_of(placement.device);
  const NvmlGpu nvml(bus.empty() ? "" : request.sources.nvml, bus);
  return {
      {"libraries", libraries_text(placement.device),
       "use one image or module on all hosts: other libraries compute other bits"},
      {"config", config_text(request.input),
       "give every rank the same files; a run takes rank 0's, and what differs shows that folders "
       "do"},
      {"kernel choices", kernel_choices_text(request.run_directory),
       "set TRIREME_KERNEL_CHOICES alike on all hosts; a run takes rank 0's"},
      {"CPU", cpu_model_name(), "all wait for the slowest; start on one type of host"},
      {"instruction set", std::string(name_of(detect_isa())),
       "bits differ between instruction sets; start on one type of host"},
      {"threads", counted(placement.threads, "thread") + " a rank",
       "all wait for the rank with the fewest; start as many ranks on each host, and have the "
       "launcher bind nobody (mpirun --bind-to none) or all alike"},
      {"device", device_text_of(placement.device), "start on one type of GPU"},
      {"driver", nvml.driver(), "install one driver on all hosts"},
      {"GPU settings", settings_text(nvml),
       "set them alike (nvidia-smi -q -d ECC,CLOCK,POWER; -e, -lgc, -pl change them)"},
      {"PCIe", pcie_text(bus, sys),
       "seat the card anew, or ask who runs that host: copies to and from it are slower"},
      {"fabric", request.first_of_host ? fabric_text(sys) : "",
       "look at that host's ports (ibstat, dmesg): traffic goes by fewer or slower ones"},
  };
}

std::string gpu_fault(const Device& device, const MachineSources& sources) {
  if (device.kind == DeviceKind::kCpu) return "";
  const NvmlGpu nvml(sources.nvml, bus_of(device));
  std::string text;
  if (const std::uint64_t errors = nvml.uncorrected_errors().value_or(0); errors > 0)
    text = fmt::format("{} of memory that ECC could not correct",
                       counted(static_cast<std::int64_t>(errors), "error"));
  if (const std::string why = nvml.slowed_by(); !why.empty())
    text += fmt::format("{}clocks lowered: {}", text.empty() ? "" : ", ", why);
  return text;
}

std::string times_down(const MachineSources& sources) {
  std::string text;
  for (const FabricPort& port : fabric_ports(sources.sys))
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", port.name, port.times_down);
  return text;
}

}  // namespace trireme
