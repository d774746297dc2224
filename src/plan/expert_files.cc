#include "plan/expert_files.h"

#include <fmt/core.h>

#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace trireme {

namespace {

/// Reads one file's numbers of experts; knows where it stands, for the message.
class Reader {
 public:
  Reader(std::string_view source, const ModelConfig& model, ExitCode code)
      : source_(source), model_(model), code_(code) {}

  /// Whole numbers from 0 to `most` of each expert of each layer.
  template <class T>
  std::vector<std::vector<T>> layers(const Json& json, const char* key, std::int64_t most) {
    const Json* found = json.find(key);
    if (found == nullptr || !found->is_array())
      fail("has no list \"{}\" (an entry of each layer of the model)", key);
    const Json::Array& lists = found->as_array();
    if (std::ssize(lists) != model_.layer_count())
      fail("\"{}\" has {} layers, and the model has {}", key, lists.size(), model_.layer_count());
    std::vector<std::vector<T>> layers;
    for (std::size_t i = 0; i < lists.size(); ++i) {
      where_ = fmt::format("layer {}: ", i);
      layers.push_back(experts<T>(lists[i], model_.layers[i], most));
    }
    where_.clear();
    return layers;
  }

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(code_, fmt::format("{}: {}{}", source_, where_,
                                   fmt::format(format, std::forward<Args>(args)...)));
  }

  /// As many experts on each of `ranks`.
  void check_even(const ExpertPlacement& placement, std::int64_t ranks) {
    for (std::size_t i = 0; i < placement.size(); ++i) {
      where_ = fmt::format("layer {}: ", i);
      const auto each = std::ssize(placement[i]) / ranks;
      std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks));
      for (const std::int32_t rank : placement[i]) ++counts[static_cast<std::size_t>(rank)];
      for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        if (counts[rank] * ranks != std::ssize(placement[i]))
          fail("rank {} has {} experts. Legal: {} on each of parallel.expert = {} ranks", rank,
               counts[rank], each, ranks);
      }
    }
  }

 private:
  template <class T>
  std::vector<T> experts(const Json& json, const LayerConfig& layer, std::int64_t most) const {
    if (!layer.experts) {
      if (!json.is_null()) fail("is {}, and has no experts. Legal: null", json.kind_name());
      return {};
    }
    const std::int64_t count = layer.experts->count;
    if (!json.is_array() || std::ssize(json.as_array()) != count) {
      fail("is {}. Legal: a list of {}, one of each expert",
           json.is_array() ? fmt::format("a list of {}", json.as_array().size())
                           : std::string(json.kind_name()),
           count);
    }
    std::vector<T> values;
    for (const Json& value : json.as_array()) {
      if (!value.is_integer() || value.as_integer() < 0 || value.as_integer() > most)
        fail("expert {} has {}. Legal: an integer from 0 to {}", values.size(), value.dump(), most);
      values.push_back(static_cast<T>(value.as_integer()));
    }
    return values;
  }

  std::string_view source_;
  const ModelConfig& model_;
  const ExitCode code_;
  std::string where_;
};

template <class T>
Json lists_json(const char* key, const std::vector<std::vector<T>>& layers) {
  Json::Array lists;
  for (const std::vector<T>& layer : layers) {
    Json& list = lists.emplace_back();
    for (const T value : layer) list.push_back(std::int64_t{value});
  }
  Json json;
  json[key] = std::move(lists);
  return json;
}

}  // namespace

ExpertLoad parse_expert_load(const Json& json, std::string_view source, const ModelConfig& model) {
  constexpr std::int64_t kTokensMax = std::int64_t{1} << 53;
  return Reader(source, model, ExitCode::kData).layers<std::int64_t>(json, "load", kTokensMax);
}

ExpertPlacement parse_expert_placement(const Json& json, std::string_view source,
                                       const ModelConfig& model, std::int64_t ranks) {
  Reader reader(source, model, ExitCode::kConfig);
  ExpertPlacement placement = reader.layers<std::int32_t>(json, "placement", ranks - 1);
  reader.check_even(placement, ranks);
  return placement;
}

Json expert_load_json(const ExpertLoad& load) { return lists_json("load", load); }

Json expert_placement_json(const ExpertPlacement& placement) {
  return lists_json("placement", placement);
}

ExpertLoad read_expert_load(const std::string& path, const ModelConfig& model) {
  return parse_expert_load(parse_json(read_file(path), path), path, model);
}

ExpertPlacement read_expert_placement(const std::string& path, const ModelConfig& model,
                                      std::int64_t ranks) {
  JsonRules rules;
  rules.code = ExitCode::kConfig;
  return parse_expert_placement(parse_json(read_file(path), path, rules), path, model, ranks);
}

}  // namespace trireme
