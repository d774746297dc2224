#include "device/gpu_peak.h"

namespace trireme {

namespace {

struct Peak {
  std::string_view part;  ///< of the name; the first that occurs counts
  double bf16, fp8;       ///< 0: no such products
};
constexpr Peak kPeaks[] = {
    {"GB200", 2500, 5000},    {"B200", 2250, 4500},
    {"GH200", 989, 1979},     {"H200 NVL", 835.5, 1671},
    {"H200", 989, 1979},      {"H100 NVL", 835.5, 1671},
    {"H100 PCIe", 756, 1513}, {"H100", 989, 1979},
    {"H800", 989, 1979},      {"H20", 148, 296},
    {"A100", 312, 0},         {"A800", 312, 0},
    {"L40S", 362, 733},       {"L40", 181, 362},
    {"L4", 121, 242.5},       {"RTX 6000 Ada", 364.2, 728.5},
    {"A40", 149.7, 0},        {"A10", 125, 0},
    {"RTX 5090", 209.5, 419}, {"RTX 4090", 165.2, 330.3},
    {"RTX 3090", 71, 0},
};

}  // namespace

std::optional<double> peak_tflops_of(std::string_view gpu_name, PeakOf operands) {
  for (const Peak& peak : kPeaks) {
    if (gpu_name.find(peak.part) == std::string_view::npos) continue;
    const double tflops = operands == PeakOf::kFp8 ? peak.fp8 : peak.bf16;
    return tflops > 0 ? std::optional(tflops) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace trireme
