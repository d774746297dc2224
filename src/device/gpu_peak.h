#pragma once

#include <optional>
#include <string_view>

namespace trireme {

/// Dense bf16 TFLOP/s that the maker gives for a GPU of this name, as cudaGetDeviceProperties has
/// it ("NVIDIA H200"); none where the name is not known. For model-FLOP utilisation.
/// Source: NVIDIA's data sheets (the figures without sparsity).
std::optional<double> peak_bf16_tflops(std::string_view gpu_name);

}  // namespace trireme
