#include "support/golden.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/file.h"

namespace trireme {
namespace {

const Json& member(const Json& object, std::string_view key) {
  const Json* found = object.find(key);
  expect(found != nullptr, "a golden file without {}", key);
  return *found;
}

template <class T>
std::vector<double> widen(std::string_view bytes) {
  std::vector<double> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(value);
  }
  return values;
}

GoldenTensor read_tensor(const Json& entry, std::string_view data) {
  const auto offsets = flat_integers(member(entry, "data_offsets"));
  expect(offsets.size() == 2 && offsets[0] >= 0 && offsets[0] <= offsets[1] &&
             static_cast<std::size_t>(offsets[1]) <= data.size(),
         "offsets outside of a golden file");
  const auto bytes = data.substr(static_cast<std::size_t>(offsets[0]),
                                 static_cast<std::size_t>(offsets[1] - offsets[0]));
  GoldenTensor tensor;
  tensor.shape = flat_integers(member(entry, "shape"));
  const std::string& dtype = member(entry, "dtype").as_string();
  expect(dtype == "F32" || dtype == "F64", "a golden tensor of dtype {}", dtype);
  tensor.values = dtype == "F32" ? widen<float>(bytes) : widen<double>(bytes);
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) elements *= extent;
  expect(elements == static_cast<std::int64_t>(tensor.values.size()), "a golden tensor's shape");
  return tensor;
}

template <class T>
double gradient_error_of(std::span<const T> actual, std::span<const double> expected,
                         double all_norm) {
  expect(actual.size() == expected.size(), "a gradient of {} elements beside one of {}",
         actual.size(), expected.size());
  double difference = 0, square = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double d = static_cast<double>(actual[i]) - expected[i];
    difference += d * d;
    square += expected[i] * expected[i];
  }
  const double error = std::sqrt(difference) / (5e-6 * std::sqrt(square) + 1e-9 * all_norm);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

template <class T, class Leaf>
void flatten(const Json& value, std::vector<T>& flat, Leaf leaf) {
  if (!value.is_array()) {
    flat.push_back(leaf(value));
    return;
  }
  for (const Json& element : value.as_array()) flatten(element, flat, leaf);
}

ModelGolden read_batch_golden(const std::string& folder, const Json& batch,
                              std::string_view model_case) {
  ModelGolden golden;
  golden.directory = golden_path("model") / model_case;
  golden.input_ids = flat_integers(member(batch, "input_ids"));
  golden.targets = flat_integers(member(batch, "targets"));
  golden.batch = static_cast<std::int64_t>(member(batch, "input_ids").as_array().size());
  golden.tokens = static_cast<std::int64_t>(golden.input_ids.size()) / golden.batch;
  const Json expected = read_golden_json(folder + "/expected.json");
  golden.loss = member(expected, "loss").as_double();
  golden.gradient_norm = member(expected, "gradient_norm").as_double();
  golden.gradients = with_experts_apart(read_tensors(golden_path(folder) / "expected.safetensors"));
  golden.logits = golden.gradients.extract("logits").mapped();
  return golden;
}

}  // namespace

double GoldenTensor::norm() const {
  double square = 0;
  for (const double value : values) square += value * value;
  return std::sqrt(square);
}

GoldenTensor GoldenTensor::columns(std::int64_t from, std::int64_t to) const {
  expect(!shape.empty() && 0 <= from && from <= to && to <= shape.back(), "columns {} to {}", from,
         to);
  GoldenTensor part;
  part.shape = shape;
  part.shape.back() = to - from;
  const std::int64_t width = shape.back();
  const auto size = static_cast<std::int64_t>(values.size());
  for (std::int64_t row = 0; row < size; row += width) {
    part.values.insert(part.values.end(), values.begin() + row + from, values.begin() + row + to);
  }
  return part;
}

std::filesystem::path golden_path(std::string_view relative) {
  return std::filesystem::path(TRIREME_GOLDEN) / relative;
}

Json read_golden_json(std::string_view relative) {
  const auto path = golden_path(relative);
  return parse_json(read_file(path), path.string());
}

namespace {

/// From what a file has of one expert [columns of the input, ours * step], or [ours * step].
GoldenTensor part_of_expert(const GoldenTensor& all, std::int64_t expert, std::int64_t first,
                            std::int64_t step) {
  const std::int64_t in = all.shape.size() == 3 ? all.shape[1] : 1, out = all.shape.back() / step;
  GoldenTensor part;
  part.shape = {out};
  if (all.shape.size() == 3) part.shape.push_back(in);
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t i = 0; i < in; ++i)
      part.values.push_back(
          all.values[static_cast<std::size_t>((expert * in + i) * out * step + o * step + first)]);
  }
  return part;
}

}  // namespace

GoldenTensors with_experts_apart(GoldenTensors tensors) {
  GoldenTensors result;
  for (auto& [name, tensor] : tensors) {
    const bool in = name.ends_with(".experts.gate_up_proj") ||
                    name.ends_with(".experts.gate_up_proj_bias"),
               out = name.ends_with(".experts.down_proj") ||
                     name.ends_with(".experts.down_proj_bias");
    if (!in && !out) {
      result.emplace(name, std::move(tensor));
      continue;
    }
    for (std::int64_t e = 0; e < tensor.shape[0]; ++e) {
      const std::string of = fmt::format("{}[{}]", name, e);
      if (out) result.emplace(of, part_of_expert(tensor, e, 0, 1));
      if (in) result.emplace(of + ".gate", part_of_expert(tensor, e, 0, 2));
      if (in) result.emplace(of + ".up", part_of_expert(tensor, e, 1, 2));
    }
  }
  return result;
}

GoldenTensors read_tensors(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::uint64_t header_bytes = 0;
  expect(file.size() >= sizeof(header_bytes), "{} is too short", path.string());
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const std::string_view rest = std::string_view(file).substr(sizeof(header_bytes));
  expect(header_bytes <= rest.size(), "{}: the header ends after the file", path.string());
  const Json header = parse_json(rest.substr(0, header_bytes), path.string());
  GoldenTensors tensors;
  for (const auto& [name, entry] : header.as_object()) {
    if (name != "__metadata__") tensors[name] = read_tensor(entry, rest.substr(header_bytes));
  }
  return tensors;
}

std::vector<std::int64_t> flat_integers(const Json& array) {
  std::vector<std::int64_t> flat;
  flatten(array, flat, [](const Json& value) { return value.as_integer(); });
  return flat;
}

std::vector<double> flat_reals(const Json& array) {
  std::vector<double> flat;
  flatten(array, flat, [](const Json& value) { return value.as_double(); });
  return flat;
}

std::vector<std::string> golden_model_cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_path("model"))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

ModelGolden read_model_golden(std::string_view model_case) {
  const std::string folder = "model/" + std::string(model_case);
  return read_batch_golden(folder, read_golden_json(folder + "/batch.json"), model_case);
}

DocumentMaskGolden read_document_mask_golden(std::string_view model_case) {
  const std::string folder = "document_mask/" + std::string(model_case);
  const Json batch = read_golden_json(folder + "/batch.json");
  DocumentMaskGolden golden{read_batch_golden(folder, batch, model_case), {}, {}};
  for (const Json& row : member(batch, "document_starts").as_array()) {
    golden.document_starts.push_back(flat_integers(row));
  }
  golden.position_ids = flat_integers(member(batch, "position_ids"));
  return golden;
}

double gradient_error(std::span<const double> actual, std::span<const double> expected,
                      double all_norm) {
  return gradient_error_of(actual, expected, all_norm);
}

double gradient_error(std::span<const float> actual, std::span<const double> expected,
                      double all_norm) {
  return gradient_error_of(actual, expected, all_norm);
}

double relative_error_max(std::span<const float> actual, std::span<const double> expected) {
  expect(actual.size() == expected.size(), "{} values beside {}", actual.size(), expected.size());
  double difference = 0, scale = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double d = std::fabs(static_cast<double>(actual[i]) - expected[i]);
    if (std::isnan(d)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, d);
    scale = std::max(scale, std::fabs(expected[i]));
  }
  return difference == 0 ? 0 : difference / scale;
}

}  // namespace trireme
