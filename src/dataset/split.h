#pragma once
// Megatron's "split": shares of the documents for training, validation and test.

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

enum class DataPart : std::uint8_t { kTrain, kValidation, kTest };

struct SequenceRange {
  std::int64_t begin = 0, end = 0;
  friend bool operator==(const SequenceRange&, const SequenceRange&) = default;
};

/// Whether a part has a share above 0. Throws ConfigError.
bool split_gives(std::string_view split, DataPart part);

/// Which of `sequences` stored sequences belong to each part: the numbers in `split` ("969,30,1";
/// up to three, missing ones 0) divided by their sum and added up to bounds b_0 = 0, b_1, b_2, b_3;
/// part i is [round(b_i n), round(b_(i+1) n)), halves to even. A part with the share 0 is empty. As
/// megatron/core/datasets/blended_megatron_dataset_config.py. Throws ConfigError.
std::array<SequenceRange, 3> split_sequences(std::string_view split, std::int64_t sequences);

}  // namespace trireme
