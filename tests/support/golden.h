#pragma once
// Golden files (tests/golden/README.md) as tests read them. The input is trusted: it is committed
// beside the tests; a malformed file throws, but is not diagnosed as a user's file would be.

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace trireme {

struct GoldenTensor {
  std::vector<std::int64_t> shape;
  std::vector<double> values;  ///< C order; fp32 files are widened exactly

  [[nodiscard]] double norm() const;  ///< Euclidean
  /// Columns [from, to) of the last dim: a fused tensor of GPT-2 taken apart.
  [[nodiscard]] GoldenTensor columns(std::int64_t from, std::int64_t to) const;
};
using GoldenTensors = std::map<std::string, GoldenTensor, std::less<>>;

/// tests/golden/RELATIVE
std::filesystem::path golden_path(std::string_view relative);

/// A JSON file below tests/golden.
Json read_golden_json(std::string_view relative);

/// Every tensor of a safetensors file of fp32 and fp64 tensors, at any path.
GoldenTensors read_tensors(const std::filesystem::path& path);

/// With those of GPT-OSS's experts, which a file has in one tensor, apart as the model's parameters
/// are (checkpoint/tensor_parts.h).
GoldenTensors with_experts_apart(GoldenTensors tensors);

/// Nested arrays of numbers flattened in order: a batch's rows, one after the other.
std::vector<std::int64_t> flat_integers(const Json& array);
std::vector<double> flat_reals(const Json& array);

/// The names of the folders of tests/golden/model, sorted.
std::vector<std::string> golden_model_cases();

/// tests/golden/model/CASE: a Hugging Face directory, one batch, and what float64 makes of them.
struct ModelGolden {
  std::filesystem::path directory;  ///< holds config.json and model.safetensors
  std::int64_t batch = 0, tokens = 0;
  std::vector<std::int64_t> input_ids, targets;  ///< batch x tokens; a target of -100 is masked
  double loss = 0;                               ///< mean over the unmasked targets
  double gradient_norm = 0;                      ///< over all parameters, tied ones once
  GoldenTensors gradients;  ///< by parameter: Hugging Face's name and orientation
  GoldenTensor logits;      ///< batch x 2 x vocabulary: the last two positions
};
ModelGolden read_model_golden(std::string_view model_case);

/// tests/golden/document_mask/CASE: the same with attention held inside documents. `directory` is
/// that of the model. Positions restart at each document's start and at the start of a row.
struct DocumentMaskGolden : ModelGolden {
  std::vector<std::vector<std::int64_t>> document_starts;  ///< by row, ascending from 0
  std::vector<std::int64_t> position_ids;                  ///< batch x tokens
};
DocumentMaskGolden read_document_mask_golden(std::string_view model_case);

/// || actual - expected || / (5e-6 || expected || + 1e-9 all_norm): at most 1 is "the same
/// gradient". Sizes must be equal. NaN anywhere gives infinity.
double gradient_error(std::span<const double> actual, std::span<const double> expected,
                      double all_norm);
double gradient_error(std::span<const float> actual, std::span<const double> expected,
                      double all_norm);

/// max |actual - expected| over max |expected|. NaN anywhere gives infinity.
double relative_error_max(std::span<const float> actual, std::span<const double> expected);

}  // namespace trireme
