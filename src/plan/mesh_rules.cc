#include "plan/mesh_rules.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>

#include "plan/nf4_rules.h"

namespace trireme {

namespace {

/// Extents from 1 to `limit` for which `legal` holds.
struct Legal {
  std::vector<std::int64_t> values;
  Legal(std::int64_t limit, const std::function<bool(std::int64_t)>& legal) {
    constexpr std::int64_t kMost = 4096;  // a longer list helps nobody
    for (std::int64_t i = 1; i <= std::min(limit, kMost); ++i) {
      if (legal(i)) values.push_back(i);
    }
  }
  /// "1, 2, 3 or 6"
  [[nodiscard]] std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < values.size(); ++i) {
      text += i == 0 ? "" : i + 1 == values.size() ? " or " : ", ";
      text += std::to_string(values[i]);
    }
    return text;
  }
  [[nodiscard]] std::string nearest(std::int64_t found) const {
    std::int64_t best = 1;
    for (const std::int64_t value : values) {
      if (std::abs(value - found) < std::abs(best - found)) best = value;
    }
    return std::to_string(best);
  }
};

bool layer_fits(const LayerConfig& layer, std::int64_t extent) {
  const AttentionConfig& attention = layer.attention;
  return attention.heads % extent == 0 && layer.mlp.ffn % extent == 0 &&
         (attention.kv_heads % extent == 0 || extent % attention.kv_heads == 0);
}

class Rules {
 public:
  Rules(const RunConfig& config, std::int64_t data, std::vector<Problem>& problems)
      : config_(config),
        parallel_(config.parallel),
        model_(config.model),
        data_(data),
        problems_(problems) {}

  void check() {
    if (config_.has_model()) {
      check_tensor();
      check_heads_of_context();
      check_experts();
    }
    check_sequence();
    check_zero_group();
    if (config_.has_model() && tensor_fits(parallel_.tensor)) check_base();
  }

 private:
  [[nodiscard]] bool tensor_fits(std::int64_t t) const { return tensor_extent_fits(model_, t); }

  void check_tensor() {
    const std::int64_t t = parallel_.tensor;
    if (tensor_fits(t)) return;
    std::string why;
    const auto add = [&](const std::string& reason) { why += (why.empty() ? "" : ", ") + reason; };
    const LayerConfig& layer =
        *std::find_if_not(model_.layers.begin(), model_.layers.end() - 1,
                          [t](const LayerConfig& each) { return layer_fits(each, t); });
    const std::int64_t heads = layer.attention.heads, kv_heads = layer.attention.kv_heads;
    if (heads % t != 0) add(fmt::format("{} attention heads", heads));
    if (kv_heads % t != 0 && t % kv_heads != 0)
      add(fmt::format("{} KV heads (nor do they divide it)", kv_heads));
    if (layer.mlp.ffn % t != 0) add(fmt::format("an MLP of {} columns", layer.mlp.ffn));
    if (model_.vocab_size < t) add(fmt::format("a vocabulary of {} rows", model_.vocab_size));
    const Legal legal(heads, [this](std::int64_t i) { return tensor_fits(i); });
    problems_.push_back({"parallel.tensor", std::to_string(t), legal.text() + " for this model",
                         legal.nearest(t), "does not divide " + why});
  }

  /// Attention heads and KV heads.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> heads_of_rank(
      const LayerConfig& layer) const {
    return {layer.attention.heads / parallel_.tensor,
            std::max<std::int64_t>(1, layer.attention.kv_heads / parallel_.tensor)};
  }
  [[nodiscard]] bool ulysses_fits(std::int64_t c) const {
    return std::all_of(model_.layers.begin(), model_.layers.end(), [&](const LayerConfig& layer) {
      const auto [heads, kv] = heads_of_rank(layer);
      return heads % c == 0 && (kv % c == 0 || c % kv == 0);
    });
  }

  void check_heads_of_context() {
    const std::int64_t c = parallel_.context;
    if (parallel_.context_method != ContextMethod::kUlysses || !tensor_fits(parallel_.tensor) ||
        ulysses_fits(c))
      return;
    const auto [heads, kv_heads] = heads_of_rank(model_.layer(0));
    const Legal legal(heads, [this](std::int64_t i) { return ulysses_fits(i); });
    problems_.push_back(
        {"parallel.context", std::to_string(c),
         legal.text() + " with context_method \"ulysses\", or \"ring\" or \"allgather\"",
         legal.nearest(c),
         fmt::format("does not share out the {} attention heads and {} KV heads of a rank", heads,
                     kv_heads)});
  }

  [[nodiscard]] bool experts_fit(std::int64_t extent) const {
    return expert_extents_fit(model_, extent, 1);
  }
  [[nodiscard]] bool expert_columns_fit(std::int64_t extent) const {
    return expert_extents_fit(model_, 1, extent);
  }
  [[nodiscard]] const ExpertsConfig& first_experts() const {
    return *std::find_if(model_.layers.begin(), model_.layers.end(), [](const LayerConfig& layer) {
              return layer.experts.has_value();
            })->experts;
  }

  void check_experts() {
    if (!model_.has_experts()) return;
    const std::int64_t expert = parallel_.expert, columns = parallel_.expert_tensor;
    if (!expert_columns_fit(columns)) {
      const Legal legal(first_experts().ffn,
                        [this](std::int64_t i) { return expert_columns_fit(i); });
      problems_.push_back(
          {"parallel.expert_tensor", std::to_string(columns), legal.text() + " for this model",
           legal.nearest(columns),
           fmt::format("does not divide the {} columns of an expert", first_experts().ffn)});
      return;
    }
    const std::int64_t ranks = data_ * parallel_.context * parallel_.tensor;
    if (ranks % columns != 0) {
      const Legal legal(ranks,
                        [&](std::int64_t i) { return ranks % i == 0 && expert_columns_fit(i); });
      problems_.push_back({"parallel.expert_tensor", std::to_string(columns), legal.text(),
                           legal.nearest(columns), "does not divide " + ranks_of_stage()});
      return;
    }
    if (experts_fit(expert) && ranks / columns % expert == 0) return;
    std::string why;
    if (!experts_fit(expert)) why = fmt::format("the {} experts of a layer", first_experts().count);
    if (ranks / columns % expert != 0) {
      why += (why.empty() ? "" : ", ") + ranks_of_stage();
      if (columns > 1) why += fmt::format(" / expert_tensor {}", columns);
    }
    const Legal legal(ranks / columns,
                      [&](std::int64_t i) { return experts_fit(i) && ranks / columns % i == 0; });
    problems_.push_back({"parallel.expert", std::to_string(expert), legal.text(),
                         legal.nearest(expert), "does not divide " + why});
  }

  [[nodiscard]] std::string ranks_of_stage() const {
    return fmt::format("the {} ranks of data {} x context {} x tensor {}",
                       data_ * parallel_.context * parallel_.tensor, data_, parallel_.context,
                       parallel_.tensor);
  }

  void check_sequence() {
    const std::int64_t tokens = config_.data.sequence_length, c = parallel_.context;
    if (tokens <= 0) return;
    const bool cut = parallel_.cuts_tokens(parallel_.tensor);
    const std::int64_t t = cut ? parallel_.tensor : 1;
    const std::int64_t chunks = c > 1 ? 2 * c : 1;
    // A context rank has two segments, and its tokens are sharded again along the tensor axis.
    std::int64_t unit = chunks;
    while (unit / c % t != 0 || unit % chunks != 0) unit += chunks;
    if (tokens % unit == 0) return;
    std::string why;
    if (c > 1) why += fmt::format("2 x context {} pieces", c);
    if (cut) why += fmt::format("{}sequence_parallel on tensor {}", c > 1 ? " and " : "", t);
    const std::int64_t below = tokens / unit * unit, above = below + unit;
    const std::int64_t nearest = below > 0 && tokens - below <= above - tokens ? below : above;
    problems_.push_back({"data.sequence_length", std::to_string(tokens),
                         fmt::format("a multiple of {}", unit), std::to_string(nearest),
                         "cannot be cut evenly: " + why});
  }

  void check_zero_group() {
    const std::int64_t group = parallel_.zero_group.value_or(0), peers = data_ * parallel_.context;
    if (group == 0) return;
    if (parallel_.zero_stage == 0) {
      problems_.push_back({"parallel.zero_group", std::to_string(group),
                           "leave it out, or set parallel.zero_stage to 1, 2 or 3", "",
                           "has no meaning without ZeRO: every rank holds a full copy"});
      return;
    }
    if (peers % group == 0) return;
    const Legal legal(peers, [peers](std::int64_t i) { return peers % i == 0; });
    problems_.push_back({"parallel.zero_group", std::to_string(group), legal.text(),
                         legal.nearest(group),
                         fmt::format("does not divide the {} ranks of data {} x context {}", peers,
                                     data_, parallel_.context)});
  }

  void check_base() {
    const std::int64_t group = parallel_.zero_group.value_or(0);
    const std::int64_t shards = group == 0 ? data_ * parallel_.context : group;
    check_nf4_cuts(
        config_, parallel_.zero_stage == 3 ? shards : 1,
        [this](std::int64_t t) { return tensor_fits(t); }, problems_);
  }

  const RunConfig& config_;
  const RunConfig::Parallel& parallel_;
  const ModelConfig& model_;
  const std::int64_t data_;
  std::vector<Problem>& problems_;
};

}  // namespace

bool tensor_extent_fits(const ModelConfig& model, std::int64_t extent) {
  return model.vocab_size >= extent &&
         std::all_of(model.layers.begin(), model.layers.end(),
                     [extent](const LayerConfig& layer) { return layer_fits(layer, extent); });
}

bool expert_extents_fit(const ModelConfig& model, std::int64_t expert, std::int64_t columns) {
  return std::all_of(model.layers.begin(), model.layers.end(), [&](const LayerConfig& layer) {
    return !layer.experts ||
           (layer.experts->count % expert == 0 && layer.experts->ffn % columns == 0);
  });
}

void check_mesh_rules(const RunConfig& config, std::int64_t data, std::vector<Problem>& problems) {
  Rules(config, data, problems).check();
}

}  // namespace trireme
