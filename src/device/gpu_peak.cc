#include "device/gpu_peak.h"

namespace trireme {

namespace {

struct Peak {
  std::string_view part;  ///< of the name; the first that occurs counts
  double tflops;
};
constexpr Peak kPeaks[] = {
    {"B200", 2250},      {"GH200", 989},     {"H200 NVL", 835.5}, {"H200", 989},
    {"H100 NVL", 835.5}, {"H100 PCIe", 756}, {"H100", 989},       {"H800", 989},
    {"H20", 148},        {"A100", 312},      {"A800", 312},       {"L40S", 362},
    {"A40", 149.7},      {"A10", 125},       {"RTX 4090", 165.2}, {"RTX 3090", 71},
};

}  // namespace

std::optional<double> peak_bf16_tflops(std::string_view gpu_name) {
  for (const Peak& peak : kPeaks) {
    if (gpu_name.find(peak.part) != std::string_view::npos) return peak.tflops;
  }
  return std::nullopt;
}

}  // namespace trireme
