#include "config/experts_parse.h"

#include <algorithm>

#include "config/json_numbers.h"
#include "config/model_keys.h"

namespace trireme {

namespace {

// What the router's kernels take.
constexpr KeyReader::Integers kExperts = {1, 1024};
constexpr KeyReader::Integers kChosen = {1, 32};
constexpr KeyReader::Integers kWidth = {1, std::int64_t{1} << 20};
constexpr KeyReader::Integers kStep = {1, 1 << 20};
constexpr KeyReader::Integers kLayersInFront = {0, 1 << 20};
constexpr KeyReader::Integers kShared = {0, 64};
constexpr KeyReader::Reals kScale = {0, 1e6, true};
constexpr KeyReader::Reals kCoefficient = {0, 1e9};
// In all layers: each has weights of its own, which are listed and counted one by one.
constexpr std::int64_t kExpertsInAllMax = std::int64_t{1} << 16;

class ExpertReader {
 public:
  ExpertReader(KeyReader& reader, Json& keys, Family family)
      : reader_(reader), keys_(keys), family_(family), traits_(traits_of(family).experts) {}

  ExpertKeys read(std::int64_t layers, std::int64_t ffn) {
    ExpertKeys out;
    ExpertsConfig& experts = out.experts;
    experts.count = integer(count_key(), kExperts, traits_.count);
    experts.chosen = integer("num_experts_per_tok", kChosen, traits_.chosen);
    experts.ffn = traits_.ffn > 0 ? integer("moe_intermediate_size", kWidth, traits_.ffn) : ffn;
    experts.normalized = !knows("norm_topk_prob") || read_normalized();
    if (traits_.sigmoid) read_sigmoid(out);
    experts.biased = traits_.biased;
    if (traits_.biased) {
      experts.swiglu_alpha = real("swiglu_alpha", kScale, traits_.swiglu_alpha);
      experts.swiglu_limit = real("swiglu_limit", kScale, traits_.swiglu_limit);
    }
    if (traits_.shared > 0) {
      out.shared_ffn = integer("shared_expert_intermediate_size", kWidth, traits_.shared);
      experts.shared_gate = true;
    }
    out.has_experts = layers_with_experts(layers);
    out.aux_coefficient = traits_.aux_coefficient;
    if (!traits_.sigmoid) {
      out.aux_coefficient = real("router_aux_loss_coef", kCoefficient, traits_.aux_coefficient);
      out.aux_loss = boolean("output_router_logits", false);
    }
    check(out);
    return out;
  }

 private:
  [[nodiscard]] bool knows(std::string_view key) const {
    return find_model_key(family_, key) != nullptr;
  }
  [[nodiscard]] std::string_view count_key() const { return own_name(family_, "num_experts"); }

  template <class T>
  T written(std::string_view key, const std::optional<T>& given, T otherwise) {
    if (reader_.find(key) == nullptr) keys_[key] = otherwise;
    return given.value_or(otherwise);
  }
  std::int64_t integer(std::string_view key, KeyReader::Integers range, std::int64_t otherwise) {
    return written(key, reader_.integer(key, range), otherwise);
  }
  double real(std::string_view key, KeyReader::Reals range, double otherwise) {
    return written(key, reader_.real(key, range), otherwise);
  }
  bool boolean(std::string_view key, bool otherwise) {
    return written(key, reader_.boolean(key), otherwise);
  }

  /// transformers takes null for false.
  bool read_normalized() {
    constexpr std::string_view kKey = "norm_topk_prob";
    return boolean(kKey, traits_.normalized && keys_.find(kKey) == nullptr);
  }

  void read_sigmoid(ExpertKeys& out) {
    ExpertsConfig& experts = out.experts;
    experts.sigmoid = experts.has_bias = true;
    experts.groups = integer("n_group", kExperts, traits_.groups);
    experts.groups_chosen = integer("topk_group", kExperts, traits_.groups_chosen);
    experts.scale = real("routed_scaling_factor", kScale, traits_.scale);
    out.shared_ffn = experts.ffn * integer("n_shared_experts", kShared, traits_.shared_count);
  }

  /// Those behind first_k_dense_replace; or each decoder_sparse_step-th, but for those of
  /// mlp_only_layers.
  std::vector<bool> layers_with_experts(std::int64_t layers) {
    std::vector<bool> with(static_cast<std::size_t>(layers), true);
    if (knows("first_k_dense_replace")) {
      const std::int64_t dense =
          integer("first_k_dense_replace", kLayersInFront, traits_.dense_first);
      std::fill_n(with.begin(), std::min(dense, layers), false);
    }
    if (!knows("mlp_only_layers")) return with;
    const std::int64_t step = integer("decoder_sparse_step", kStep, 1);
    for (std::size_t i = 0; i < with.size(); ++i)
      with[i] = (static_cast<std::int64_t>(i) + 1) % step == 0;
    for (const std::int64_t dense : dense_layers())
      if (dense < layers) with[static_cast<std::size_t>(dense)] = false;
    return with;
  }

  std::vector<std::int64_t> dense_layers() {
    const Json* list = reader_.find("mlp_only_layers");
    std::vector<std::int64_t> layers;
    if (list == nullptr) {
      keys_["mlp_only_layers"] = Json::array();
      return layers;
    }
    const auto legal = [](const Json& entry) { return exact_integer(entry).value_or(-1) >= 0; };
    if (!list->is_array() ||
        !std::all_of(list->as_array().begin(), list->as_array().end(), legal)) {
      reader_.report("mlp_only_layers", "a list of the layers without experts, from 0 on", "",
                     "has no legal form");
      return layers;
    }
    for (const Json& entry : list->as_array()) layers.push_back(*exact_integer(entry));
    return layers;
  }

  void check(const ExpertKeys& out) {
    const std::int64_t count = out.experts.count, chosen = out.experts.chosen;
    if (chosen > count) {
      reader_.report("num_experts_per_tok", fmt::format("up to {} = {}", count_key(), count),
                     std::to_string(count), fmt::format("chooses {} of {} experts", chosen, count));
    }
    const std::int64_t groups = out.experts.groups, best = out.experts.groups_chosen;
    if (count % groups != 0) {
      reader_.report("n_group", fmt::format("a divisor of {} = {}", count_key(), count), "1",
                     fmt::format("{} groups do not divide {} experts", groups, count));
    } else if (best > groups) {
      reader_.report("topk_group", fmt::format("up to n_group = {}", groups),
                     std::to_string(groups), fmt::format("chooses {} of {} groups", best, groups));
    } else if (chosen <= count && chosen > best * (count / groups)) {
      reader_.report(
          "topk_group", "groups that have num_experts_per_tok experts together",
          std::to_string((chosen * groups + count - 1) / count),
          fmt::format("leaves {} experts to choose {} of", best * (count / groups), chosen));
    }
    const std::int64_t layers = std::count(out.has_experts.begin(), out.has_experts.end(), true);
    if (layers * count > kExpertsInAllMax) {
      reader_.report(count_key(), fmt::format("at most {} in {} layers", kExpertsInAllMax, layers),
                     std::to_string(kExpertsInAllMax / layers),
                     fmt::format("makes {} experts in all", layers * count));
    }
    if (traits_.ffn == 0 && out.experts.ffn > kWidth.to) {
      reader_.report("intermediate_size", fmt::format("up to {}", kWidth.to),
                     std::to_string(kWidth.to), "is more columns than an expert may have");
    }
  }

  KeyReader& reader_;
  Json& keys_;
  const Family family_;
  const ExpertTraits& traits_;
};

}  // namespace

ExpertKeys read_experts(KeyReader& reader, Json& keys, Family family, std::int64_t layers,
                        std::int64_t ffn) {
  return ExpertReader(reader, keys, family).read(layers, ffn);
}

}  // namespace trireme
