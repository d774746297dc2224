#include "config/dropout.h"

#include "base/random.h"
#include "config/model_keys.h"

namespace trireme {

namespace {

/// Of a key that may be missing or null.
double rate_of(const ModelConfig& model, std::string_view key, double otherwise) {
  const Json* rate = model.source.find(key);
  return rate == nullptr || rate->is_null() ? otherwise : rate->as_double();
}

void note_dropout(const ModelConfig& model, std::vector<std::string>& notes) {
  std::string rates;
  for (const auto& [name, value] : model.source.as_object()) {
    const ModelKey* key = find_model_key(model.family, name);
    if (key == nullptr || key->use != KeyUse::kDropout) continue;
    if (const double rate = rate_of(model, name, 0); rate > 0)
      rates += fmt::format("{}{} {}", rates.empty() ? "" : ", ", name, rate);
  }
  if (rates.empty()) return;
  notes.push_back(
      fmt::format("model: dropout is not applied ({}); model_backend.dropout applies it", rates));
}

}  // namespace

void take_dropout(RunConfig& config, std::vector<std::string>& notes) {
  ModelConfig& model = config.model;
  if (!config.model_backend.dropout) return note_dropout(model, notes);
  constexpr double kOfGpt2 = 0.1;  // transformers', also where a file does not say so
  const bool gpt2 = model.family == Family::kGpt2;
  model.dropout_key = stream_key(config.run.seed, "model.dropout");
  model.embedding_dropout = gpt2 ? rate_of(model, "embd_pdrop", kOfGpt2) : 0;
  for (LayerConfig& layer : model.layers) {
    layer.attention_dropout =
        gpt2 ? rate_of(model, "attn_pdrop", kOfGpt2) : rate_of(model, "attention_dropout", 0);
    layer.residual_dropout = gpt2 ? rate_of(model, "resid_pdrop", kOfGpt2) : 0;
  }
}

}  // namespace trireme
