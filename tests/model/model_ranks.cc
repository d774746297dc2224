#include "model/model_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "base/random.h"
#include "config/adapters.h"
#include "config/model_parse.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/nf4/nf4.h"
#include "support/program_device.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

constexpr double kEps = 0.03125;  // as large as what it is added to, so that it shows

ModelConfig config_of(const std::string& keys) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ModelConfig config = read_model(parse_json("{" + keys + "}", "model_ranks.cc"), problems, notes);
  expect(problems.empty() && !config.layers.empty(), "a model that is refused: {}", keys);
  return config;
}

std::string heads_text(const reference::Architecture& model) {
  return fmt::format(R"("num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": {})",
                     model.heads, model.kv_heads, model.head_dim);
}

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

bool contains(const std::string& name, std::string_view part) {
  return name.find(part) != std::string::npos;
}

ModelParams declare(const ModelConfig& config, const std::vector<ChunkRange>& ranges,
                    const RankSetup& setup) {
  ModelParams params = declare_params(config, ranges);
  if (setup.nf4) declare_nf4(params);
  if (setup.frozen.empty()) return params;
  for (ParamMeta& meta : params.metas) meta.trainable = !contains(meta.name, setup.frozen);
  return params;
}

ModelConfig adapted(ModelConfig config, const std::optional<AdapterConfig>& adapters) {
  if (adapters) set_adapters(config, *adapters);
  return config;
}
bool is_norm(const std::string& name) { return contains(name, "norm") || contains(name, ".ln_"); }

ModelCase gpt2_case(std::int64_t layers, bool tied) {
  reference::Architecture model;
  model.gpt2 = true;
  model.layers = layers;
  model.hidden = 12;
  model.ffn = 18;
  model.heads = model.kv_heads = 6;
  model.vocabulary = 37;
  model.positions = 16;
  model.eps = kEps;
  model.tied = tied;
  return {tied ? "gpt2" : "gpt2_untied",
          fmt::format(R"("model_type": "gpt2", "vocab_size": 37, "n_embd": 12, "n_layer": {},
          "n_head": 6, "n_inner": 18, "n_positions": 16, "layer_norm_epsilon": {}, "tie_word_embeddings": {})",
                      layers, kEps, tied),
          model};
}

ModelCase llama_like_case(std::int64_t layers, const std::string& name, const std::string& family,
                          const std::string& more, reference::Architecture model) {
  model.layers = layers;
  model.hidden = 13;
  model.ffn = 18;
  model.vocabulary = 37;
  model.positions = 16;
  model.eps = kEps;
  const std::string sizes = fmt::format(
      R"("model_type": "{}", "vocab_size": 37, "hidden_size": 13, "num_hidden_layers": {},
          "intermediate_size": 18, "max_position_embeddings": 16, "rms_norm_eps": {}, "rope_theta": {},
          "tie_word_embeddings": {}, {}{})",
      family, layers, kEps, model.rope_theta, model.tied, heads_text(model), more);
  return ModelCase{name, sizes, model};
}

/// Norms behind the branches, alone and beside those before; of all heads' q and k.
std::vector<ModelCase> cases_with_norms_behind(std::int64_t layers) {
  std::vector<ModelCase> cases;
  reference::Architecture model;
  model.heads = 6;
  model.kv_heads = 1;
  model.head_dim = 4;
  model.qk_norm = model.qk_norm_of_all = true;
  model.norm_before = false;
  model.norm_after = true;
  cases.push_back(llama_like_case(layers, "olmo2", "olmo2", "", model));
  model.kv_heads = 6;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    model.windows.push_back(layer % 4 == 3 ? 0 : 4);
  model.rope_theta = model.sliding_theta = 5e5;
  cases.push_back(llama_like_case(layers, "olmo3", "olmo3", R"(, "sliding_window": 4)", model));
  model.kv_heads = 1;
  model.norm_before = model.tied = model.norm_around_zero = model.gelu_gate = true;
  model.qk_norm_of_all = false;
  model.embedding_scale = std::sqrt(13.0);
  model.score_scale = 1 / std::sqrt(9.0);
  model.sliding_theta = 50;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    model.windows[at(layer)] = layer % 2 == 0 ? 4 : 0;
  cases.push_back(llama_like_case(
      layers, "gemma3", "gemma3_text",
      R"(, "sliding_window": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 9,
            "rope_local_base_freq": 50)",
      model));
  return cases;
}

}  // namespace

std::vector<ModelCase> model_cases(std::int64_t layers) {
  const auto make = [&](const char* name, const char* family, const std::string& more,
                        const reference::Architecture& model) {
    return llama_like_case(layers, name, family, more, model);
  };
  std::vector<ModelCase> cases;
  reference::Architecture model;
  model.heads = 12;
  model.kv_heads = 6;
  cases.push_back(make("llama", "llama", "", model));
  model.heads = 6;
  model.rope_theta = 100;
  model.qkv_bias = model.out_bias = model.mlp_bias = true;
  cases.push_back(
      make("llama_with_biases", "llama", R"(, "attention_bias": true, "mlp_bias": true)", model));
  model = {};
  model.heads = 6;
  model.kv_heads = 1;
  model.windows.assign(at(layers), 3);
  cases.push_back(make("mistral_window", "mistral", R"(, "sliding_window": 3)", model));
  model.windows = {};
  model.kv_heads = 6;
  model.qkv_bias = model.tied = true;
  cases.push_back(make("qwen2", "qwen2", "", model));
  model = {};
  model.heads = 6;
  model.kv_heads = 1;
  model.head_dim = 4;
  model.qk_norm = true;
  cases.push_back(make("qwen3", "qwen3", "", model));
  for (std::int64_t layer = 0; layer < layers; ++layer) model.windows.push_back(layer == 0 ? 0 : 4);
  cases.push_back(
      make("qwen3_window", "qwen3",
           R"(, "use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1)", model));
  model = {};
  model.heads = 6;
  model.kv_heads = 1;
  model.tied = true;
  model.no_rope_interval = layers == 1 ? 1 : 2;
  for (std::int64_t layer = 1; layer <= layers; ++layer)
    model.windows.push_back(layer % model.no_rope_interval == 0 ? 4 : 0);
  cases.push_back(
      make("smollm3", "smollm3",
           fmt::format(
               R"(, "no_rope_layer_interval": {}, "use_sliding_window": true, "sliding_window": 4)",
               model.no_rope_interval),
           model));
  for (ModelCase& of : cases_with_norms_behind(layers)) cases.push_back(std::move(of));
  for (const bool tied : {true, false}) cases.push_back(gpt2_case(layers, tied));
  return cases;
}

reference::Values numbers(std::size_t count, std::uint64_t seed, double scale) {
  reference::Values values;
  std::uint64_t counter = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto drawn = static_cast<double>(uniform_below(seed, 2001, &counter)) / 1000 - 1;
    values.push_back(bf16_value(bf16_bits(static_cast<float>(scale * drawn))));
  }
  return values;
}

reference::Params params_of(const reference::Architecture& model) {
  reference::Params params;
  std::uint64_t seed = 100;
  for (const auto& [name, shape] : reference::shapes_of(model)) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    reference::Values values = numbers(at(count), ++seed, 0.6);
    if (is_norm(name) && contains(name, ".weight")) {
      const double about = model.norm_around_zero ? 0 : 1;
      for (double& value : values) value = bf16_value(bf16_bits(static_cast<float>(about + value)));
    }
    params[name] = std::move(values);
  }
  return params;
}

reference::Params adapters_of(const ModelCase& of, const AdapterConfig& adapters) {
  reference::Params params;
  std::uint64_t seed = 1000;
  for (const ParamMeta& meta : declare_params(adapted(config_of(of.keys), adapters)).metas)
    if (!meta.base) params[meta.name] = numbers(at(meta.shape.count()), ++seed, 0.4);
  return params;
}

reference::Params merged(const ModelCase& of, const AdapterConfig& adapters,
                         reference::Params whole, const reference::Params& added,
                         RowLengths* lengths) {
  const std::string kA = ".lora_A.weight";
  for (const auto& [name, a] : added) {
    if (!name.ends_with(kA)) continue;
    const std::string module = name.substr(0, name.size() - kA.size());
    const reference::Values& b = added.at(module + ".lora_B.weight");
    reference::Values& weight = whole.at(module + ".weight");
    const std::size_t rank = at(adapters.rank), in = a.size() / rank, out = b.size() / rank;
    const bool in_out = of.model.gpt2 && module != "lm_head";
    const auto at_weight = [&](std::size_t o, std::size_t i) -> double& {
      return weight[in_out ? i * out + o : o * in + i];
    };
    for (std::size_t o = 0; o < out; ++o) {
      double squares = 0;
      for (std::size_t i = 0; i < in; ++i) {
        double sum = 0;
        for (std::size_t r = 0; r < rank; ++r) sum += b[o * rank + r] * a[r * in + i];
        at_weight(o, i) += adapters.scale * sum;
        squares += at_weight(o, i) * at_weight(o, i);
      }
      if (!adapters.magnitudes) continue;
      // No gradient goes through the length: it is that of the values that the adapters have now.
      const double length =
          lengths == nullptr ? std::sqrt(squares)
                             : lengths->try_emplace({module, o}, std::sqrt(squares)).first->second;
      const double gain = added.at(module + ".lora_magnitude_vector")[o] / length;
      for (std::size_t i = 0; i < in; ++i) at_weight(o, i) *= gain;
    }
  }
  return whole;
}

reference::Params coded_in_nf4(const ModelCase& of, const AdapterConfig& adapters,
                               reference::Params whole) {
  Context context({}, 1, detect_isa());
  ModelParams params = declare_params(adapted(config_of(of.keys), adapters));
  declare_nf4(params);
  for (const ParamMeta& meta : params.metas) {
    if (!meta.nf4) continue;
    const Buffer values(DType::kF32, meta.shape), codes(DType::kU8, nf4_codes_shape(meta.shape)),
        absmax(DType::kF32, nf4_absmax_shape(meta.shape));
    const Nf4View coded(codes.view(), absmax.view(), meta.shape);
    write(context, values.view(), whole.at(meta.name));
    nf4_quantize(context, coded, values.view());
    nf4_dequantize(context, values.view(), coded);
    const std::vector<float> read_back = read(context, values.view());
    whole.at(meta.name).assign(read_back.begin(), read_back.end());
  }
  return whole;
}

std::string RankSetup::text() const {
  static constexpr const char* kRecompute[] = {"none", "selective", "full"};
  return fmt::format("{} ranks{}{}{}, {}, recompute {}", ranks, nf4 ? ", base in NF4" : "",
                     sequence_parallel ? ", sequence parallel" : "",
                     shares_memory ? ", shared memory" : "", name_of(compute),
                     kRecompute[static_cast<int>(recompute)]);
}

std::vector<RankSetup> setups() {
  std::vector<RankSetup> all = {{}};
  if (program_device().kind == DeviceKind::kCuda) return all;
  for (const int ranks : {2, 3}) {
    RankSetup setup;
    setup.ranks = ranks;
    all.push_back(setup);
    setup.sequence_parallel = true;
    all.push_back(setup);
    setup.shares_memory = true;
    all.push_back(setup);
  }
  return all;
}

std::vector<float> read(Context& context, const TensorView& view) {
  std::vector<std::byte> bytes(view.bytes());
  copy_out(context, bytes, view);
  std::vector<float> values;
  for (std::int64_t i = 0; i < view.count(); ++i)
    values.push_back(element(bytes.data(), view.dtype, at(i)));
  return values;
}

void write(Context& context, const TensorView& view, const reference::Values& values) {
  expect(std::ssize(values) == view.count(), "{} numbers for {}", values.size(), view.shape.text());
  std::vector<std::byte> bytes(view.bytes());
  for (std::size_t i = 0; i < values.size(); ++i)
    set_element(bytes.data(), view.dtype, i, static_cast<float>(values[i]));
  copy_in(context, view, bytes);
}

RankModel::RankModel(const ModelCase& of, const std::vector<ChunkRange>& ranges,
                     const RankSetup& setup_, Communicator& channel_, const StoreContents& contents)
    : setup(setup_),
      channel(channel_),
      rank{channel.size(), channel.rank()},
      config(adapted(config_of(of.keys), setup.adapters)),
      params(declare(config, ranges, setup)),
      context(program_device(), setup.threads, detect_isa()),
      store(params.metas, setup.compute, contents, context.device(),
            dense_distribution(setup.reduces_each_micro_batch ? 2 : 0, {rank, {}, {}})) {
  reference::Params all = params_of(of.model);
  if (setup.adapters) all.merge(adapters_of(of, *setup.adapters));
  load(all);
}

void RankModel::load(const reference::Params& whole) {
  for (ParamIndex index = 0; index < static_cast<int>(params.metas.size()); ++index) {
    if (!store.has_value(index)) continue;
    const ParamMeta& param = params.metas[at(index)];
    const reference::Values& values = whole.at(param.name);
    expect(param.shape.count() == std::ssize(values), "{} is {}", param.name, param.shape.text());
    const Shape local = local_shape(param.shape, param.cut, rank);
    reference::Values mine(at(local.count()));
    for (const CutPart& part : local_parts(param.shape, param.cut, rank)) {
      const bool matrix = local.rank() == 2;
      const std::int64_t width = matrix ? part.box.shape[1] : 1;
      for (std::int64_t i = 0; i < part.box.shape.count(); ++i) {
        const std::int64_t row = i / width, column = i % width;
        const std::int64_t from = (part.box.offset[0] + row) * (matrix ? param.shape[1] : 1) +
                                  (matrix ? part.box.offset[1] + column : 0);
        const std::int64_t to =
            (part.at[0] + row) * (matrix ? local[1] : 1) + (matrix ? part.at[1] + column : 0);
        mine[at(to)] = values[at(from)];
      }
    }
    if (param.nf4) {
      const Buffer staging(DType::kF32, local, context.device());
      write(context, staging.view(), mine);
      nf4_quantize(context, store.base_nf4(index), staging.view());
      continue;
    }
    const TensorView to = param.base ? store.base_rows(index) : store.value(index);
    if (to.dtype == DType::kF32) {
      write(context, to, mine);
    } else {
      const Buffer staging(DType::kF32, to.shape, context.device());
      write(context, staging.view(), mine);
      cast(context, to, staging.view());
    }
  }
  store.refresh_copies(context);
}

TensorAxis RankModel::axis() const {
  return rank.extent == 1 ? TensorAxis() : TensorAxis(channel, setup.sequence_parallel);
}

std::unique_ptr<Stage> RankModel::stage(StageShape shape) {
  shape.device = context.device().kind;
  shape.cut.tensor = rank;
  shape.cut.sequence_parallel = setup.sequence_parallel;
  shape.recompute = setup.recompute;
  shape.nf4 = setup.nf4;
  return std::make_unique<Stage>(context, config, params, store, shape,
                                 StageAxes{axis(), ContextAxis()});
}

reference::Values RankModel::residual_rows(const reference::Values& whole) const {
  if (!setup.sequence_parallel) return whole;
  const auto share = static_cast<std::ptrdiff_t>(whole.size()) / rank.extent;
  return {whole.begin() + share * rank.index, whole.begin() + share * (rank.index + 1)};
}

void Gathered::add_stream(const std::string& name, AxisRank rank, const RankSetup& setup,
                          const std::vector<float>& rows) {
  const std::lock_guard lock(mutex_);
  parts_[fmt::format("{} {}", rank.index, name)] = rows;
  std::vector<float>& whole = whole_[name];
  if (!setup.sequence_parallel) {
    if (!whole.empty()) {
      EXPECT_EQ(whole, rows) << name << " of rank " << rank.index;
    }
    whole = rows;
    return;
  }
  whole.resize(rows.size() * at(rank.extent));
  std::copy(rows.begin(), rows.end(), whole.begin() + std::ssize(rows) * rank.index);
}

RankGradients gradients_of(RankModel& rank) {
  RankGradients gradients;
  for (ParamIndex index = 0; index < static_cast<int>(rank.params.metas.size()); ++index) {
    const ParamMeta& param = rank.params.metas[at(index)];
    if (!rank.store.has_value(index) || !param.trainable) continue;  // or added to the embedding's
    gradients[index] = read(rank.context, rank.store.gradients().sum(index));
  }
  return gradients;
}

void Gathered::add_gradients(RankModel& rank, const RankGradients& gradients) {
  for (const auto& [index, values] : gradients) {
    const ParamMeta& param = rank.params.metas[at(index)];
    const std::lock_guard lock(mutex_);
    parts_[fmt::format("{} {}", rank.rank.index, param.name)] = values;
    const bool of_heads = contains(param.name, "q_norm") || contains(param.name, "k_norm");
    const bool in_parts = param.cut.given() || param.partial == TensorPartial::kWithHeads ||
                          of_heads || (is_norm(param.name) && rank.setup.sequence_parallel);
    if (in_parts) {
      add_parts(rank, param, values);
    } else if (const auto [found, first] = whole_.try_emplace(param.name, values); !first) {
      EXPECT_EQ(found->second, values) << param.name << " of rank " << rank.rank.index;
    }
  }
}

void Gathered::add_parts(const RankModel& rank, const ParamMeta& param,
                         const std::vector<float>& values) {
  std::vector<float>& whole = whole_[param.name];
  whole.resize(at(param.shape.count()));
  const Shape local = local_shape(param.shape, param.cut, rank.rank);
  for (const CutPart& part : local_parts(param.shape, param.cut, rank.rank)) {
    const bool matrix = local.rank() == 2;
    const std::int64_t width = matrix ? part.box.shape[1] : 1;
    for (std::int64_t i = 0; i < part.box.shape.count(); ++i) {
      const std::int64_t row = i / width, column = i % width;
      whole[at((part.box.offset[0] + row) * (matrix ? param.shape[1] : 1) +
               (matrix ? part.box.offset[1] + column : 0))] +=
          values[at((part.at[0] + row) * (matrix ? local[1] : 1) +
                    (matrix ? part.at[1] + column : 0))];
    }
  }
}

const std::vector<float>& Gathered::tensor(const std::string& name) const {
  return whole_.at(name);
}

void expect_near(const std::vector<float>& actual, const reference::Values& expected, double limit,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double difference = 0, all = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    all += std::pow(expected[i], 2);
  }
  EXPECT_GT(all, 0) << what << ": nothing to compare";
  EXPECT_LE(std::sqrt(difference), limit * std::sqrt(all))
      << what << ": " << std::sqrt(difference / all);
  EXPECT_FALSE(std::isnan(difference)) << what;
}

TokensOfRank::TokensOfRank(const reference::Batch& whole, std::int64_t first, std::int64_t count,
                           bool documents) {
  const auto part = [&](const std::vector<std::int64_t>& all) {
    return std::vector<std::int32_t>(all.begin() + first * whole.tokens,
                                     all.begin() + (first + count) * whole.tokens);
  };
  ids = part(whole.ids);
  targets = part(whole.targets);
  positions = part(whole.positions);
  first_key = part(whole.first_key);
  const Shape flat{std::ssize(ids)};
  view.sequences = count;
  view.tokens = whole.tokens;
  view.input_ids = view_of<const std::int32_t>(ids.data(), flat);
  view.targets = view_of<const std::int32_t>(targets.data(), flat);
  view.positions = view_of<const std::int32_t>(positions.data(), flat);
  if (documents) view.first_key = view_of<const std::int32_t>(first_key.data(), flat);
  view.target_count =
      std::count_if(targets.begin(), targets.end(), [](std::int32_t id) { return id >= 0; });
}

reference::Batch random_batch(std::int64_t sequences, std::int64_t tokens, std::int64_t vocabulary,
                              bool documents) {
  reference::Batch batch;
  batch.sequences = sequences;
  batch.tokens = tokens;
  std::uint64_t counter = 0;
  for (std::int64_t i = 0; i < sequences * tokens; ++i) {
    const auto id = [&] {
      return static_cast<std::int64_t>(
          uniform_below(9, static_cast<std::uint64_t>(vocabulary), &counter));
    };
    const std::int64_t sequence = i / tokens, t = i % tokens;
    const std::int64_t begin = documents && t > sequence % tokens ? sequence % tokens + 1 : 0;
    batch.ids.push_back(id());
    batch.targets.push_back(i % 5 == 2 ? -1 : id());
    batch.positions.push_back(t - begin);
    batch.first_key.push_back(begin);
  }
  return batch;
}

}  // namespace trireme
