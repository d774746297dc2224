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

  ParamIndex matrix(std::string name, std::int64_t rows, std::int64_t columns) {
    return add(std::move(name), {rows, columns}, normal_init());
  }

  struct Part {
    const char* name;
    std::int64_t out;
  };
  /// Projections of one input that lie together: first all weights, then all biases.
  LinearParams linear(const std::string& prefix, std::initializer_list<Part> parts, std::int64_t in,
                      bool bias, float std_scale = 1) {
    LinearParams linear;
    ParamInit init = normal_init();
    init.std *= std_scale;
    Fuse fuse = Fuse::kNo;
    for (const Part& part : parts) {
      const Shape shape = config_.weights_in_out() ? Shape{in, part.out} : Shape{part.out, in};
      const ParamIndex index = add(prefix + part.name + ".weight", shape, init, fuse);
      params.metas[index].set_by_product = true;
      if (!linear.weight.given()) linear.weight.first = index;
      linear.weight.last = index;
      fuse = Fuse::kWithPrevious;
    }
    if (!bias) return linear;
    fuse = Fuse::kNo;
    for (const Part& part : parts) {
      const ParamIndex index =
          add(prefix + part.name + ".bias", {part.out}, {InitKind::kZeros, 0}, fuse);
      if (!linear.bias.given()) linear.bias.first = index;
      linear.bias.last = index;
      fuse = Fuse::kWithPrevious;
    }
    return linear;
  }

  NormParams norm(const std::string& name, std::int64_t size) {
    NormParams norm;
    norm.weight = add(name + ".weight", {size}, {InitKind::kOnes, 0});
    if (config_.norm == NormKind::kLayer)
      norm.bias = add(name + ".bias", {size}, {InitKind::kZeros, 0});
    return norm;
  }

  void next_block() { ++block_; }

  ModelParams params;

 private:
  [[nodiscard]] ParamInit normal_init() const {
    return {InitKind::kNormal, static_cast<float>(config_.init_std)};
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
      {{"q_proj", config.q_size()}, {"k_proj", config.kv_size()}, {"v_proj", config.kv_size()}},
      config.hidden, config.qkv_bias);
  block.out = table.linear(attention, {{"o_proj", config.hidden}}, config.q_size(),
                           config.attention_out_bias);
  if (config.qk_norm) {
    block.q_norm = table.norm(attention + "q_norm", config.head_dim);
    block.k_norm = table.norm(attention + "k_norm", config.head_dim);
  }
  block.mlp_norm = table.norm(prefix + "post_attention_layernorm", config.hidden);
  block.up = table.linear(prefix + "mlp.", {{"gate_proj", config.ffn}, {"up_proj", config.ffn}},
                          config.hidden, config.mlp_bias);
  block.down =
      table.linear(prefix + "mlp.", {{"down_proj", config.hidden}}, config.ffn, config.mlp_bias);
  return block;
}

BlockParams gpt2_block(Table& table, const ModelConfig& config, const std::string& prefix) {
  const float residual_scale = 1 / std::sqrt(2 * static_cast<float>(config.layers));
  BlockParams block;
  block.attention_norm = table.norm(prefix + "ln_1", config.hidden);
  block.qkv = table.linear(prefix + "attn.", {{"c_attn", config.q_size() + 2 * config.kv_size()}},
                           config.hidden, true);
  block.out = table.linear(prefix + "attn.", {{"c_proj", config.hidden}}, config.q_size(), true,
                           residual_scale);
  block.mlp_norm = table.norm(prefix + "ln_2", config.hidden);
  block.up = table.linear(prefix + "mlp.", {{"c_fc", config.ffn}}, config.hidden, true);
  block.down =
      table.linear(prefix + "mlp.", {{"c_proj", config.hidden}}, config.ffn, true, residual_scale);
  return block;
}

}  // namespace

ModelParams declare_params(const ModelConfig& config) {
  const bool gpt2 = config.family == Family::kGpt2;
  Table table(config);
  ModelParams& params = table.params;
  params.tied = config.tied_embeddings;
  params.embedding = table.matrix(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
                                  config.vocab_size, config.hidden);
  params.metas[params.embedding].tied = params.tied;
  if (config.position == PositionKind::kLearned) {
    params.position_embedding =
        table.matrix("transformer.wpe.weight", config.max_positions, config.hidden);
  }
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
    params.head = table.matrix("lm_head.weight", config.vocab_size, config.hidden);
    params.metas[params.head].set_by_product = true;
  }
  return std::move(table.params);
}

}  // namespace trireme
