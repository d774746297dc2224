#include "model/param_table.h"

#include <cmath>
#include <set>

#include "base/random.h"
#include "config/adapters.h"
#include "model/param_matrices.h"

namespace trireme {

namespace {

/// Appends parameters in the order in which they lie in memory.
class Table {
 public:
  Table(const ModelConfig& config, const ExpertSet& experts) : config_(config), experts_(experts) {}

  ParamIndex add(std::string name, Shape shape, ParamInit init, Fuse fuse = Fuse::kNo) {
    ParamMeta meta;
    meta.name = std::move(name);
    meta.decay = shape.rank() >= 2;
    meta.shape = shape;
    meta.init = init;
    meta.block = block_;
    meta.fuse = fuse;
    params.metas.push_back(std::move(meta));
    return static_cast<ParamIndex>(params.metas.size()) - 1;
  }

  /// A row for each token id.
  ParamIndex vocabulary(std::string name) {
    const std::int64_t rows = config_.vocab_size;
    const ParamIndex index = add(std::move(name), {rows, config_.hidden}, normal_init());
    params.metas[index].cut = {0, {{rows, rows}}};
    params.metas[index].row_alignment = kVocabularyRowAlignment;
    return index;
  }
  ParamIndex positions(std::string name) {
    return add(std::move(name), {config_.max_positions, config_.hidden}, normal_init());
  }

  /// The columns of an activation, sharded or not.
  using Columns = std::vector<CutSegment>;
  struct Part {
    const char* name;
    Columns out;
  };
  /// Projections of one input that lie together: first all weights, then all biases. Either the
  /// input's or the output's columns are sharded on the tensor axis; what is not has no units.
  LinearParams linear(const std::string& prefix, const std::vector<Part>& parts, const Columns& in,
                      bool bias, float std_scale = 1) {
    LinearParams linear = unadapted(prefix, parts, in, bias, std_scale);
    if (config_.adapters) add_adapters(prefix, parts, in, linear);
    return linear;
  }

  LinearParams unadapted(const std::string& prefix, const std::vector<Part>& parts,
                         const Columns& in, bool bias, float std_scale = 1) {
    LinearParams linear;
    linear.in_out = config_.weights_in_out();
    ParamInit init = normal_init();
    init.std *= std_scale;
    Fuse fuse = Fuse::kNo;
    for (const Part& part : parts) {
      const std::int64_t out_size = size_of(part.out), in_size = size_of(in);
      const bool in_out = linear.in_out;
      const Shape shape = in_out ? Shape{in_size, out_size} : Shape{out_size, in_size};
      const ParamIndex index = add(prefix + part.name + ".weight", shape, init, fuse);
      params.metas[index].set_by_product = true;
      if (is_cut(part.out)) params.metas[index].cut = {in_out ? 1 : 0, part.out};
      if (is_cut(in)) params.metas[index].cut = {in_out ? 0 : 1, in};
      if (!linear.weight.given()) linear.weight.first = index;
      linear.weight.last = index;
      fuse = Fuse::kWithPrevious;
    }
    if (bias) add_biases(prefix, parts, linear);
    return linear;
  }

  void add_biases(const std::string& prefix, const std::vector<Part>& parts, LinearParams& linear) {
    Fuse fuse = Fuse::kNo;
    for (const Part& part : parts) {
      const ParamIndex index =
          add(prefix + part.name + ".bias", {size_of(part.out)}, {InitKind::kZeros, 0}, fuse);
      if (is_cut(part.out)) params.metas[index].cut = {0, part.out};
      if (!linear.bias.given()) linear.bias.first = index;
      linear.bias.last = index;
      fuse = Fuse::kWithPrevious;
    }
  }

  /// A's gradient is a sum over the columns that tensor-parallel ranks have of the output, B's of
  /// the input.
  void add_adapters(const std::string& prefix, const std::vector<Part>& parts, const Columns& in,
                    LinearParams& linear) {
    const AdapterConfig& config = *config_.adapters;
    AdapterParams& adapter = linear.adapter;
    adapter.scale = static_cast<float>(config.scale);
    adapter.in_out = linear.in_out;
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(size_of(in))));
    const auto trained = [&](ParamIndex index) -> ParamMeta& {
      ParamMeta& meta = params.metas[static_cast<std::size_t>(index)];
      meta.set_by_product = true;
      adapters_.insert(index);
      return meta;
    };
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!config.adapts(prefix + parts[i].name)) continue;
      const ParamIndex index =
          add(fmt::format("{}{}.lora_A.weight", prefix, parts[i].name), {config.rank, size_of(in)},
              {InitKind::kUniform, bound}, adapter.a.given() ? Fuse::kWithPrevious : Fuse::kNo);
      ParamMeta& meta = trained(index);
      if (is_cut(in)) meta.cut = {1, in};
      if (is_cut(parts[i].out)) meta.partial = TensorPartial::kWithHeads;
      if (!adapter.a.given()) {
        adapter.a.first = index;
        adapter.dropout = {stream_key(config.dropout_key, meta.name), size_of(in)};
      }
      adapter.a.last = index;
      adapter.parts.push_back({linear.weight.first + static_cast<int>(i)});
    }
    std::size_t at = 0;
    for (const Part& part : parts) {
      if (!config.adapts(prefix + part.name)) continue;
      AdapterParams::Part& of = adapter.parts[at++];
      of.b = add(fmt::format("{}{}.lora_B.weight", prefix, part.name),
                 {size_of(part.out), config.rank}, {InitKind::kZeros, 0});
      ParamMeta& meta = trained(of.b);
      if (is_cut(part.out)) meta.cut = {0, part.out};
      if (is_cut(in)) meta.partial = TensorPartial::kWithHeads;
      if (!config.magnitudes) continue;
      of.magnitude = add(fmt::format("{}{}.lora_magnitude_vector", prefix, part.name),
                         {size_of(part.out)}, {InitKind::kZeros, 0});
      ParamMeta& magnitude = trained(of.magnitude);
      magnitude.set_by_product = false;
      if (is_cut(part.out)) magnitude.cut = {0, part.out};
      if (is_cut(in)) magnitude.partial = TensorPartial::kWithHeads;
    }
  }

  AdapterParams head_adapter(ParamIndex head) {
    LinearParams linear;
    linear.weight = {head, head};
    if (!config_.adapters) return {};
    const std::int64_t rows = config_.vocab_size;
    add_adapters("", {{kHeadModule.data(), {{rows, rows}}}}, hidden(), linear);
    for (const AdapterParams::Part& part : linear.adapter.parts)
      params.metas[part.b].row_alignment = kVocabularyRowAlignment;
    return linear.adapter;
  }

  /// All but adapters stand still.
  void freeze_base() {
    if (!config_.adapters) return;
    params.first_trained_layer = first_trained_layer(config_);
    for (std::size_t i = 0; i < params.metas.size(); ++i) {
      if (adapters_.contains(static_cast<ParamIndex>(i))) continue;
      params.metas[i].trainable = false;
      params.metas[i].base = true;
    }
  }

  /// What the optimizer's groups say of those that are trained so far.
  void apply_groups() {
    for (ParamMeta& meta : params.metas) {
      const std::string& name = meta.shares == kNoParam
                                    ? meta.name
                                    : params.metas[static_cast<std::size_t>(meta.shares)].name;
      const ParamGroup* group = meta.trainable ? group_of(config_.groups, name) : nullptr;
      if (group == nullptr) continue;
      meta.trainable = group->trainable;
      meta.lr_scale = group->lr_scale;
      meta.weight_decay = group->weight_decay;
    }
  }

  NormParams norm(const std::string& name, std::int64_t size,
                  TensorPartial partial = TensorPartial::kWithTokens) {
    NormParams norm;
    const InitKind init = config_.norm.weight_offset == 1 ? InitKind::kZeros : InitKind::kOnes;
    norm.weight = add(name + ".weight", {size}, {init, 0});
    params.metas[norm.weight].partial = partial;
    if (config_.norm.kind == NormKind::kLayer) {
      norm.bias = add(name + ".bias", {size}, {InitKind::kZeros, 0});
      params.metas[norm.bias].partial = partial;
    }
    return norm;
  }

  /// Of columns that are sharded, each with a weight of its own.
  NormParams norm_of_columns(const std::string& name, const CutSegment& columns) {
    const NormParams of = norm(name, columns.size, TensorPartial::kNever);
    params.metas[of.weight].cut = {0, {columns}};
    return of;
  }

  /// What follows an expert's number: of gate, up and down, and of their biases where it has any.
  struct ExpertNames {
    std::string before[3], behind[3], bias_before[3], bias_behind[3];
  };
  /// Of all experts. Fused by expert, up to each rank's.
  void experts(std::int64_t layer, const ExpertNames& names, ExpertsParams& to) {
    const ExpertsConfig& config = *config_.layer(layer).experts;
    const std::vector<std::int32_t> here = experts_here(layer);
    const CutSegment ffn{config.ffn, config.ffn};
    to.in.each = 2;
    constexpr int kWhole = -1;
    const auto add_one = [&](std::string name, const Shape& shape, int cut_dim, ParamRange& range) {
      const ParamInit init = shape.rank() == 1 ? ParamInit{InitKind::kZeros, 0} : normal_init();
      const ParamIndex index =
          add(std::move(name), shape, init, range.given() ? Fuse::kWithPrevious : Fuse::kNo);
      ParamMeta& meta = params.metas[index];
      meta.set_by_product = true;
      meta.view = MeshView::kExpert;
      if (cut_dim != kWhole) meta.cut = {cut_dim, {ffn}};
      if (!range.given()) range.first = index;
      range.last = index;
    };
    const auto weight = [&](std::int32_t expert, int which) {
      return fmt::format("{}{}{}", names.before[which], expert, names.behind[which]);
    };
    const auto bias = [&](std::int32_t expert, int which) {
      return fmt::format("{}{}{}", names.bias_before[which], expert, names.bias_behind[which]);
    };
    for (const std::int32_t expert : here)
      for (const int which : {0, 1})
        add_one(weight(expert, which), {config.ffn, config_.hidden}, 0, to.in.weight);
    for (const std::int32_t expert : here)
      add_one(weight(expert, 2), {config_.hidden, config.ffn}, 1, to.out.weight);
    if (!config.biased) return;
    for (const std::int32_t expert : here)
      for (const int which : {0, 1}) add_one(bias(expert, which), {config.ffn}, 0, to.in.bias);
    for (const std::int32_t expert : here)
      add_one(bias(expert, 2), {config_.hidden}, kWhole, to.out.bias);
  }

  /// Beside the products of experts, by `prefix` "model.layers.0.mlp.experts.". The tensor axis of
  /// their view cuts B of gate and up, or A of down; the other's gradient is a sum over it.
  void expert_adapters(std::int64_t layer, const std::string& prefix, ExpertsParams& to) {
    if (!config_.adapters) return;
    const CutSegment ffn{config_.layer(layer).experts->ffn, config_.layer(layer).experts->ffn};
    const Columns in = hidden(), cut = {ffn};
    expert_adapters(layer, prefix + "gate_up_proj", in, {ffn, ffn}, to.in.adapter);
    expert_adapters(layer, prefix + "down_proj", cut, in, to.out.adapter);
  }
  void expert_adapters(std::int64_t layer, const std::string& module, const Columns& in,
                       const Columns& out, ExpertAdapterParams& to) {
    const AdapterConfig& config = *config_.adapters;
    if (!config.adapts(module)) return;
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(size_of(in))));
    to.scale = static_cast<float>(config.scale);
    for (const char factor : {'A', 'B'}) {
      ParamRange& range = factor == 'A' ? to.a : to.b;
      const Columns &mine = factor == 'A' ? in : out, &other = factor == 'A' ? out : in;
      for (const std::int32_t expert : experts_here(layer)) {
        const std::int64_t size = size_of(mine);
        const ParamIndex index = add(
            expert_adapter_name(module, expert, factor),
            factor == 'A' ? Shape{config.rank, size} : Shape{size, config.rank},
            factor == 'A' ? ParamInit{InitKind::kUniform, bound} : ParamInit{InitKind::kZeros, 0},
            range.given() ? Fuse::kWithPrevious : Fuse::kNo);
        ParamMeta& meta = params.metas[static_cast<std::size_t>(index)];
        meta.set_by_product = true;
        meta.view = MeshView::kExpert;
        if (is_cut(mine)) meta.cut = {factor == 'A' ? 1 : 0, mine};
        if (is_cut(other)) meta.partial = TensorPartial::kWithHeads;
        adapters_.insert(index);
        if (!range.given()) range.first = index;
        range.last = index;
      }
    }
  }
  /// Of the experts' choice: no gradient moves it (train/router_bias.h).
  ParamIndex choice_bias(const std::string& name, std::int64_t experts) {
    const ParamIndex index = add(name, {experts}, {InitKind::kZeros, 0});
    params.metas[index].trainable = false;
    params.metas[index].in_f32 = true;
    return index;
  }
  /// Of tokens that ranks of the tensor axis have shares of.
  LinearParams of_own_tokens(const std::string& name, std::int64_t out, bool bias = false) {
    const LinearParams linear = unadapted("", {{name.c_str(), {{out, 0}}}}, hidden(), bias);
    params.metas[linear.weight.first].partial = TensorPartial::kWithHeads;
    if (!bias) return linear;
    params.metas[linear.bias.first].partial = TensorPartial::kWithHeads;
    params.metas[linear.bias.first].init = normal_init();  // GPT-OSS's alone has one
    return linear;
  }
  /// A score for each head.
  ParamIndex sinks(const std::string& name, const LayerConfig& of) {
    const std::int64_t heads = of.attention.heads;
    const ParamIndex index = add(name, {heads}, normal_init());
    params.metas[index].cut = {0, {{heads, heads}}};
    return index;
  }

  [[nodiscard]] Columns hidden() const { return {{config_.hidden, 0}}; }
  static CutSegment ffn(const LayerConfig& of) { return {of.mlp.ffn, of.mlp.ffn}; }
  static CutSegment heads(const LayerConfig& of) { return heads(of, of.attention.head_dim); }
  static CutSegment heads(const LayerConfig& of, std::int64_t dims) {
    return {of.attention.heads * dims, of.attention.heads};
  }
  static CutSegment kv_heads(const LayerConfig& of) {
    return {of.attention.k_size(), of.attention.kv_heads};
  }
  /// Of residual rows.
  void of_residual_rows(const LinearParams& linear) {
    for (const ParamRange& range : {linear.weight, linear.bias, linear.adapter.a}) {
      for (ParamIndex i = range.first; range.given() && i <= range.last; ++i)
        params.metas[i].partial = TensorPartial::kWithTokens;
    }
    for (const AdapterParams::Part& part : linear.adapter.parts) {
      params.metas[part.b].partial = TensorPartial::kWithTokens;
      if (part.magnitude != kNoParam)
        params.metas[part.magnitude].partial = TensorPartial::kWithTokens;
    }
  }
  /// The parameters that are declared from now on.
  void next_block() { ++block_; }

  ModelParams params;

 private:
  [[nodiscard]] ParamInit normal_init() const {
    return {InitKind::kNormal, static_cast<float>(config_.init_std)};
  }
  /// Those of a layer that this rank has.
  [[nodiscard]] std::vector<std::int32_t> experts_here(std::int64_t layer) const {
    const std::int64_t count = config_.layer(layer).experts->count;
    const ExpertPlaces places = experts_.places != nullptr
                                    ? (*experts_.places)[static_cast<std::size_t>(layer)]
                                    : ExpertPlaces(count, experts_.expert.extent);
    return places.experts_of(experts_.expert.index);
  }
  static bool is_cut(const Columns& columns) { return columns.front().units > 0; }
  static std::int64_t size_of(const Columns& columns) {
    std::int64_t size = 0;
    for (const CutSegment& section : columns) size += section.size;
    return size;
  }

  const ModelConfig& config_;
  const ExpertSet& experts_;
  std::set<ParamIndex> adapters_;
  int block_ = -1;
};

/// One tensor for each, but for those of GPT-OSS: parts of a tensor of all.
Table::ExpertNames expert_names(const std::string& prefix, Family family) {
  static constexpr const char *kNames[] = {"gate_proj", "up_proj", "down_proj"},
                              *kMixtral[] = {"w1", "w3", "w2"};
  Table::ExpertNames names;
  for (int i = 0; i < 3; ++i) {
    if (family != Family::kGptOss) {
      names.before[i] = prefix;
      names.behind[i] =
          fmt::format(".{}.weight", (family == Family::kMixtral ? kMixtral : kNames)[i]);
      continue;
    }
    const std::string tensor = prefix + (i == 2 ? "down_proj" : "gate_up_proj");
    names.before[i] = tensor + "[";
    names.bias_before[i] = tensor + "_bias[";
    names.behind[i] = names.bias_behind[i] = i == 0 ? "].gate" : i == 1 ? "].up" : "]";
  }
  return names;
}

/// Where a family has the experts of a layer.
void declare_experts(Table& table, const ModelConfig& config, std::int64_t layer,
                     const std::string& prefix, BlockParams& block) {
  const ExpertsConfig& experts = *config.layer(layer).experts;
  const bool mixtral = config.family == Family::kMixtral,
             gpt_oss = config.family == Family::kGptOss;
  const std::string branch = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
  block.experts.router =
      table.of_own_tokens(branch + (gpt_oss ? "router" : "gate"), experts.count, experts.biased);
  if (experts.has_bias)
    block.experts.bias = table.choice_bias(branch + "gate.e_score_correction_bias", experts.count);
  if (experts.shared_gate)
    block.experts.shared_gate = table.of_own_tokens(branch + "shared_expert_gate", 1);
  table.experts(layer, expert_names(branch + "experts.", config.family), block.experts);
  table.expert_adapters(layer, prefix + "mlp.experts.", block.experts);
}

/// Up to heads; the first product and the norms see residual rows.
void declare_latents(Table& table, const LayerConfig& layer, const std::string& prefix,
                     AttentionParams& to) {
  const bool bias = layer.attention.qkv_bias;
  const LatentConfig& latent = *layer.attention.latent;
  const Table::Columns keys{{latent.cached_size(), 0}};
  const CutSegment queries = Table::heads(layer, latent.query_dim());
  if (latent.q_rank > 0) {
    const Table::Columns q{{latent.q_rank, 0}};
    to.in =
        table.linear(prefix, {{"q_a_proj", q}, {"kv_a_proj_with_mqa", keys}}, table.hidden(), bias);
    to.q_norm = table.norm(prefix + "q_a_layernorm", latent.q_rank);
    to.q_up = table.linear(prefix, {{"q_b_proj", {queries}}}, q, false);
  } else {
    to.in = table.linear(prefix, {{"kv_a_proj_with_mqa", keys}}, table.hidden(), bias);
    to.q_up = table.linear(prefix, {{"q_proj", {queries}}}, table.hidden(), false);
  }
  table.of_residual_rows(to.in);
  to.k_norm = table.norm(prefix + "kv_a_layernorm", latent.kv_rank);
  to.kv_up = table.linear(prefix, {{"kv_b_proj", {Table::heads(layer, latent.key_value_dim())}}},
                          {{latent.kv_rank, 0}}, false);
}

BlockParams llama_block(Table& table, const ModelConfig& config, const LayerConfig& layer,
                        const std::string& prefix) {
  const CutSegment heads = table.heads(layer), kv_heads = table.kv_heads(layer),
                   ffn = table.ffn(layer);
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  BlockParams block;
  if (layer.norm_before())
    block.attention.norm = table.norm(prefix + "input_layernorm", config.hidden);
  if (layer.attention.latent) {
    declare_latents(table, layer, attention, block.attention);
  } else {
    block.attention.in = table.linear(
        attention, {{"q_proj", {heads}}, {"k_proj", {kv_heads}}, {"v_proj", {kv_heads}}},
        table.hidden(), layer.attention.qkv_bias);
  }
  const CutSegment values = table.heads(layer, layer.attention.out_size() / layer.attention.heads);
  block.attention.out =
      table.linear(attention, {{"o_proj", table.hidden()}}, {values}, layer.attention.out_bias);
  if (layer.attention.sinks) block.attention.sinks = table.sinks(attention + "sinks", layer);
  if (layer.attention.qk_norm == QkNorm::kProjection) {
    block.attention.q_norm = table.norm_of_columns(attention + "q_norm", heads);
    block.attention.k_norm = table.norm_of_columns(attention + "k_norm", kv_heads);
  }
  if (layer.attention.qk_norm == QkNorm::kHeads) {
    const std::int64_t size = layer.attention.head_dim;
    block.attention.q_norm = table.norm(attention + "q_norm", size, TensorPartial::kWithHeads);
    block.attention.k_norm = table.norm(attention + "k_norm", size, TensorPartial::kWithHeads);
  }
  // Llama's name for the norm before the MLP is that of the norm behind attention where there is
  // one.
  const std::string behind_attention = prefix + "post_attention_layernorm";
  if (layer.norm_after()) block.attention.post_norm = table.norm(behind_attention, config.hidden);
  if (layer.norm_before()) {
    block.mlp.norm =
        table.norm(layer.norm_after() ? prefix + "pre_feedforward_layernorm" : behind_attention,
                   config.hidden);
  }
  if (layer.mlp.ffn > 0) {
    const char* const shared =
        config.family == Family::kQwen2Moe ? "shared_expert." : "shared_experts.";
    const std::string prefix_of = layer.experts ? mlp + shared : mlp;
    block.mlp.in = table.linear(prefix_of, {{"gate_proj", {ffn}}, {"up_proj", {ffn}}},
                                table.hidden(), layer.mlp.bias);
    block.mlp.out = table.linear(prefix_of, {{"down_proj", table.hidden()}}, {ffn}, layer.mlp.bias);
  }
  if (layer.norm_after())
    block.mlp.post_norm = table.norm(prefix + "post_feedforward_layernorm", config.hidden);
  return block;
}

BlockParams gpt2_block(Table& table, const ModelConfig& config, const LayerConfig& layer,
                       const std::string& prefix) {
  const float residual_scale = 1 / std::sqrt(2 * static_cast<float>(config.layer_count()));
  const CutSegment heads = table.heads(layer), kv_heads = table.kv_heads(layer),
                   ffn = table.ffn(layer);
  const std::string attention = prefix + "attn.", mlp = prefix + "mlp.";
  BlockParams block;
  block.attention.norm = table.norm(prefix + "ln_1", config.hidden);
  block.attention.in =
      table.linear(attention, {{"c_attn", {heads, kv_heads, kv_heads}}}, table.hidden(), true);
  block.attention.out =
      table.linear(attention, {{"c_proj", table.hidden()}}, {heads}, true, residual_scale);
  block.mlp.norm = table.norm(prefix + "ln_2", config.hidden);
  block.mlp.in = table.linear(mlp, {{"c_fc", {ffn}}}, table.hidden(), true);
  block.mlp.out = table.linear(mlp, {{"c_proj", table.hidden()}}, {ffn}, true, residual_scale);
  return block;
}

const char* embedding_name(const ModelConfig& config) {
  return config.family == Family::kGpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

void declare_embedding(Table& table, const ModelConfig& config, ChunkParams& chunk) {
  table.next_block();
  chunk.embedding = table.vocabulary(embedding_name(config));
  if (config.learned_positions)
    chunk.position_embedding = table.positions("transformer.wpe.weight");
}

void declare_layers(Table& table, const ModelConfig& config, ChunkParams& chunk) {
  const bool gpt2 = config.family == Family::kGpt2;
  const std::int64_t first = chunk.range.first_layer;
  for (std::int64_t layer = first; layer < first + chunk.range.layers; ++layer) {
    table.next_block();
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    chunk.blocks.push_back(gpt2 ? gpt2_block(table, config, config.layer(layer),
                                             fmt::format("transformer.h.{}.", layer))
                                : llama_block(table, config, config.layer(layer), prefix));
    if (config.layer(layer).experts)
      declare_experts(table, config, layer, prefix, chunk.blocks.back());
  }
}

void declare_head(Table& table, const ModelConfig& config, ChunkParams& chunk) {
  table.next_block();
  chunk.final_norm =
      table.norm(config.family == Family::kGpt2 ? "transformer.ln_f" : "model.norm", config.hidden);
  if (config.tied_embeddings) return;
  table.next_block();
  chunk.head = chunk.head_gradient = table.vocabulary(fmt::format("{}.weight", kHeadModule));
  table.params.metas[chunk.head].set_by_product = true;
  chunk.head_adapter = table.head_adapter(chunk.head);
}

/// Behind everything else, so that what has no value ends the layout.
void declare_tied_head(Table& table, const ModelConfig& config, ParamIndex embedding,
                       ChunkParams& chunk) {
  table.next_block();
  chunk.head_gradient = table.vocabulary(embedding_name(config));
  ParamMeta& head = table.params.metas[chunk.head_gradient];
  head.set_by_product = true;
  if (embedding == kNoParam) {
    chunk.head = chunk.head_gradient;
    head.tied_rank = {2, 1};
    return;
  }
  chunk.head = head.shares = embedding;
  head.reduced_alone = !chunk.range.embedding;
  head.name += " (head)";
}

}  // namespace

std::vector<ExpertPlaces> expert_places(const ModelConfig& config, int extent,
                                        const std::vector<std::vector<std::int32_t>>& rank_of) {
  std::vector<ExpertPlaces> places;
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    const auto& experts = config.layers[layer].experts;
    if (!experts) {
      places.emplace_back(0, extent);
    } else if (rank_of.empty()) {
      places.emplace_back(experts->count, extent);
    } else {
      places.emplace_back(rank_of[layer], extent);
    }
  }
  return places;
}

ModelParams declare_params(const ModelConfig& config, std::span<const ChunkRange> chunks,
                           const ExpertSet& experts) {
  Table table(config, experts);
  ModelParams& params = table.params;
  ParamIndex embedding = kNoParam;
  for (const ChunkRange& range : chunks) {
    ChunkParams& chunk = params.chunks.emplace_back();
    chunk.range = range;
    if (range.embedding) declare_embedding(table, config, chunk);
    if (range.embedding) embedding = chunk.embedding;
    declare_layers(table, config, chunk);
    if (range.head) declare_head(table, config, chunk);
  }
  bool head_here = false;
  for (ChunkParams& chunk : params.chunks) {
    head_here = head_here || chunk.range.head;
    if (config.tied_embeddings && chunk.range.head)
      declare_tied_head(table, config, embedding, chunk);
  }
  if (config.tied_embeddings && embedding != kNoParam && !head_here)
    params.metas[embedding].tied_rank = {2, 0};
  table.freeze_base();
  mark_matrices(params);
  table.apply_groups();
  return std::move(table.params);
}

ModelParams declare_params(const ModelConfig& config) {
  const ChunkRange whole = whole_model(config);
  return declare_params(config, {&whole, 1});
}

ModelConfig config_of_rank(const ModelConfig& config, AxisRank rank, AxisRank expert_tensor) {
  ModelConfig local = config;
  for (LayerConfig& layer : local.layers) {
    AttentionConfig& attention = layer.attention;
    attention.heads = div_exact(attention.heads, rank.extent);
    attention.kv_heads =
        attention.kv_heads >= rank.extent ? div_exact(attention.kv_heads, rank.extent) : 1;
    layer.mlp.ffn = div_exact(layer.mlp.ffn, rank.extent);
    if (layer.experts) layer.experts->ffn = div_exact(layer.experts->ffn, expert_tensor.extent);
  }
  return local;
}

}  // namespace trireme
