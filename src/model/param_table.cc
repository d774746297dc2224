#include "model/param_table.h"

#include <cmath>

namespace trireme {

namespace {

/// Appends parameters in the order in which they lie in memory.
class Table {
 public:
  explicit Table(const ModelConfig& config) : config_(config) {}

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
    return index;
  }
  ParamIndex positions(std::string name) {
    return add(std::move(name), {config_.max_positions, config_.hidden}, normal_init());
  }

  /// The columns of an activation, cut or not.
  using Columns = std::vector<CutSection>;
  struct Part {
    const char* name;
    Columns out;
  };
  /// Projections of one input that lie together: first all weights, then all biases. Either the
  /// input's or the output's columns are cut on the tensor axis; what is not has no units.
  LinearParams linear(const std::string& prefix, const std::vector<Part>& parts, const Columns& in,
                      bool bias, float std_scale = 1) {
    LinearParams linear;
    ParamInit init = normal_init();
    init.std *= std_scale;
    Fuse fuse = Fuse::kNo;
    for (const Part& part : parts) {
      const std::int64_t out_size = size_of(part.out), in_size = size_of(in);
      const bool in_out = config_.weights_in_out();
      const Shape shape = in_out ? Shape{in_size, out_size} : Shape{out_size, in_size};
      const ParamIndex index = add(prefix + part.name + ".weight", shape, init, fuse);
      params.metas[index].set_by_product = true;
      if (is_cut(part.out)) params.metas[index].cut = {in_out ? 1 : 0, part.out};
      if (is_cut(in)) params.metas[index].cut = {in_out ? 0 : 1, in};
      if (!linear.weight.given()) linear.weight.first = index;
      linear.weight.last = index;
      fuse = Fuse::kWithPrevious;
    }
    if (!bias) return linear;
    fuse = Fuse::kNo;
    for (const Part& part : parts) {
      const ParamIndex index =
          add(prefix + part.name + ".bias", {size_of(part.out)}, {InitKind::kZeros, 0}, fuse);
      if (is_cut(part.out)) params.metas[index].cut = {0, part.out};
      if (!linear.bias.given()) linear.bias.first = index;
      linear.bias.last = index;
      fuse = Fuse::kWithPrevious;
    }
    return linear;
  }

  NormParams norm(const std::string& name, std::int64_t size,
                  TensorPartial partial = TensorPartial::kWithTokens) {
    NormParams norm;
    norm.weight = add(name + ".weight", {size}, {InitKind::kOnes, 0});
    params.metas[norm.weight].partial = partial;
    if (config_.norm == NormKind::kLayer) {
      norm.bias = add(name + ".bias", {size}, {InitKind::kZeros, 0});
      params.metas[norm.bias].partial = partial;
    }
    return norm;
  }

  [[nodiscard]] Columns hidden() const { return {{config_.hidden, 0}}; }
  [[nodiscard]] Columns ffn() const { return {{config_.ffn, config_.ffn}}; }
  [[nodiscard]] Columns heads() const { return {{config_.q_size(), config_.heads}}; }
  [[nodiscard]] Columns kv_heads() const { return {{config_.kv_size(), config_.kv_heads}}; }

  void next_block() { ++block_; }

  ModelParams params;

 private:
  [[nodiscard]] ParamInit normal_init() const {
    return {InitKind::kNormal, static_cast<float>(config_.init_std)};
  }
  static bool is_cut(const Columns& columns) { return columns.front().units > 0; }
  static std::int64_t size_of(const Columns& columns) {
    std::int64_t size = 0;
    for (const CutSection& section : columns) size += section.size;
    return size;
  }

  const ModelConfig& config_;
  int block_ = 0;
};

BlockParams llama_block(Table& table, const ModelConfig& config, const std::string& prefix) {
  BlockParams block;
  block.attention_norm = table.norm(prefix + "input_layernorm", config.hidden);
  const std::string attention = prefix + "self_attn.";
  block.qkv = table.linear(
      attention,
      {{"q_proj", table.heads()}, {"k_proj", table.kv_heads()}, {"v_proj", table.kv_heads()}},
      table.hidden(), config.qkv_bias);
  block.out = table.linear(attention, {{"o_proj", table.hidden()}}, table.heads(),
                           config.attention_out_bias);
  if (config.qk_norm) {
    block.q_norm = table.norm(attention + "q_norm", config.head_dim, TensorPartial::kWithHeads);
    block.k_norm = table.norm(attention + "k_norm", config.head_dim, TensorPartial::kWithHeads);
  }
  block.mlp_norm = table.norm(prefix + "post_attention_layernorm", config.hidden);
  block.up = table.linear(prefix + "mlp.", {{"gate_proj", table.ffn()}, {"up_proj", table.ffn()}},
                          table.hidden(), config.mlp_bias);
  block.down =
      table.linear(prefix + "mlp.", {{"down_proj", table.hidden()}}, table.ffn(), config.mlp_bias);
  return block;
}

BlockParams gpt2_block(Table& table, const ModelConfig& config, const std::string& prefix) {
  const float residual_scale = 1 / std::sqrt(2 * static_cast<float>(config.layers));
  BlockParams block;
  block.attention_norm = table.norm(prefix + "ln_1", config.hidden);
  const CutSection heads = table.heads().front(), kv_heads = table.kv_heads().front();
  block.qkv = table.linear(prefix + "attn.", {{"c_attn", {heads, kv_heads, kv_heads}}},
                           table.hidden(), true);
  block.out = table.linear(prefix + "attn.", {{"c_proj", table.hidden()}}, table.heads(), true,
                           residual_scale);
  block.mlp_norm = table.norm(prefix + "ln_2", config.hidden);
  block.up = table.linear(prefix + "mlp.", {{"c_fc", table.ffn()}}, table.hidden(), true);
  block.down = table.linear(prefix + "mlp.", {{"c_proj", table.hidden()}}, table.ffn(), true,
                            residual_scale);
  return block;
}

}  // namespace

ModelParams declare_params(const ModelConfig& config) {
  const bool gpt2 = config.family == Family::kGpt2;
  Table table(config);
  ModelParams& params = table.params;
  params.tied = config.tied_embeddings;
  params.embedding =
      table.vocabulary(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
  params.metas[params.embedding].tied = params.tied;
  if (config.position == PositionKind::kLearned)
    params.position_embedding = table.positions("transformer.wpe.weight");
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    table.next_block();
    params.blocks.push_back(
        gpt2 ? gpt2_block(table, config, fmt::format("transformer.h.{}.", layer))
             : llama_block(table, config, fmt::format("model.layers.{}.", layer)));
  }
  table.next_block();
  params.final_norm = table.norm(gpt2 ? "transformer.ln_f" : "model.norm", config.hidden);
  if (params.tied) {
    params.head = params.embedding;
  } else {
    params.head = table.vocabulary("lm_head.weight");
    params.metas[params.head].set_by_product = true;
  }
  return std::move(table.params);
}

ModelConfig config_of_place(const ModelConfig& config, AxisPlace place) {
  ModelConfig local = config;
  local.heads = div_exact(config.heads, place.extent);
  local.ffn = div_exact(config.ffn, place.extent);
  local.kv_heads = config.kv_heads >= place.extent ? div_exact(config.kv_heads, place.extent) : 1;
  return local;
}

}  // namespace trireme
