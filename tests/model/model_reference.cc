#include "model/model_reference.h"

#include <algorithm>
#include <cmath>

namespace trireme::reference {

namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::string prefix_of(const Architecture& model, std::int64_t layer) {
  return (model.gpt2 ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
}

struct Outputs {
  std::int64_t first, count, all;
};

/// y[t, o] = sum_i x[t, i] W[o, i] + b[o], of `count` outputs from `first` on of a weight that has
/// `all` of them.
Values linear(const Architecture& model, const Params& params, const std::string& name,
              const Values& x, std::int64_t in, Outputs outputs) {
  const auto [first, out, all] = outputs;
  const Values& weight = params.at(name + ".weight");
  const auto bias = params.find(name + ".bias");
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / in;
  Values y(at(tokens * out));
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = bias == params.end() ? 0 : bias->second[at(first + o)];
      for (std::int64_t i = 0; i < in; ++i)
        sum +=
            x[at(t * in + i)] * weight[at(model.gpt2 ? i * all + first + o : (first + o) * in + i)];
      y[at(t * out + o)] = sum;
    }
  }
  return y;
}
Values linear(const Architecture& model, const Params& params, const std::string& name,
              const Values& x, std::int64_t in, std::int64_t out) {
  return linear(model, params, name, x, in, {0, out, out});
}

/// Of each run of `size` numbers: x / sqrt(mean x^2 + eps) w, or (x - mean) / sqrt(var + eps) w +
/// b.
Values norm(const Architecture& model, const Params& params, const std::string& name,
            const Values& x, std::int64_t size) {
  const bool layer_norm = model.gpt2;
  const double eps = model.eps;
  Values weight = params.at(name + ".weight");
  for (double& w : weight) w += model.norm_around_zero ? 1 : 0;
  Values y(x.size());
  for (std::size_t begin = 0; begin < x.size(); begin += at(size)) {
    double mean = 0, square = 0;
    for (std::int64_t c = 0; layer_norm && c < size; ++c)
      mean += x[begin + at(c)] / static_cast<double>(size);
    for (std::int64_t c = 0; c < size; ++c)
      square += std::pow(x[begin + at(c)] - mean, 2) / static_cast<double>(size);
    for (std::int64_t c = 0; c < size; ++c) {
      y[begin + at(c)] = (x[begin + at(c)] - mean) / std::sqrt(square + eps) * weight[at(c)];
      if (layer_norm) y[begin + at(c)] += params.at(name + ".bias")[at(c)];
    }
  }
  return y;
}

/// Pairs (j, j + D/2) of each head turn by position * theta^(-2j/D).
void rotate(const Architecture& model, double theta, Values& x, std::int64_t heads,
            const Batch& batch) {
  const std::int64_t half = model.head_dim / 2;
  for (std::int64_t t = 0; t < batch.sequences * batch.tokens; ++t) {
    for (std::int64_t j = 0; j < half; ++j) {
      const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(model.head_dim);
      const double angle = static_cast<double>(batch.positions[at(t)]) * std::pow(theta, exponent);
      const double cosine = std::cos(angle), sine = std::sin(angle);
      for (std::int64_t h = 0; h < heads; ++h) {
        double& a = x[at((t * heads + h) * model.head_dim + j)];
        double& b = x[at((t * heads + h) * model.head_dim + j + half)];
        const double turned = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = turned;
      }
    }
  }
}

std::int64_t window_of(const Architecture& model, std::int64_t layer) {
  return model.windows.empty() ? 0 : model.windows[at(layer)];
}

/// o = softmax(q k / sqrt(D)) v over the keys from first_key to the query's own, the last `window`
/// of them (0: all); query head h reads key head h / (H / G).
Values attention(const Architecture& model, std::int64_t window, const Values& q, const Values& k,
                 const Values& v, const Batch& batch) {
  const std::int64_t heads = model.heads, groups = model.kv_heads, size = model.head_dim;
  const double scale =
      model.score_scale > 0 ? model.score_scale : 1 / std::sqrt(static_cast<double>(size));
  Values o(q.size());
  for (std::int64_t s = 0; s < batch.sequences; ++s) {
    for (std::int64_t i = 0; i < batch.tokens; ++i) {
      const std::int64_t query = s * batch.tokens + i;
      std::int64_t first = batch.first_key[at(query)];
      if (window > 0) first = std::max(first, i - window + 1);
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t group = h / (heads / groups);
        Values shares;
        double sum = 0;
        for (std::int64_t j = first; j <= i; ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < size; ++d)
            score += q[at((query * heads + h) * size + d)] *
                     k[at(((s * batch.tokens + j) * groups + group) * size + d)];
          shares.push_back(std::exp(score * scale));
          sum += shares.back();
        }
        for (std::int64_t j = first; j <= i; ++j) {
          for (std::int64_t d = 0; d < size; ++d)
            o[at((query * heads + h) * size + d)] +=
                shares[at(j - first)] / sum *
                v[at(((s * batch.tokens + j) * groups + group) * size + d)];
        }
      }
    }
  }
  return o;
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x) {
  const double inner = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

Values attention_branch(const Architecture& model, const Params& params, std::int64_t layer,
                        const Values& n, const Batch& batch) {
  const std::string prefix = prefix_of(model, layer);
  const std::int64_t window = window_of(model, layer);
  const std::int64_t q_size = model.heads * model.head_dim,
                     kv_size = model.kv_heads * model.head_dim;
  if (model.gpt2) {
    const auto part = [&](std::int64_t index) {
      return linear(model, params, prefix + "attn.c_attn", n, model.hidden,
                    {index * q_size, q_size, 3 * q_size});
    };
    return linear(model, params, prefix + "attn.c_proj",
                  attention(model, window, part(0), part(1), part(2), batch), q_size, model.hidden);
  }
  const std::string name = prefix + "self_attn.";
  Values q = linear(model, params, name + "q_proj", n, model.hidden, q_size);
  Values k = linear(model, params, name + "k_proj", n, model.hidden, kv_size);
  const Values v = linear(model, params, name + "v_proj", n, model.hidden, kv_size);
  if (model.qk_norm) {
    q = norm(model, params, name + "q_norm", q, model.qk_norm_of_all ? q_size : model.head_dim);
    k = norm(model, params, name + "k_norm", k, model.qk_norm_of_all ? kv_size : model.head_dim);
  }
  if (model.no_rope_interval == 0 || (layer + 1) % model.no_rope_interval != 0) {
    const double theta =
        window > 0 && model.sliding_theta > 0 ? model.sliding_theta : model.rope_theta;
    rotate(model, theta, q, model.heads, batch);
    rotate(model, theta, k, model.kv_heads, batch);
  }
  return linear(model, params, name + "o_proj", attention(model, window, q, k, v, batch), q_size,
                model.hidden);
}

Values mlp_branch(const Architecture& model, const Params& params, const std::string& prefix,
                  const Values& n) {
  const std::string name = prefix + "mlp.";
  if (model.gpt2) {
    Values h = linear(model, params, name + "c_fc", n, model.hidden, model.ffn);
    for (double& x : h) x = gelu(x);
    return linear(model, params, name + "c_proj", h, model.ffn, model.hidden);
  }
  Values h = linear(model, params, name + "gate_proj", n, model.hidden, model.ffn);
  const Values up = linear(model, params, name + "up_proj", n, model.hidden, model.ffn);
  for (std::size_t i = 0; i < h.size(); ++i)
    h[i] = (model.gelu_gate ? gelu(h[i]) : silu(h[i])) * up[i];
  return linear(model, params, name + "down_proj", h, model.ffn, model.hidden);
}

Values sum_of(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

std::string embedding_name(const Architecture& model) {
  return model.gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

}  // namespace

std::map<std::string, std::vector<std::int64_t>> shapes_of(const Architecture& model) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const std::int64_t c = model.hidden, q = model.heads * model.head_dim,
                     kv = model.kv_heads * model.head_dim;
  const auto linear_of = [&](const std::string& name, std::int64_t in, std::int64_t out,
                             bool bias) {
    shapes[name + ".weight"] = model.gpt2 ? std::vector{in, out} : std::vector{out, in};
    if (bias) shapes[name + ".bias"] = {out};
  };
  const auto norm_of = [&](const std::string& name, std::int64_t size) {
    shapes[name + ".weight"] = {size};
    if (model.gpt2) shapes[name + ".bias"] = {size};
  };
  shapes[embedding_name(model)] = {model.vocabulary, c};
  if (model.gpt2) shapes["transformer.wpe.weight"] = {model.positions, c};
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = prefix_of(model, layer);
    if (model.gpt2) {
      norm_of(prefix + "ln_1", c);
      linear_of(prefix + "attn.c_attn", c, 3 * q, true);
      linear_of(prefix + "attn.c_proj", q, c, true);
      norm_of(prefix + "ln_2", c);
      linear_of(prefix + "mlp.c_fc", c, model.ffn, true);
      linear_of(prefix + "mlp.c_proj", model.ffn, c, true);
      continue;
    }
    if (model.norm_before) norm_of(prefix + "input_layernorm", c);
    linear_of(prefix + "self_attn.q_proj", c, q, model.qkv_bias);
    linear_of(prefix + "self_attn.k_proj", c, kv, model.qkv_bias);
    linear_of(prefix + "self_attn.v_proj", c, kv, model.qkv_bias);
    linear_of(prefix + "self_attn.o_proj", q, c, model.out_bias);
    if (model.qk_norm) {
      norm_of(prefix + "self_attn.q_norm", model.qk_norm_of_all ? q : model.head_dim);
      norm_of(prefix + "self_attn.k_norm", model.qk_norm_of_all ? kv : model.head_dim);
    }
    norm_of(prefix + "post_attention_layernorm", c);
    if (model.norm_before && model.norm_after) norm_of(prefix + "pre_feedforward_layernorm", c);
    if (model.norm_after) norm_of(prefix + "post_feedforward_layernorm", c);
    linear_of(prefix + "mlp.gate_proj", c, model.ffn, model.mlp_bias);
    linear_of(prefix + "mlp.up_proj", c, model.ffn, model.mlp_bias);
    linear_of(prefix + "mlp.down_proj", model.ffn, c, model.mlp_bias);
  }
  norm_of(model.gpt2 ? "transformer.ln_f" : "model.norm", c);
  if (!model.tied) shapes["lm_head.weight"] = {model.vocabulary, c};
  return shapes;
}

Values embed(const Architecture& model, const Params& params, const Batch& batch) {
  Values x;
  for (std::size_t t = 0; t < batch.ids.size(); ++t) {
    for (std::int64_t c = 0; c < model.hidden; ++c) {
      x.push_back(model.embedding_scale *
                  params.at(embedding_name(model))[at(batch.ids[t] * model.hidden + c)]);
      if (model.gpt2)
        x.back() += params.at("transformer.wpe.weight")[at(batch.positions[t] * model.hidden + c)];
    }
  }
  return x;
}

Values layer(const Architecture& model, const Params& params, std::int64_t index, const Values& x,
             const Batch& batch) {
  const std::string prefix = prefix_of(model, index);
  const auto normed = [&](bool there, const char* llama, const char* gpt2, const Values& s) {
    if (!there) return s;
    return norm(model, params, prefix + (model.gpt2 ? gpt2 : llama), s, model.hidden);
  };
  const bool before = model.norm_before, after = model.norm_after;
  const Values o =
      attention_branch(model, params, index, normed(before, "input_layernorm", "ln_1", x), batch);
  const Values s = sum_of(normed(after, "post_attention_layernorm", "", o), x);
  const char* name = after ? "pre_feedforward_layernorm" : "post_attention_layernorm";
  const Values y = mlp_branch(model, params, prefix, normed(before, name, "ln_2", s));
  return sum_of(normed(after, "post_feedforward_layernorm", "", y), s);
}

Values logits(const Architecture& model, const Params& params, const Values& x) {
  const Values n =
      norm(model, params, model.gpt2 ? "transformer.ln_f" : "model.norm", x, model.hidden);
  const Values& head = params.at(model.tied ? embedding_name(model) : "lm_head.weight");
  Values all;
  for (std::size_t begin = 0; begin < n.size(); begin += at(model.hidden)) {
    for (std::int64_t v = 0; v < model.vocabulary; ++v) {
      double sum = 0;
      for (std::int64_t c = 0; c < model.hidden; ++c)
        sum += n[begin + at(c)] * head[at(v * model.hidden + c)];
      all.push_back(sum);
    }
  }
  return all;
}

double loss_sum(const Architecture& model, const Values& logits, const Batch& batch) {
  double loss = 0;
  for (std::size_t t = 0; t < batch.targets.size(); ++t) {
    if (batch.targets[t] < 0) continue;
    const double* row = logits.data() + t * at(model.vocabulary);
    double sum = 0;
    for (std::int64_t v = 0; v < model.vocabulary; ++v) sum += std::exp(row[v]);
    loss += std::log(sum) - row[batch.targets[t]];
  }
  return loss;
}

Values logits_of(const Architecture& model, const Params& params, const Batch& batch) {
  Values x = embed(model, params, batch);
  for (std::int64_t index = 0; index < model.layers; ++index)
    x = layer(model, params, index, x, batch);
  return logits(model, params, x);
}

Values differences(Values& at, const std::function<double()>& f) {
  constexpr double kStep = 1e-5;
  Values gradient;
  for (double& value : at) {
    const double before = value;
    value = before + kStep;
    const double above = f();
    value = before - kStep;
    gradient.push_back((above - f()) / (2 * kStep));
    value = before;
  }
  return gradient;
}

}  // namespace trireme::reference
