#include "config/latent_parse.h"

#include <cmath>

namespace trireme {

namespace {

constexpr KeyReader::Integers kRank = {1, std::int64_t{1} << 20};
// Two of them together are within what a head's size may be.
constexpr KeyReader::Integers kDim = {1, 1 << 13};
constexpr KeyReader::Integers kRotatedDim = {2, kDim.to};

bool is_null(const Json& keys, std::string_view key) {
  const Json* value = keys.find(key);
  return value != nullptr && value->is_null();
}

/// null: queries come of the input. To transformers 0 is another thing: queries of zeros.
std::int64_t read_q_rank(KeyReader& reader, const Json& keys, std::int64_t otherwise) {
  constexpr std::string_view kKey = "q_lora_rank";
  if (is_null(keys, kKey)) return 0;
  if (const Json* given = keys.find(kKey); given != nullptr && *given == Json(0)) {
    reader.report(
        kKey, fmt::format("an integer from 1 to {}, or null: one product makes queries", kRank.to),
        "null", "is no rank");
    return otherwise;
  }
  return reader.integer(kKey, kRank).value_or(otherwise);
}

/// A key that transformers saves beside those from which it follows.
void check_derived(KeyReader& reader, std::string_view key, std::int64_t value,
                   std::string_view from) {
  const auto given = reader.integer(key, {1, 2 * kDim.to});
  if (!given || *given == value) return;
  reader.report(key, fmt::format("{} = {}, or leave it out", from, value), std::to_string(value),
                fmt::format("contradicts {}, which it follows from for this model_type", from));
}

void check_even(KeyReader& reader, std::string_view key, std::int64_t dim, std::string_view why) {
  if (dim % 2 == 0) return;
  reader.report(key, "an even number", std::to_string(dim + 1),
                fmt::format("is {}, and {}", dim, why));
}

}  // namespace

LatentConfig read_latent(KeyReader& reader, const Json& keys, const LatentConfig& otherwise) {
  LatentConfig latent = otherwise;
  latent.q_rank = read_q_rank(reader, keys, otherwise.q_rank);
  latent.kv_rank = reader.integer("kv_lora_rank", kRank).value_or(otherwise.kv_rank);
  latent.nope_dim = reader.integer("qk_nope_head_dim", kDim).value_or(otherwise.nope_dim);
  latent.rope_dim = reader.integer("qk_rope_head_dim", kRotatedDim).value_or(otherwise.rope_dim);
  latent.value_dim = reader.integer("v_head_dim", kDim).value_or(otherwise.value_dim);
  // transformers takes null for false.
  latent.interleaved = reader.boolean("rope_interleave")
                           .value_or(otherwise.interleaved && !is_null(keys, "rope_interleave"));
  check_derived(reader, "head_dim", latent.rope_dim, "qk_rope_head_dim");
  check_derived(reader, "qk_head_dim", latent.query_dim(), "qk_nope_head_dim + qk_rope_head_dim");
  return latent;
}

void check_latent(KeyReader& reader, const AttentionConfig& attention) {
  const LatentConfig& latent = *attention.latent;
  check_even(reader, "qk_rope_head_dim", latent.rope_dim, "rotary embedding turns pairs of dims");
  check_even(reader, "qk_nope_head_dim", latent.nope_dim,
             "attention takes keys of whole pairs of dims");
  check_even(reader, "v_head_dim", latent.value_dim,
             "attention takes values of whole pairs of dims");
  if (attention.kv_heads == attention.heads) return;
  const bool missing = reader.find("num_key_value_heads") == nullptr;
  reader.report(
      "num_key_value_heads", fmt::format("num_attention_heads = {}, or null", attention.heads),
      std::to_string(attention.heads),
      fmt::format(
          "{} key/value heads{} for {} heads, and latents make keys and values for each head",
          attention.kv_heads, missing ? " (what transformers takes for the missing key)" : "",
          attention.heads));
}

double latent_score_scale(const LatentConfig& latent, const RopeConfig& rope) {
  const double scale = std::pow(static_cast<double>(latent.query_dim()), -0.5);
  if (rope.kind != RopeKind::kYarn || rope.mscale_all_dim == 0 || rope.factor <= 1) return scale;
  const double mscale = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
  return scale * mscale * mscale;
}

}  // namespace trireme
