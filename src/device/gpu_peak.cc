#include "device/gpu_peak.h"

namespace trireme {

namespace {

struct KnownGpu {
  std::string_view part;  ///< of the name; the first that occurs counts
  int capability;
  double bf16, fp8;  ///< 0: no such products
};
constexpr KnownGpu kGpus[] = {
    {"GB200", 100, 2500, 5000},    {"B200", 100, 2250, 4500},
    {"GH200", 90, 989, 1979},      {"H200 NVL", 90, 835.5, 1671},
    {"H200", 90, 989, 1979},       {"H100 NVL", 90, 835.5, 1671},
    {"H100 PCIe", 90, 756, 1513},  {"H100", 90, 989, 1979},
    {"H800", 90, 989, 1979},       {"H20", 90, 148, 296},
    {"A100", 80, 312, 0},          {"A800", 80, 312, 0},
    {"L40S", 89, 362, 733},        {"L40", 89, 181, 362},
    {"L4", 89, 121, 242.5},        {"RTX 6000 Ada", 89, 364.2, 728.5},
    {"A40", 86, 149.7, 0},         {"A10", 86, 125, 0},
    {"RTX 5090", 120, 209.5, 419}, {"RTX 4090", 89, 165.2, 330.3},
    {"RTX 3090", 86, 71, 0},
};

const KnownGpu* find_gpu(std::string_view name) {
  for (const KnownGpu& gpu : kGpus)
    if (name.find(gpu.part) != std::string_view::npos) return &gpu;
  return nullptr;
}

}  // namespace

std::optional<double> peak_tflops_of(std::string_view gpu_name, PeakOf operands) {
  const KnownGpu* gpu = find_gpu(gpu_name);
  if (gpu == nullptr) return std::nullopt;
  const double tflops = operands == PeakOf::kFp8 ? gpu->fp8 : gpu->bf16;
  return tflops > 0 ? std::optional(tflops) : std::nullopt;
}

std::optional<int> capability_of(std::string_view gpu_name) {
  const KnownGpu* gpu = find_gpu(gpu_name);
  return gpu == nullptr ? std::nullopt : std::optional(gpu->capability);
}

}  // namespace trireme
