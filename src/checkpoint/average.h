#pragma once
// The mean of several checkpoints of one model ("model soups", Wortsman et al. 2022).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/safetensors.h"

namespace trireme {

struct AverageOptions {
  std::int64_t file_bytes_max = SafetensorsWriter::kFileBytesMax;
  /// Called after each tensor; what it throws ends the work, leaving nothing. May be empty.
  std::function<void()> after_tensor;
};

struct AverageResult {
  std::int64_t tensors = 0, parameters = 0, bytes = 0;
};

/// Writes a Hugging Face directory with, for each tensor, (x_1 + ... + x_n) / n of the `sources`:
/// step folders of ours (every shard verified) and Hugging Face directories, mixed or not. Sums are
/// in fp64 in the order given; each value is rounded once, to nearest even, to the dtype that the
/// tensor has in the first source (fp32, bf16, fp16). One source gives its own bits. Config,
/// generation config and tokenizer are those of the first; nothing of an optimizer is read. One
/// tensor at a time is held. Checkpoints of adapters and folders of peft's, mixed or not, give a
/// folder of peft's: the means of their parameters (of A and of B, not of their products), where
/// all have one rank, scale, targets and base. `output` comes to be by a rename. Throws ConfigError
/// where the sources differ in these, in names or in shapes (naming the tensor) or where `output`
/// exists and is no empty folder; DataError for what cannot be read or written.
AverageResult average_weights(const std::vector<std::filesystem::path>& sources,
                              const std::filesystem::path& output, const AverageOptions& options);

/// A float of fewer bits: 1 sign bit, `exponent_bits`, `mantissa_bits`, 16 in all. To nearest, ties
/// to even, from the double itself; beyond the largest it is infinite, a NaN stays one.
std::uint16_t rounded_to_16_bits(double value, int exponent_bits, int mantissa_bits);

}  // namespace trireme
