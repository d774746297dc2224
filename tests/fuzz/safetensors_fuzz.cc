// Hugging Face weights: the parts of an input are model.safetensors.index.json and two files; with
// an empty index the first file is the model.safetensors. What is accepted reads whole and in
// boxes to the same numbers.
#include <algorithm>
#include <cstring>

#include "checkpoint/boxes.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/safetensors.h"
#include "fuzz_support.h"

using namespace trireme;
using namespace trireme::fuzz;

namespace {

constexpr std::size_t kParts = 3;
constexpr const char* kNames[] = {"model.safetensors.index.json", "a.safetensors", "b.safetensors"};
constexpr const char* kSingle = "model.safetensors";

void check_tensor(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
  const bool readable = tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16";
  if (!readable || tensor.shape.size() > static_cast<std::size_t>(Shape::kRankMax)) return;
  const Shape shape(tensor.shape);
  std::vector<float> all(static_cast<std::size_t>(shape.count()));
  file.read_fp32(tensor, whole(shape), all.data());
  Box box = whole(shape);
  for (int dim = 0; dim < shape.rank(); ++dim) {
    box.offset.set(dim, shape[dim] / 3);
    box.shape.set(dim,
                  (shape[dim] + 1) / 2 > shape[dim] - shape[dim] / 3 ? 0 : (shape[dim] + 1) / 2);
  }
  const auto count = static_cast<std::size_t>(box.shape.count());
  std::vector<float> part(count), cut(count);
  file.read_fp32(tensor, box, part.data());
  copy_box({reinterpret_cast<const std::byte*>(all.data()), whole(shape)},
           {reinterpret_cast<std::byte*>(cut.data()), box}, box, sizeof(float));
  require(count == 0 || std::memcmp(part.data(), cut.data(), count * sizeof(float)) == 0,
          "a box reads otherwise than the whole");
}

struct Wanted {
  const char* name;
  Shape shape;
};

void import_into(std::initializer_list<Wanted> wanted) {
  State state;
  std::vector<std::vector<float>> buffers;
  for (const Wanted& tensor : wanted) {
    auto& buffer = buffers.emplace_back(static_cast<std::size_t>(tensor.shape.count()));
    state.tensors.push_back({std::string("parameters/") + tensor.name, DType::kF32, tensor.shape,
                             whole(tensor.shape), reinterpret_cast<std::byte*>(buffer.data())});
  }
  const auto world = make_self_communicator();
  import_weights(folder(), state, *world);
}

/// The header's size made right again.
void repair(std::string& file, std::size_t header_bytes) {
  const auto size = static_cast<std::uint64_t>(header_bytes);
  if (file.size() >= sizeof size) std::memcpy(file.data(), &size, sizeof size);
}

void mutate_file(std::string& file, std::size_t size_max, unsigned seed) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes || seed % 16 == 0) return mutate_part(file, size_max);
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const std::size_t bytes = std::min<std::uint64_t>(header_bytes, file.size() - 8);
  std::string header = file.substr(8, bytes), rest = file.substr(8 + bytes);
  std::string& part = seed % 16 < 5 ? rest : header;
  mutate_part(part, part.size() + size_max - std::min(size_max, file.size()));
  file = std::string(8, '\0') + header + rest;
  repair(file, header.size());
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string> parts = split_parts(text_of(data, size), kParts);
  const bool single = parts[0].empty();
  for (const char* name : {kSingle, kNames[0], kNames[1], kNames[2]})
    std::filesystem::remove(folder() / name);
  if (single) {
    put(kSingle, parts[1]);
  } else {
    for (std::size_t i = 0; i < kParts; ++i) put(kNames[i], parts[i]);
  }
  const std::string place = folder().string();
  const Expected expected{{ExitCode::kData}, place};
  (void)accepted(expected, [&] {
    const SafetensorsFolder weights(folder());
    for (const auto& [name, located] : weights.tensors()) {
      require(located.tensor->name == name, "a tensor under another name");
      check_tensor(*located.file, *located.tensor);
    }
  });
  // A tied model, to which a stored head must be equal, and GPT-2's two spellings.
  (void)accepted(expected, [&] { import_into({{"model.embed_tokens.weight", Shape{3, 2}}}); });
  (void)accepted(expected, [&] {
    import_into({{"transformer.wte.weight", Shape{3, 2}}, {"transformer.ln_f.bias", Shape{2}}});
  });
  return 0;
}

std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t size_max,
                                    unsigned seed) {
  std::vector<std::string> parts = split_parts(text_of(data, size), kParts);
  const std::size_t room = size_max - std::min(size, size_max);
  const std::size_t chosen = parts[0].empty() ? (seed % 32 == 0 ? 0 : 1) : seed % kParts;
  if (chosen == 0) {
    mutate_part(parts[0], parts[0].size() + room);
  } else {
    mutate_file(parts[chosen], parts[chosen].size() + room, seed / 32);
  }
  return give_back(join_parts(parts), data, size_max);
}
