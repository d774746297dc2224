#include "config/aliases.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <vector>

#include "base/nearest_word.h"
#include "config/fields.h"
#include "config/problem.h"

namespace trireme {

namespace {

struct Alias {
  std::string_view name, path;
};

// Spellings that no column of the field table holds: sections of other systems, nanoGPT's and
// llm.c's names, abbreviations, and what people write from memory.
constexpr Alias kMore[] = {
    {"activation_checkpoint", "parallel.recompute"},
    {"adam_beta_1", "optimizer.betas"},
    {"adam_beta_2", "optimizer.betas"},
    {"amp", "precision.compute"},
    {"attn_implementation", "model_backend.attention"},
    {"batch_size", "batch.global"},
    {"bf16", "precision.compute"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"ckpt_dir", "checkpoint.directory"},
    {"ckpt_interval", "checkpoint.interval_steps"},
    {"context_length", "data.sequence_length"},
    {"context_parallel_size", "parallel.context"},
    {"cp", "parallel.context"},
    {"cp_size", "parallel.context"},
    {"data_dir", "data.train"},
    {"data_parallel_size", "parallel.data"},
    {"data_path", "data.train"},
    {"dataset", "data.train"},
    {"decay_iters", "lr_schedule.decay_end_step"},
    {"decay_lr", "lr_schedule.kind"},
    {"device", "run.device"},
    {"dp", "parallel.data"},
    {"dp_size", "parallel.data"},
    {"dtype", "precision.compute"},
    {"ep", "parallel.expert"},
    {"ep_size", "parallel.expert"},
    {"early_stopping", "evaluation.stop_after"},
    {"ema_decay", "optimizer.ema"},
    {"epochs", "run.epochs"},
    {"eps", "optimizer.eps"},
    {"eval_batches", "evaluation.batches"},
    {"eval_interval", "evaluation.interval_steps"},
    {"eval_iters", "evaluation.batches"},
    {"etp", "parallel.expert_tensor"},
    {"expert_parallel_size", "parallel.expert"},
    {"expert_tensor_parallel_size", "parallel.expert_tensor"},
    {"fp16", "precision.compute"},
    {"fp8", "precision.compute"},
    {"fsdp", "parallel.zero_stage"},
    {"global_batch", "batch.global"},
    {"grad_accum", "batch.accumulation"},
    {"grad_accum_steps", "batch.accumulation"},
    {"grad_clip", "optimizer.clip_grad_norm"},
    {"gradient_accumulation", "batch.accumulation"},
    {"gradient_clip_val", "optimizer.clip_grad_norm"},
    {"job", "run"},
    {"learning_rate", "optimizer.lr"},
    {"local_batch_size", "batch.micro"},
    {"log_interval", "log.interval_steps"},
    {"lr_decay_iters", "lr_schedule.decay_end_step"},
    {"lr_decay_steps", "lr_schedule.decay_end_step"},
    {"lr_scheduler", "lr_schedule"},
    {"lr_scheduler_kwargs", "lr_schedule"},
    {"max_iters", "run.steps"},
    {"max_length", "data.sequence_length"},
    {"max_lr", "optimizer.lr"},
    {"max_tokens", "run.tokens"},
    {"metrics", "log"},
    {"micro_batch", "batch.micro"},
    {"min_learning_rate", "lr_schedule.min_lr"},
    {"mixed_precision", "precision.compute"},
    {"num_epochs", "run.epochs"},
    {"num_steps", "run.steps"},
    {"num_train_steps", "run.steps"},
    {"num_workers", "run.threads_per_rank"},
    {"out_dir", "run.directory"},
    {"output", "run.directory"},
    {"parallelism", "parallel"},
    {"patience", "evaluation.stop_after"},
    {"per_device_batch_size", "batch.micro"},
    {"pipeline_parallel_size", "parallel.pipeline"},
    {"pp", "parallel.pipeline"},
    {"pp_size", "parallel.pipeline"},
    {"profiling", "log.trace_steps"},
    {"prometheus", "log.prometheus"},
    {"random_seed", "run.seed"},
    {"resume", "run.resume"},
    {"save_best", "checkpoint.keep_best"},
    {"save_dir", "run.directory"},
    {"scheduler", "lr_schedule"},
    {"seq_len", "data.sequence_length"},
    {"sequence_length", "data.sequence_length"},
    {"skip_step_on_spikes", "stability.skip_spikes"},
    {"tensor_parallel_size", "parallel.tensor"},
    {"tensorboard", "log.tensorboard"},
    {"threads", "run.threads_per_rank"},
    {"total_batch_size", "batch.global"},
    {"total_steps", "run.steps"},
    {"total_tokens", "run.tokens"},
    {"tp", "parallel.tensor"},
    {"tp_size", "parallel.tensor"},
    {"train", "data.train"},
    {"train_range_to_skip", "stability.skip_steps"},
    {"train_data", "data.train"},
    {"train_steps", "run.steps"},
    {"train_tokens", "run.tokens"},
    {"training", "run"},
    {"val_data", "data.validation"},
    {"valid_data", "data.validation"},
    {"validation_data", "data.validation"},
    {"vpp", "parallel.virtual_stages"},
    {"wandb", "log.command"},
    {"wandb_project", "log.command"},
    {"warmup", "lr_schedule.warmup_steps"},
    {"warmup_iters", "lr_schedule.warmup_steps"},
    {"warmup_ratio", "lr_schedule.warmup_steps"},
    {"wd", "optimizer.weight_decay"},
    {"z_loss_multiplier", "stability.z_loss"},
    {"zero", "parallel.zero_stage"},
    {"zero_optimization", "parallel.zero_stage"},
    // Of the model.
    {"ffn_hidden_size", "model.intermediate_size"},
    {"hidden_size", "model.hidden_size"},
    {"kv_channels", "model.head_dim"},
    {"moe_ffn_hidden_size", "model.moe_intermediate_size"},
    {"moe_router_topk", "model.num_experts_per_tok"},
    {"n_embd", "model.hidden_size"},
    {"n_head", "model.num_attention_heads"},
    {"n_layer", "model.num_hidden_layers"},
    {"num_attention_heads", "model.num_attention_heads"},
    {"num_experts", "model.num_experts"},
    {"num_hidden_layers", "model.num_hidden_layers"},
    {"num_layers", "model.num_hidden_layers"},
    {"num_query_groups", "model.num_key_value_heads"},
    {"rotary_base", "model.rope_theta"},
    {"vocab_size", "model.vocab_size"},
};

std::string normalised(std::string_view name) {
  while (name.starts_with('-')) name.remove_prefix(1);
  std::string out(name);
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view last_part(std::string_view path) {
  const auto dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

void add_names(std::map<std::string, std::string, std::less<>>& map, std::string_view names,
               const std::string& path) {
  std::istringstream words{std::string(names)};
  for (std::string word; words >> word;) map.emplace(normalised(word), path);
}

/// Last keys of dotted names, where they say enough: "parallelism.tensor_parallel_degree".
void add_last_parts(std::map<std::string, std::string, std::less<>>& map) {
  std::vector<std::pair<std::string, std::string>> parts;
  for (const auto& [name, path] : map) {
    const std::string part(last_part(name));
    if (part != name && part.find('_') != std::string::npos) parts.emplace_back(part, path);
  }
  for (auto& [part, path] : parts) map.emplace(std::move(part), std::move(path));
}

}  // namespace

const std::map<std::string, std::string, std::less<>>& key_aliases() {
  static const auto aliases = [] {
    std::map<std::string, std::string, std::less<>> map;
    for (const auto& [name, path] : kMore) map.emplace(name, path);
    for (const Field& field : fields()) {
      const OtherNames& peers = field.row.peers;
      for (const auto names :
           {peers.megatron, peers.deepspeed, peers.transformers, peers.torchtitan}) {
        add_names(map, names, field.path);
      }
    }
    add_last_parts(map);
    return map;
  }();
  return aliases;
}

std::string known_key(std::string_view name) {
  const auto& aliases = key_aliases();
  const std::string wanted = normalised(name);
  for (const std::string_view part : {std::string_view(wanted), last_part(wanted)}) {
    if (find_field(part) != nullptr && part != name) return std::string(part);
    if (const auto found = aliases.find(part); found != aliases.end()) return found->second;
  }
  return "";
}

std::string nearest_key(std::string_view path) {
  if (std::string known = known_key(path); !known.empty()) return known;
  const auto& aliases = key_aliases();
  const std::string wanted = normalised(path);
  const std::string_view section = std::string_view(wanted).substr(0, wanted.find('.'));
  std::vector<std::string> of_section, paths, keys;
  for (const Field& field : fields()) {
    paths.push_back(field.path);
    keys.emplace_back(field.key());
    if (field.section() == section) of_section.emplace_back(field.key());
  }
  // Other systems' names of the section's keys, misspelt.
  for (const auto& [name, target] : aliases) {
    if (target.substr(0, target.find('.')) == section) of_section.emplace_back(last_part(name));
  }
  if (const auto key = nearest_word(last_part(wanted), of_section)) {
    const std::string own = fmt::format("{}.{}", section, *key);
    if (find_field(own) != nullptr) return own;
    for (const auto& [name, target] : aliases) {
      if (last_part(name) == *key && target.substr(0, target.find('.')) == section) return target;
    }
  }
  if (wanted.find('.') == std::string::npos) {
    std::vector<std::string> top = sections();
    top.insert(top.end(), {"model", "tokenizer"});
    if (const auto name = nearest_word(wanted, top)) return *name;
  }
  if (const auto key = nearest_word(last_part(wanted), keys)) {
    const auto at = std::find(keys.begin(), keys.end(), *key);
    return paths[static_cast<std::size_t>(at - keys.begin())];
  }
  return nearest_word(wanted, paths).value_or("");
}

}  // namespace trireme
