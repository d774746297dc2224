#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "checkpoint/boxes.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/name_sets.h"
#include "checkpoint/tensor_parts.h"

namespace trireme {

namespace {

constexpr std::string_view kStatePrefix = "parameters/";
constexpr std::string_view kGpt2Prefix = "transformer.";
constexpr std::string_view kHeadName = "lm_head.weight";

/// Constants that files of some versions carry beside the weights.
bool is_buffer(std::string_view name) {
  static constexpr std::array<std::string_view, 3> kSuffixes = {".attn.bias", ".attn.masked_bias",
                                                                "rotary_emb.inv_freq"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

using Stored = SafetensorsFolder::Located;

/// "model.layers.N." of layers whose module predicts a token further on (DeepSeek-V3's MTP): they
/// stand behind those of the model, which does not read them.
std::set<std::string> further_layers(const SafetensorsFolder& weights) {
  constexpr std::string_view kProjection = "eh_proj.weight";
  std::set<std::string> prefixes;
  for (const auto& [name, stored] : weights.tensors()) {
    if (name.starts_with("model.layers.") && name.ends_with(kProjection))
      prefixes.insert(name.substr(0, name.size() - kProjection.size()));
  }
  return prefixes;
}

/// The names of this rank's tensors, without "parameters/".
std::vector<std::string> names_of(const State& state) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : state.tensors) {
    expect(tensor.name.starts_with(kStatePrefix) && tensor.dtype == DType::kF32,
           "{} {} among the parameters to import", name_of(tensor.dtype), tensor.name);
    names.push_back(tensor.name.substr(kStatePrefix.size()));
  }
  return names;
}

/// Our name of a stored tensor; its own where we have none.
std::string our_name(const std::string& stored, const std::set<std::string>& wanted,
                     const SafetensorsFolder& weights) {
  const std::string prefixed = std::string(kGpt2Prefix) + stored;
  const bool means_prefixed = wanted.contains(prefixed) && !wanted.contains(stored) &&
                              !weights.tensors().contains(prefixed);
  return means_prefixed ? prefixed : stored;
}

Shape shape_of(const Stored& stored) {
  if (stored.tensor->shape.size() > static_cast<std::size_t>(Shape::kRankMax)) {
    throw DataError("{}: {} has {} dims, at most {} are known", stored.file->path().string(),
                    stored.tensor->name, stored.tensor->shape.size(), Shape::kRankMax);
  }
  return Shape(stored.tensor->shape);
}

/// Block by block: an embedding may be large, and nobody needs it whole. The ranks share them.
bool equal_in_share(const Stored& a, const Stored& b, const Communicator& world) {
  constexpr std::int64_t kElements = std::int64_t{1} << 20;
  const std::vector<Box> blocks = cut_box(whole(shape_of(a)), kElements);
  std::vector<float> x, y;
  for (auto i = static_cast<std::size_t>(world.rank()); i < blocks.size();
       i += static_cast<std::size_t>(world.size())) {
    x.resize(static_cast<std::size_t>(blocks[i].shape.count()));
    y.resize(x.size());
    a.file->read_fp32(*a.tensor, blocks[i], x.data());
    b.file->read_fp32(*b.tensor, blocks[i], y.data());
    if (std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

constexpr std::array kEmbeddingNames = {"model.embed_tokens.weight", "transformer.wte.weight"};

/// A file may repeat the embedding as a tied model's head; anything else is another model.
void check_tied_head(const Stored& head, const std::map<std::string, Stored>& by_our_name,
                     const Communicator& world) {
  for (const char* name : kEmbeddingNames) {
    const auto embedding = by_our_name.find(name);
    if (embedding == by_our_name.end()) continue;
    if (head.tensor->shape != embedding->second.tensor->shape) continue;
    if (equal_in_share(head, embedding->second, world)) return;
  }
  throw DataError(
      "{}: {} differs from the embedding, but the model's config ties them "
      "(tie_word_embeddings). Set model.tie_word_embeddings to false",
      head.file->path().string(), kHeadName);
}

struct Matched {
  std::map<std::string, Stored> by_our_name;
  const Stored* head = nullptr;  ///< of a model that has none of its own
};

/// `wanted`: as files have them.
Matched match_names(const SafetensorsFolder& weights, const std::set<std::string>& wanted,
                    const std::filesystem::path& folder) {
  Matched matched;
  auto& [by_our_name, head] = matched;
  std::vector<std::string> missing, surplus;
  const std::set<std::string> further = further_layers(weights);
  const auto is_further = [&](const std::string& name) {
    return std::any_of(further.begin(), further.end(),
                       [&](const std::string& prefix) { return name.starts_with(prefix); });
  };
  for (const auto& [stored_name, stored] : weights.tensors()) {
    const std::string name = our_name(stored_name, wanted, weights);
    if (wanted.contains(name)) {
      by_our_name.emplace(name, stored);
    } else if (stored_name == kHeadName) {
      head = &stored;
    } else if (!is_buffer(stored_name) && !is_further(stored_name)) {
      surplus.push_back(stored_name);
    }
  }
  for (const std::string& name : wanted) {
    if (!by_our_name.contains(name)) missing.push_back(name);
  }
  if (!missing.empty() || !surplus.empty()) {
    std::string text = mismatch_text(missing, surplus);
    if (std::find(missing.begin(), missing.end(), kHeadName) != missing.end()) {
      text += " A model without its own head has tie_word_embeddings true.";
    }
    if (std::any_of(surplus.begin(), surplus.end(),
                    [](const std::string& name) { return name.ends_with("_proj_blocks"); })) {
      text +=
          " Its experts are in MXFP4, which is not read: load it in transformers with "
          "quantization_config=Mxfp4Config(dequantize=True) and save it by save_pretrained.";
    }
    throw DataError("{}: does not hold this model's weights.{}", folder.string(), text);
  }
  return matched;
}

void check_shape(const Stored& stored, const Shape& wanted) {
  const auto& shape = stored.tensor->shape;
  const auto sizes = wanted.sizes();
  if (std::equal(shape.begin(), shape.end(), sizes.begin(), sizes.end())) return;
  throw DataError("{}: {} is {}, the model has {}", stored.file->path().string(),
                  stored.tensor->name, stored.tensor->text(), wanted.text());
}

std::set<std::string> stored_names(const std::set<std::string>& names) {
  std::set<std::string> stored;
  for (const std::string& name : names) stored.insert(stored_name(name));
  return stored;
}

/// Of a file's tensor, or of the one that has it among its parts.
Shape stored_shape(const std::string& name, const Shape& shape,
                   const std::map<std::string, std::int64_t>& parts) {
  const auto part = part_of(name);
  return part ? part->stored_shape(shape, parts.at(part->stored)) : shape;
}

}  // namespace

void check_weights(const std::filesystem::path& folder,
                   const std::map<std::string, Shape>& wanted) {
  std::set<std::string> names;
  for (const auto& [name, shape] : wanted) names.insert(name);
  const auto parts = count_parts(names);
  const SafetensorsFolder weights(folder);
  const Matched matched = match_names(weights, stored_names(names), folder);
  for (const auto& [name, shape] : wanted)
    check_shape(matched.by_our_name.at(stored_name(name)), stored_shape(name, shape, parts));
}

void import_weights(const std::filesystem::path& folder, State& state, Communicator& world,
                    const std::set<std::string>& all) {
  const std::set<std::string> here = union_of_names(names_of(state), world),
                              &wanted = all.empty() ? here : all;
  // Of a model in parts once, with the embedding.
  const bool compares_head =
      all.empty() || std::any_of(kEmbeddingNames.begin(), kEmbeddingNames.end(),
                                 [&](const char* name) { return here.contains(name); });
  run_together(world, [&] {
    const auto parts = count_parts(wanted);
    const SafetensorsFolder weights(folder);
    const auto [stored_of, head] = match_names(weights, stored_names(wanted), folder);
    if (head != nullptr && compares_head) check_tied_head(*head, stored_of, world);
    SafetensorsReads reads;
    for (StateTensor& tensor : state.tensors) {
      const std::string name = tensor.name.substr(kStatePrefix.size());
      const Stored& stored = stored_of.at(stored_name(name));
      check_shape(stored, stored_shape(name, tensor.global_shape, parts));
      auto* const to = reinterpret_cast<float*>(tensor.data);
      if (const auto part = part_of(name)) {
        reads.add(*stored.file, *stored.tensor, *part, tensor.box, to);
      } else {
        reads.add(*stored.file, *stored.tensor, tensor.box, to);
      }
    }
    reads.run();
  });
}

}  // namespace trireme
