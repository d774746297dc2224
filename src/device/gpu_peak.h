#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme {

/// Dense TFLOP/s, of fp8 operands or of bf16 ones, that the maker gives for a GPU of this name, as
/// cudaGetDeviceProperties has it ("NVIDIA H200"); none where the name is not known or the GPU has
/// no such products. For model-FLOP utilisation. Source: NVIDIA's data sheets (the figures without
/// sparsity, sums in fp32).
enum class PeakOf : std::uint8_t { kBf16, kFp8 };
std::optional<double> peak_tflops_of(std::string_view gpu_name, PeakOf operands);

/// Its compute capability (90 of 9.0), of a name as above or as cluster files have it ("H100 SXM").
/// Source: NVIDIA's list of CUDA GPUs.
std::optional<int> capability_of(std::string_view gpu_name);

}  // namespace trireme
