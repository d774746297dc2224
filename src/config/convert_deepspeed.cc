// DeepSpeed's JSON. Defaults are those of its documentation (config-json, schedulers, FusedAdam).

#include <algorithm>

#include "config/convert_draft.h"
#include "config/json_numbers.h"
#include "config/parse.h"
#include "config/problem.h"

namespace trireme {

namespace {

constexpr std::size_t kTextMax = std::size_t{1} << 20;

/// What a key or a section has no counterpart for, and why.
struct Without {
  std::string_view name;  ///< a path; of a section all below it
  std::string_view why;
};
constexpr std::string_view kLogs = "metrics.jsonl, the console and TensorBoard files say it always";
constexpr std::string_view kBuffers =
    "buffers and the overlap of transfers are arranged by themselves";
constexpr std::string_view kScaling = "bf16 needs no loss scale";
constexpr std::string_view kRecompute = "parallel.recompute alone says what is computed again";
constexpr std::string_view kMemory = "memory is laid out before the first step";
constexpr Without kWithout[] = {
    {"activation_checkpointing", kRecompute},
    {"aio", kMemory},
    {"amp", "precision.compute says the type"},
    {"autotuning", "`train plan` compares layouts"},
    {"bf16.auto_cast", kScaling},
    {"bf16.loss_scale", kScaling},
    {"checkpoint", "a checkpoint has one form here, whole state, read on any mesh"},
    {"comms_logger", kLogs},
    {"csv_monitor", kLogs},
    {"dataloader_drop_last", "the last partial window is always dropped"},
    {"disable_allgather", kBuffers},
    {"dump_state", kLogs},
    {"flops_profiler", kLogs},
    {"fp16.auto_cast", kScaling},
    {"fp16.consecutive_hysteresis", kScaling},
    {"fp16.fp16_master_weights_and_grads", "master weights are fp32 here"},
    {"fp16.hysteresis", kScaling},
    {"fp16.initial_scale_power", kScaling},
    {"fp16.loss_scale", kScaling},
    {"fp16.loss_scale_window", kScaling},
    {"fp16.min_loss_scale", kScaling},
    {"fp32_allreduce", "gradients are added up in fp32 here"},
    {"gradient_accumulation_dtype", "gradients are added up in fp32 here"},
    {"gradient_predivide_factor", "gradients are scaled where they are born"},
    {"memory_breakdown", kLogs},
    {"monitor_config", kLogs},
    {"prescale_gradients", "gradients are scaled where they are born"},
    {"timers", kLogs},
    {"wall_clock_breakdown", kLogs},
    {"wandb", kLogs},
    {"zero_allow_untested_optimizer", "every optimizer here works with every stage"},
    {"zero_force_ds_cpu_optimizer", kMemory},
    {"zero_optimization.allgather_bucket_size", kBuffers},
    {"zero_optimization.allgather_partitions", kBuffers},
    {"zero_optimization.contiguous_gradients", kBuffers},
    {"zero_optimization.elastic_checkpoint", "every checkpoint is read on any mesh"},
    {"zero_optimization.ignore_unused_parameters", kBuffers},
    {"zero_optimization.load_from_fp32_weights", "master weights are fp32 here"},
    {"zero_optimization.memory_efficient_linear", kMemory},
    {"zero_optimization.overlap_comm", kBuffers},
    {"zero_optimization.reduce_bucket_size", kBuffers},
    {"zero_optimization.reduce_scatter", kBuffers},
    {"zero_optimization.round_robin_gradients", kBuffers},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "a checkpoint has one form here, whole state, read on any mesh"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "a checkpoint has one form here, whole state, read on any mesh"},
    {"zero_optimization.stage3_max_live_parameters", kBuffers},
    {"zero_optimization.stage3_max_reuse_distance", kBuffers},
    {"zero_optimization.stage3_module_granularity_threshold", kBuffers},
    {"zero_optimization.stage3_param_persistence_threshold", kBuffers},
    {"zero_optimization.stage3_prefetch_bucket_size", kBuffers},
    {"zero_optimization.sub_group_size", kBuffers},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kBuffers},
};

/// Read by code, or with their parents.
constexpr std::string_view kRead[] = {
    "bf16.enabled",
    "communication_data_type",
    "data_types.grad_accum_dtype",
    "fp16.enabled",
    "gradient_clipping",
    "optimizer.params.adam_lr",
    "optimizer.params.adam_w_mode",
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.lr",
    "optimizer.params.momentum",
    "optimizer.params.muon_lr",
    "optimizer.params.torch_adam",
    "optimizer.params.weight_decay",
    "optimizer.type",
    "pipeline.partition",
    "scheduler.params.cos_min_ratio",
    "scheduler.params.total_num_steps",
    "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_min_ratio",
    "scheduler.params.warmup_num_steps",
    "scheduler.params.warmup_type",
    "scheduler.type",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
    "zero_optimization.cpu_offload",
    "zero_optimization.cpu_offload_params",
    "zero_optimization.mics_shard_size",
    "zero_optimization.zero_hpz_partition_size",
};

bool is_auto(const Json* value) { return value != nullptr && *value == Json("auto"); }

class DeepSpeedConfig {
 public:
  DeepSpeedConfig(const Json& json, std::string_view source, ConversionDraft& draft)
      : json_(json), source_(source), draft_(draft) {}

  void convert() {
    for (const auto& [name, value] : json_.as_object()) walk(name, value);
    if (known_ == 0) {
      throw ConfigError("{}: holds no key of DeepSpeed's config (such as train_batch_size)",
                        source_);
    }
    convert_optimizer();
    convert_scheduler();
    convert_precision();
    convert_memory();
    // Its sequence parallelism is Ulysses'.
    if (draft_.integer("parallel.context").value_or(1) > 1)
      draft_.set("parallel.context_method", "ulysses", "sequence_parallel_size");
  }

 private:
  void walk(const std::string& path, const Json& value) {
    const auto without = std::find_if(std::begin(kWithout), std::end(kWithout),
                                      [&](const Without& one) { return one.name == path; });
    const bool read = std::find(std::begin(kRead), std::end(kRead), path) != std::end(kRead);
    if (read || without != std::end(kWithout)) {
      ++known_;
      if (!read) draft_.nothing(path, without->why);
      return;
    }
    if (const Field* field = find_field_of_other(&OtherNames::deepspeed, path)) {
      ++known_;
      return take(*field, path, value);
    }
    const bool section = value.is_object() && !value.as_object().empty() && is_section(path);
    if (!section) return draft_.unknown(path);
    for (const auto& [name, inner] : value.as_object()) walk(path + "." + name, inner);
  }

  static bool is_section(const std::string& path) {
    const std::string prefix = path + ".";
    const auto under = [&](std::string_view name) { return name.starts_with(prefix); };
    return std::any_of(std::begin(kRead), std::end(kRead), under) ||
           std::any_of(std::begin(kWithout), std::end(kWithout),
                       [&](const Without& one) { return under(one.name); }) ||
           std::any_of(fields().begin(), fields().end(), [&](const Field& field) {
             return (" " + std::string(field.row.peers.deepspeed)).find(" " + prefix) !=
                    std::string::npos;
           });
  }

  void leave_out_auto(const std::string& path, std::string_view ours) {
    draft_.remark("{} is \"auto\", which the Trainer of transformers fills in: left out", path);
    draft_.miss(std::string(ours), path + " is \"auto\"");
  }

  void take(const Field& field, const std::string& path, const Json& value) {
    if (is_auto(&value)) return leave_out_auto(path, field.path);
    RunConfig scratch;
    if (!field.assign(value, scratch)) fault(path, value, field.legal);
    draft_.set(field.path, value, path);
  }

  [[noreturn]] void fault(std::string_view path, const Json& value, std::string_view legal) const {
    throw ConfigError("{}: {}: is {}, which is not {}", source_, path, shown(value), legal);
  }

  [[nodiscard]] const Json* find(std::string_view path) const {
    const Json* at = &json_;
    while (at != nullptr && !path.empty()) {
      const auto dot = std::min(path.find('.'), path.size());
      at = at->find(path.substr(0, dot));
      path.remove_prefix(std::min(path.size(), dot + 1));
    }
    return at != nullptr && at->is_null() ? nullptr : at;
  }
  /// A number, `otherwise` where it is absent; nothing where it is "auto", which is reported.
  std::optional<double> number(const char* path, double otherwise, std::string_view ours) {
    const Json* value = find(path);
    if (value == nullptr) return otherwise;
    if (is_auto(value)) {
      leave_out_auto(path, ours);
      return std::nullopt;
    }
    const auto real = finite_number(*value);
    if (!real) fault(path, *value, "a number");
    return real;
  }
  std::string word(const char* path, const char* otherwise) const {
    const Json* value = find(path);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) fault(path, *value, "a string");
    return value->as_string();
  }
  bool truth(const char* path, bool otherwise) {
    const Json* value = find(path);
    if (value == nullptr) return otherwise;
    if (is_auto(value)) {
      leave_out_auto(path, "precision.compute");
      return false;
    }
    if (!value->is_bool()) fault(path, *value, "true or false");
    return value->as_bool();
  }
  void set_number(const char* from, const char* path, double otherwise) {
    if (const auto value = number(from, otherwise, path))
      draft_.set(path, *value, find(from) == nullptr ? std::string(from) + " (default)" : from);
  }

  void convert_optimizer() {
    set_number("gradient_clipping", "optimizer.clip_grad_norm", 0);
    if (find("optimizer") == nullptr) {
      draft_.miss("optimizer.lr", "the file has no optimizer: it was made by the program");
      return;
    }
    const std::string type = word("optimizer.type", "Adam");
    const bool decoupled =
        type == "AdamW" || (type == "Adam" && truth("optimizer.params.adam_w_mode", true));
    const bool lion = type == "Lion" || type == "FusedLion" || type == "DeepSpeedCPULion";
    const bool muon = type == "Muon";
    if (!decoupled && !lion && !muon)
      draft_.remark("optimizer.type {} is not in this version: AdamW holds", type);
    draft_.set("optimizer.kind", muon ? "muon" : lion ? "lion" : "adamw", "optimizer.type");
    if (find("optimizer.params.lr") != nullptr)
      set_number("optimizer.params.lr", "optimizer.lr", 0);
    if (muon) convert_muon();
    const Json* betas = find("optimizer.params.betas");
    if (is_auto(betas)) {
      leave_out_auto("optimizer.params.betas", "optimizer.betas");
    } else {
      const Json value = betas == nullptr ? Json(Json::Array{Json(0.9), Json(muon   ? 0.95
                                                                             : lion ? 0.99
                                                                                    : 0.999)})
                                          : *betas;
      RunConfig scratch;
      if (!find_field("optimizer.betas")->assign(value, scratch))
        fault("optimizer.params.betas", value, "two numbers from 0 up and below 1");
      draft_.set("optimizer.betas", value, "optimizer.params.betas");
    }
    if (!lion) set_number("optimizer.params.eps", "optimizer.eps", muon ? 1e-10 : 1e-8);
    set_number("optimizer.params.weight_decay", "optimizer.weight_decay", 0);
  }

  void convert_muon() {
    if (find("optimizer.params.adam_lr") != nullptr)
      set_number("optimizer.params.adam_lr", "optimizer.lr", 0);
    draft_.remark(
        "optimizer.params.muon_lr (or lr): optimizer.matrix_lr is left out, of which a matrix's "
        "step is 0.2 sqrt(max(rows, columns)) times here, sqrt(max(1, rows / columns)) in "
        "DeepSpeed");
    const auto momentum = number("optimizer.params.momentum", 0.95, "optimizer.kind");
    if (momentum && *momentum != 0.95)
      draft_.remark("optimizer.params.momentum {}: it is 0.95 here", *momentum);
  }

  void convert_scheduler() {
    const std::string type = word("scheduler.type", "");
    if (type.empty()) {
      draft_.remark("no scheduler: lr_schedule.kind is constant unless the program made one");
      draft_.set("lr_schedule.kind", "constant", "no scheduler");
      return;
    }
    const bool cosine = type == "WarmupCosineLR", decay = type == "WarmupDecayLR";
    if (!cosine && !decay && type != "WarmupLR") {
      draft_.remark(
          "scheduler.type {} has no counterpart: lr_schedule is left out, and cosine holds", type);
      return;
    }
    draft_.set("lr_schedule.kind",
               cosine  ? "cosine"
               : decay ? "linear"
                       : "constant",
               "scheduler.type");
    set_steps("scheduler.params.warmup_num_steps", "lr_schedule.warmup_steps", 1000);
    if (cosine || decay) {
      set_steps("scheduler.params.total_num_steps", "lr_schedule.decay_end_step", std::nullopt);
      if (const Json* end = draft_.find("lr_schedule.decay_end_step"))
        draft_.miss("run.steps", fmt::format("the schedule's length is {}", end->dump()));
    }
    cosine ? convert_cosine() : convert_peak(decay);
    if (word("scheduler.params.warmup_type", "log") == "log")
      draft_.remark("scheduler.params.warmup_type log (its default): the warm-up here is linear");
  }

  /// WarmupLR and WarmupDecayLR have their own peak. The latter ends where its warm-up began.
  void convert_peak(bool decay) {
    if (const auto low = number("scheduler.params.warmup_min_lr", 0, "lr_schedule.min_lr");
        low && *low != 0) {
      if (decay) draft_.set("lr_schedule.min_lr", *low, "scheduler.params.warmup_min_lr");
      draft_.remark(
          "scheduler.params.warmup_min_lr {} is {}: the warm-up begins at lr / warmup_steps", *low,
          decay ? "where the decay ends" : "left out");
    }
    set_number("scheduler.params.warmup_max_lr", "optimizer.lr", 0.001);
  }

  void convert_cosine() {
    const auto ratio = number("scheduler.params.cos_min_ratio", 0.0001, "lr_schedule.min_lr");
    const Json* lr = draft_.find("optimizer.lr");
    if (ratio && lr != nullptr) {
      draft_.set("lr_schedule.min_lr", *ratio * lr->as_double(), "scheduler.params.cos_min_ratio");
    } else if (ratio) {
      draft_.remark(
          "scheduler.params.cos_min_ratio {}: lr_schedule.min_lr is so much of optimizer.lr",
          *ratio);
    }
    if (const auto low = number("scheduler.params.warmup_min_ratio", 0, "lr_schedule.min_lr");
        low && *low != 0) {
      draft_.remark(
          "scheduler.params.warmup_min_ratio {} is left out: the warm-up begins at "
          "lr / warmup_steps",
          *low);
    }
  }

  void set_steps(const char* from, const char* path, std::optional<std::int64_t> otherwise) {
    const Json* value = find(from);
    if (is_auto(value)) return leave_out_auto(from, path);
    if (value == nullptr) {
      if (otherwise) draft_.set(path, *otherwise, std::string(from) + " (default)");
      return;
    }
    const auto whole = exact_integer(*value);
    if (!whole) fault(from, *value, "a whole number");
    draft_.set(path, *whole, from);
  }

  void convert_precision() {
    const bool bf16 = truth("bf16.enabled", false), fp16 = truth("fp16.enabled", false);
    if (bf16 && fp16)
      draft_.remark("bf16.enabled and fp16.enabled contradict each other: bf16 is taken");
    if (fp16 && !bf16)
      draft_.remark("fp16.enabled has no counterpart: bf16 is taken, which needs no loss scale");
    if (bf16 || fp16) {
      draft_.set("precision.compute", "bf16", bf16 ? "bf16.enabled" : "fp16.enabled");
    } else if (!is_auto(find("bf16.enabled")) && !is_auto(find("fp16.enabled"))) {
      draft_.set("precision.compute", "fp32", "neither bf16 nor fp16");
    }
    const std::string wire = word("communication_data_type", "");
    if (wire == "fp32" || wire == "bf16" || wire == "bfp16") {
      draft_.set("precision.wire", wire == "fp32" ? "fp32" : "bf16", "communication_data_type");
    } else if (!wire.empty()) {
      draft_.remark("communication_data_type {} is left out: fp32 holds", wire);
    }
    if (const std::string sum = word("data_types.grad_accum_dtype", "fp32"); sum != "fp32")
      draft_.remark("data_types.grad_accum_dtype {} is left out: fp32 holds", sum);
  }

  void convert_memory() {
    for (const char* name :
         {"zero_optimization.offload_optimizer", "zero_optimization.offload_param",
          "zero_optimization.cpu_offload", "zero_optimization.cpu_offload_params"}) {
      const Json* value = find(name);
      if (value == nullptr || *value == Json(false)) continue;
      const Json* device = value->find("device");
      if (device != nullptr && *device == Json("none")) continue;
      draft_.remark("{} is left out: all state stands on the device", name);
    }
    for (const char* name :
         {"zero_optimization.zero_hpz_partition_size", "zero_optimization.mics_shard_size"}) {
      const Json* value = find(name);
      const auto ranks = value == nullptr ? std::nullopt : exact_integer(*value);
      if (ranks && *ranks > 1) draft_.set("parallel.zero_group", *ranks, name);
    }
    const std::string partition = word("pipeline.partition", "parameters");
    if (partition != "parameters" && partition != "uniform")
      draft_.remark("pipeline.partition {} is left out: layers are balanced by operations",
                    partition);
  }

  const Json& json_;
  std::string_view source_;
  ConversionDraft& draft_;
  int known_ = 0;
};

}  // namespace

void convert_deepspeed(std::string_view text, std::string_view source, ConversionDraft& draft) {
  if (text.size() > kTextMax)
    throw ConfigError("{}: is {} bytes long (a config has up to 1 MiB)", source, text.size());
  std::vector<std::string> duplicates;
  JsonRules rules;
  rules.code = ExitCode::kConfig;
  rules.comments = true;
  rules.keys_max = 10000;
  rules.duplicates = &duplicates;
  const Json json = parse_json(text, source, rules);
  if (!json.is_object()) {
    throw ConfigError("{}: holds {} where DeepSpeed's config is an object", source,
                      json.kind_name());
  }
  for (const std::string& key : duplicates)
    draft.remark("{} stands twice: the last holds, as in Python", key);
  DeepSpeedConfig(json, source, draft).convert();
}

}  // namespace trireme
