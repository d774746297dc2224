#pragma once
// A decoder-only transformer in float64 by plain loops, one number at a time: what the layers, ends
// and stages of src/model are compared with. Parameters go by their Hugging Face names and lie as
// Hugging Face has them.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::reference {

using Values = std::vector<double>;
using Params = std::map<std::string, Values>;

struct Architecture {
  bool gpt2 = false;  ///< GPT-2's names, layer norms, GELU, weights [in, out], learned positions
  std::int64_t layers = 1, hidden = 1, ffn = 1, heads = 1, kv_heads = 1, head_dim = 2;
  std::int64_t vocabulary = 1, positions = 1;
  double eps = 0, rope_theta = 10000;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;  ///< GPT-2 has them all
  bool qk_norm = false, tied = false;
  bool qk_norm_of_all = false;                  ///< over all heads of q, of k
  bool norm_before = true, norm_after = false;  ///< where a branch has its norms
  bool norm_around_zero = false;                ///< their weights are 1 + w
  bool gelu_gate = false;                       ///< in place of silu
  double embedding_scale = 1, score_scale = 0;  ///< score_scale 0: 1 / sqrt(head_dim)
  double sliding_theta = 0;                     ///< of layers with a window; 0: rope_theta
  std::vector<std::int64_t> windows = {};       ///< of each layer, 0: none; empty: no layer has one
  std::int64_t no_rope_interval = 0;  ///< every so-manieth layer has no RoPE; 0: all have it
};

/// Tokens [sequences, tokens], one sequence after the other.
struct Batch {
  std::int64_t sequences = 1, tokens = 1;
  std::vector<std::int64_t> ids, targets;  ///< a target below 0 is not counted
  /// Of each token: its position, and the index within its sequence of the first one that it sees.
  std::vector<std::int64_t> positions, first_key;
};

/// Of every parameter.
std::map<std::string, std::vector<std::int64_t>> shapes_of(const Architecture& model);

/// out = the embeddings of the ids, and of the positions where those are learned. [T, C]
Values embed(const Architecture& model, const Params& params, const Batch& batch);
/// One layer: s + attention(norm(s)), then s + mlp(norm(s)), or with norms behind these. [T, C] to
/// [T, C]
Values layer(const Architecture& model, const Params& params, std::int64_t index, const Values& x,
             const Batch& batch);
/// The final norm and the head. [T, C] to [T, V]
Values logits(const Architecture& model, const Params& params, const Values& x);
/// The sum over counted targets of log(sum_v exp(logit_v)) - logit_target.
double loss_sum(const Architecture& model, const Values& logits, const Batch& batch);
/// All of it.
Values logits_of(const Architecture& model, const Params& params, const Batch& batch);

/// d f / d at, by central differences; `at` is what f reads, and is left as it was.
Values differences(Values& at, const std::function<double()>& f);

}  // namespace trireme::reference
