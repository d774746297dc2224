#include "config/value_names.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/nearest_word.h"
#include "config/json_numbers.h"
#include "config/problem.h"

namespace trireme {

namespace {

struct Meaning {
  std::string_view path, word, own;
};

// Words in lower case with '_'. A word that stands for itself needs no row.
constexpr Meaning kMeanings[] = {
    {"run.device", "gpu", "cuda"},
    {"run.device", "nvidia", "cuda"},
    {"run.device", "cuda:0", "cuda"},
    {"run.device", "host", "cpu"},
    {"run.cuda_graph", "on", "auto"},
    {"run.cuda_graph", "none", "off"},
    {"run.cuda_graph", "false", "off"},
    {"run.cuda_graph", "true", "auto"},
    {"run.resume", "false", "never"},
    {"run.resume", "true", "auto"},
    {"precision.compute", "16", "bf16"},
    {"precision.compute", "32", "fp32"},
    {"precision.compute", "16_mixed", "bf16"},
    {"precision.compute", "amp", "bf16"},
    {"precision.compute", "bf16_mixed", "bf16"},
    {"precision.compute", "bfloat16", "bf16"},
    {"precision.compute", "float", "fp32"},
    {"precision.compute", "float16", "bf16"},
    {"precision.compute", "float32", "fp32"},
    {"precision.compute", "float8", "fp8"},
    {"precision.compute", "fp16", "bf16"},
    {"precision.compute", "half", "bf16"},
    {"precision.compute", "mixed", "bf16"},
    {"precision.compute", "tf32", "fp32"},
    {"precision.wire", "bfloat16", "bf16"},
    {"precision.wire", "float32", "fp32"},
    {"precision.wire", "fp16", "bf16"},
    {"optimizer.kind", "adam", "adamw"},
    {"optimizer.kind", "adamw_8bit", "adamw"},
    {"optimizer.kind", "adamw_bnb_8bit", "adamw"},
    {"optimizer.kind", "adamw_hf", "adamw"},
    {"optimizer.kind", "adamw_torch", "adamw"},
    {"optimizer.kind", "adamw_torch_fused", "adamw"},
    {"optimizer.kind", "adamwschedulefree", "schedule-free"},
    {"optimizer.kind", "deepspeedcpulion", "lion"},
    {"optimizer.kind", "fusedadam", "adamw"},
    {"optimizer.kind", "fusedlion", "lion"},
    {"optimizer.kind", "lion_32bit", "lion"},
    {"optimizer.kind", "schedule_free_adamw", "schedule-free"},
    {"optimizer.kind", "lion_8bit", "lion"},
    {"optimizer.kind", "paged_adamw_8bit", "adamw"},
    {"optimizer.kind", "paged_lion_8bit", "lion"},
    {"optimizer.state", "8", "8bit"},
    {"optimizer.state", "8_bit", "8bit"},
    {"optimizer.state", "float32", "fp32"},
    {"optimizer.state", "int8", "8bit"},
    {"optimizer.state", "uint8", "8bit"},
    {"lr_schedule.kind", "constant_with_warmup", "constant"},
    {"lr_schedule.kind", "cosine_annealing", "cosine"},
    {"lr_schedule.kind", "cosine_with_min_lr", "cosine"},
    {"lr_schedule.kind", "linear_with_warmup", "linear"},
    {"lr_schedule.kind", "none", "constant"},
    {"lr_schedule.kind", "trapezoidal", "wsd"},
    {"lr_schedule.kind", "warmup_stable_decay", "wsd"},
    {"lr_schedule.kind", "warmupcosinelr", "cosine"},
    {"lr_schedule.kind", "warmupdecaylr", "linear"},
    {"lr_schedule.kind", "warmuplr", "constant"},
    {"lr_schedule.decay_shape", "1_sqrt", "sqrt"},
    {"lr_schedule.decay_shape", "minus_sqrt", "sqrt"},
    {"parallel.context_method", "a2a", "ulysses"},
    {"parallel.context_method", "all_gather", "allgather"},
    {"parallel.context_method", "alltoall", "ulysses"},
    {"parallel.context_method", "p2p", "ring"},
    {"parallel.pipeline_schedule", "interleaved1f1b", "interleaved"},
    {"parallel.pipeline_schedule", "interleaved_1f1b", "interleaved"},
    {"parallel.pipeline_schedule", "interleavedzerobubble", "zb-v"},
    {"parallel.pipeline_schedule", "zbvzerobubble", "zb-v"},
    {"parallel.recompute", "all", "full"},
    {"parallel.recompute", "block", "full"},
    {"parallel.recompute", "checkpoint", "full"},
    {"parallel.recompute", "false", "none"},
    {"parallel.recompute", "true", "full"},
    {"parallel.recompute", "layer", "full"},
    {"parallel.recompute", "off", "none"},
    {"parallel.recompute", "uniform", "full"},
    {"parallel.reduction_order", "mpi", "library"},
    {"parallel.reduction_order", "nccl", "library"},
    {"data.order", "cyclic", "shuffled"},
    {"data.order", "random", "shuffled"},
    {"data.order", "shuffle", "shuffled"},
    {"data.order", "single", "megatron"},
    {"moe.balance", "aux_loss", "aux"},
    {"moe.balance", "expert_bias", "bias"},
    {"moe.balance", "false", "none"},
    {"moe.balance", "global_aux_loss", "aux"},
    {"moe.balance", "seq_aux_loss", "aux"},
    {"moe.balance", "true", "aux"},
    {"moe.dispatch", "all_gather", "allgather"},
    {"moe.dispatch", "all_to_all", "alltoall"},
    {"moe.dispatch", "deepep", "alltoall"},
    {"moe.dispatch", "flex", "alltoall"},
    {"moe.scope", "batch", "global"},
    {"moe.scope", "seq", "sequence"},
    {"model_backend.attention", "eager", "own"},
    {"model_backend.attention", "flash", "own"},
    {"model_backend.attention", "flash_attention_2", "own"},
    {"model_backend.attention", "fused", "cudnn"},
    {"model_backend.attention", "sdpa", "own"},
    {"model_backend.attention", "unfused", "own"},
    {"model.hidden_act", "swiglu", "silu"},
    {"model.activation_function", "gelu", "gelu_new"},
    {"model.activation_function", "gelu_fast", "gelu_new"},
    {"model.model_type", "gpt", "gpt2"},
    {"model.model_type", "gpt2lmheadmodel", "gpt2"},
    {"model.model_type", "llama2", "llama"},
    {"model.model_type", "llama3", "llama"},
    {"model.model_type", "llamaforcausallm", "llama"},
    {"model.model_type", "qwen", "qwen2"},
    {"model.model_type", "qwen2.5", "qwen2"},
    {"model.model_type", "qwen2forcausallm", "qwen2"},
    {"model.model_type", "qwen3forcausallm", "qwen3"},
    {"model.model_type", "qwen2moeforcausallm", "qwen2_moe"},
    {"model.model_type", "qwen3moeforcausallm", "qwen3_moe"},
    {"model.model_type", "mixtralforcausallm", "mixtral"},
    {"model.model_type", "olmoeforcausallm", "olmoe"},
    {"model.model_type", "glm4moeforcausallm", "glm4_moe"},
    {"model.model_type", "deepseekv3forcausallm", "deepseek_v3"},
    {"model.model_type", "gptossforcausallm", "gpt_oss"},
    {"model.model_type", "smollm3forcausallm", "smollm3"},
    {"model.model_type", "gemma3", "gemma3_text"},
    {"model.model_type", "gemma3forcausallm", "gemma3_text"},
    {"model.model_type", "olmo2forcausallm", "olmo2"},
    {"model.model_type", "olmo3forcausallm", "olmo3"},
    {"model.model_type", "smollm", "llama"},
    {"model.model_type", "smollm2", "llama"},
    {"model.model_type", "tinyllama", "llama"},
};

std::string normalised(std::string_view word) {
  std::string out(word);
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string json_text(std::string_view word) { return Json(word).dump(); }

/// By kMeanings alone, where it is one of `words`; else "".
std::string meaning_of(std::string_view path, std::string_view word,
                       const std::vector<std::string>& words) {
  const std::string wanted = normalised(word);
  for (const Meaning& meaning : kMeanings) {
    if (meaning.path == path && meaning.word == wanted &&
        std::find(words.begin(), words.end(), meaning.own) != words.end())
      return std::string(meaning.own);
  }
  return "";
}

/// A number, or the number that a text holds.
std::optional<double> number_of(const Field& field, const Json& value) {
  if (const auto real = finite_number(value)) return real;
  if (!value.is_string() || value.as_string().empty()) return std::nullopt;
  if (const auto count = integer_with_unit(value, field.row)) return static_cast<double>(*count);
  char* end = nullptr;
  const double number = std::strtod(value.as_string().c_str(), &end);
  return *end == '\0' && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::string nearest_number(const Field& field, const Json& value) {
  const bool integer = field.json_type() == "integer";
  auto number = number_of(field, value);
  if (!number) return "";
  if (*number < field.row.minimum) *number = field.row.minimum;
  if (*number > field.row.maximum) *number = field.row.maximum;
  if (integer) *number = std::round(*number);
  const Json nearest = integer ? Json(static_cast<std::int64_t>(*number)) : Json(*number);
  RunConfig scratch;
  return field.assign(nearest, scratch) ? nearest.dump() : "";
}

std::string nearest_truth(const Json& value) {
  if (value.is_number()) return value.as_double() != 0 ? "true" : "false";
  if (!value.is_string()) return "";
  const std::string word = normalised(value.as_string());
  for (const char* yes : {"true", "yes", "on", "1"}) {
    if (word == yes) return "true";
  }
  for (const char* no : {"false", "no", "off", "0", "none"}) {
    if (word == no) return "false";
  }
  return "";
}

/// [90, 5, 5] is "90,5,5".
std::string nearest_split(const Json& value) {
  if (!value.is_array() || value.as_array().empty()) return "";
  std::string text;
  for (const Json& share : value.as_array()) {
    if (!share.is_number()) return "";
    text.append(text.empty() ? "" : ",").append(share.dump());
  }
  return json_text(text);
}

/// ["a", "b"] or [0.7, "a", 0.3, "b"], Megatron's form, as pairs.
std::string nearest_blend(const Field& field, const Json& value) {
  if (!value.is_array()) return "";
  Json pairs = Json::array();
  std::optional<double> weight;
  for (const Json& item : value.as_array()) {
    const auto number = item.is_string() ? number_of(field, item) : finite_number(item);
    if (number && !weight) {
      weight = number;
    } else if (item.is_string()) {
      pairs.push_back(Json::Array{weight.value_or(1), item});
      weight.reset();
    } else {
      return "";
    }
  }
  RunConfig scratch;
  return field.assign(pairs, scratch) ? pairs.dump() : "";
}

}  // namespace

std::string nearest_choice(std::string_view path, std::string_view word,
                           const std::vector<std::string>& words) {
  const std::string meaning = meaning_of(path, word, words);
  return meaning.empty() ? nearest_word(word, words).value_or("") : meaning;
}

std::string nearest_value(const Field& field, const Json& value) {
  if (field.path == "data.split") return nearest_split(value);
  const std::string type = field.json_type();
  if (type == "boolean") return nearest_truth(value);
  if (value.is_string() && !field.values.empty()) {
    const std::string word = nearest_choice(field.path, value.as_string(), field.values);
    return word.empty() ? "" : json_text(word);
  }
  if (value.is_bool()) {  // of a switch with more than two positions
    const std::string word =
        meaning_of(field.path, value.as_bool() ? "true" : "false", field.values);
    return word.empty() ? "" : json_text(word);
  }
  if (field.path == "data.train" || field.path == "data.validation")
    return nearest_blend(field, value);
  return type == "integer" || type == "number" ? nearest_number(field, value) : "";
}

std::string translated_value(const Field& field, std::string_view name, const Json& value) {
  RunConfig scratch;
  const std::string word = normalised(name);
  const auto ends = [&](std::string_view suffix) { return word.ends_with(suffix); };
  if (field.path == "precision.compute" && (value.is_bool() || value.is_object())) {
    const Json* enabled = value.is_object() ? value.find("enabled") : &value;
    if (enabled == nullptr || *enabled != Json(true)) return "";
    return ends("fp8") ? json_text("fp8") : json_text("bf16");
  }
  if (field.path == "optimizer.betas" && value.is_number()) {
    Json betas = field.read(scratch);
    const bool second = ends("beta2") || ends("beta_2");
    betas.as_array()[second ? 1 : 0] = value;
    return field.assign(betas, scratch) ? betas.dump() : "";
  }
  if (field.path == "parallel.zero_stage" && value.is_bool())
    return value.as_bool() ? (ends("fsdp") ? "3" : "1") : "0";
  if (ends("_minutes") || ends("_in_mins")) {
    const bool seconds = field.row.unit == "seconds";
    const auto minutes = finite_number(value);
    return minutes ? Json(seconds ? *minutes * 60 : *minutes).dump() : "";
  }
  if (field.assign(value, scratch)) return value.dump();
  return nearest_value(field, value);
}

}  // namespace trireme
