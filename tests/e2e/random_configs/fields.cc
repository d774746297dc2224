// Values of single keys: legal ones that fit whatever else is said, and ones that no config takes.

#include "config/fields.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "base/file.h"
#include "config/json_numbers.h"
#include "e2e/random_configs/random_config.h"

namespace trireme {

namespace {

constexpr std::int64_t kLargest = 9007199254740991;

/// Draws a legal value, or null for "leave it out".
using Draw = std::function<Json(Dice&, const Situation&)>;

Draw one_of(std::vector<Json> values) {
  return [values = std::move(values)](Dice& dice, const Situation&) { return dice.pick(values); };
}

bool decays(const Json& config, std::initializer_list<const char*> kinds) {
  const Json *kind = value_at(config, "lr_schedule.kind"),
             *optimizer = value_at(config, "optimizer.kind");
  const bool free = optimizer != nullptr && *optimizer == Json("schedule-free");
  const std::string name = kind != nullptr ? kind->as_string() : free ? "constant" : "cosine";
  return std::any_of(kinds.begin(), kinds.end(), [&](const char* one) { return name == one; });
}

/// A group of every model's parameters, and of adapters.
Json draw_groups(Dice& dice, const Situation&) {
  Json group = Json::object();
  group["match"] = dice.pick<Json>({"weight", "*", ".w?ight"});
  if (dice.percent(50)) group["lr_scale"] = dice.pick<Json>({0, 0.5, 3});
  if (dice.percent(50)) group["weight_decay"] = dice.pick<Json>({0, 0.1});
  if (dice.percent(30)) group["trainable"] = true;
  return Json::Array{std::move(group)};
}

/// Keys of which a legal value is legal beside any other legal config. In the order of the table.
const std::vector<std::pair<std::string, Draw>>& free_fields() {
  static const std::vector<std::pair<std::string, Draw>> list = {
      {"run.seed", one_of({0, 1, 1234, kLargest, 4294967296})},
      {"run.device", one_of({"auto", "cpu"})},
      {"run.cuda_graph", one_of({"auto", "off"})},
      {"run.check_collectives", one_of({true, false})},
      {"run.threads_per_rank", one_of({0, 1, 2, 3, 8, 2.0})},
      {"run.deterministic", one_of({true, false})},
      {"run.resume", one_of({"auto", "never"})},
      {"run.exit_at_step", one_of({1, 2, 3, kLargest})},
      {"run.exit_after_minutes", one_of({30, 0.5e3, 1e7})},
      {"run.hang_timeout_seconds", one_of({0, 600, 1e7, 500.5})},
      {"run.peak_tflops", one_of({0.001, 989, 1e9})},
      {"data.seed", one_of({0, 7, kLargest})},
      {"data.document_mask", one_of({true, false})},
      {"data.mask_eod_loss", one_of({true, false})},
      {"data.scan_bytes", one_of({0, 1, 100, kLargest})},
      {"model_backend.attention", one_of({"auto", "own"})},
      {"model_backend.dropout", one_of({true, false})},
      {"optimizer.groups", draw_groups},
      {"optimizer.ema", one_of({0, 0.5, 0.9999})},
      {"optimizer.betas",
       one_of({Json::Array{0.9, 0.999}, Json::Array{0, 0}, Json::Array{0.999999, 0.0}})},
      {"optimizer.eps", one_of({1e-8, 1e-6, 1, 1e-30})},
      {"optimizer.weight_decay", one_of({0, 0.1, 10})},
      {"optimizer.clip_grad_norm", one_of({0, 1, 1e-9, 1e30})},
      {"optimizer.state", one_of({"fp32", "8bit"})},
      {"lr_schedule.kind", one_of({"cosine", "linear", "constant", "wsd"})},
      {"lr_schedule.warmup_steps", one_of({0, 1, 2, 1000000})},
      {"lr_schedule.min_lr", one_of({0, 1e-9})},
      {"precision.compute", one_of({"fp32", "bf16"})},
      {"precision.master", one_of({"fp32"})},
      {"precision.accumulate", one_of({"fp32"})},
      {"precision.wire", one_of({"fp32", "bf16"})},
      {"parallel.pipeline", one_of({1})},
      {"parallel.pipeline_schedule", one_of({"1f1b"})},
      {"parallel.virtual_stages", one_of({1})},
      {"parallel.pipeline_layers", one_of({"balanced"})},
      {"parallel.pipeline_times", one_of({nullptr})},
      {"parallel.pipeline_memory_limit", one_of({nullptr})},
      {"parallel.pipeline_group_size", one_of({1})},
      {"parallel.speculative_step", one_of({true, false})},
      {"parallel.data", [](Dice&, const Situation& s) { return Json(s.data_ranks); }},
      {"parallel.nccl_max_ctas", one_of({0, 8})},
      {"parallel.reduction_order", one_of({"rank", "library"})},
      {"parallel.recompute", one_of({"none", "selective", "full"})},
      {"checkpoint.interval_steps", one_of({0, 1, 2, kLargest})},
      {"checkpoint.interval_minutes", one_of({0, 1e-6, 1e7})},
      {"checkpoint.keep_last", one_of({0, 1, 2, 1000000})},
      {"checkpoint.keep_every_steps", one_of({0, 1, 2, kLargest})},
      {"checkpoint.async", one_of({true, false})},
      {"checkpoint.when_busy", one_of({"wait", "skip"})},
      {"checkpoint.staging_bytes", one_of({0, 1 << 20, kLargest})},
      {"checkpoint.min_free_bytes", one_of({0, 1, 4096})},
      {"checkpoint.directory", one_of({"elsewhere", "run/kept", "./deep/er/still"})},
      {"evaluation.interval_steps", one_of({0, 1, 2, kLargest})},
      {"evaluation.batches", one_of({1, 2, 5})},
      {"log.interval_steps", one_of({1, 2, kLargest})},
      {"log.tensorboard", one_of({true, false})},
      {"log.report", one_of({true, false})},
      {"log.blocks", one_of({true, false})},
      {"log.prometheus", one_of({Json::Object{{"port", 0}}, Json::Object{{"file", "run.prom"}}})},
      {"log.trace_steps",
       one_of({Json::Array{1, 1}, Json::Array{1, 2}, Json::Array{2, 1000000000000}})},
      // One that reads all, one that reads nothing, one that is gone at once.
      {"log.command", one_of({Json::Array{"cat"}, Json::Array{"sleep", "0.1"},
                              Json::Array{"sh", "-c", "exit 3"}})},
  };
  return list;
}

/// The same of the section stability. Noise is seen where there are several data ranks.
const std::vector<std::pair<std::string, Draw>>& stability_fields() {
  static const std::vector<std::pair<std::string, Draw>> list = {
      {"stability.skip_spikes", one_of({false, Json::Object{}, Json::Object{{"sigma", 0.5}},
                                        Json::Object{{"sigma", 1e-6}, {"window", 2}}})},
      {"stability.skip_steps", one_of({Json::Array{}, Json::Array{Json::Array{1, 1}},
                                       Json::Array{Json::Array{2, 2}, Json::Array{2, 1000}}})},
      {"stability.z_loss", one_of({0, 1e-4, 10})},
      {"stability.noise_scale",
       [](Dice& dice, const Situation& s) { return Json(s.data_ranks > 1 && dice.percent(50)); }},
  };
  return list;
}

/// Keys of models with experts, for those that have none: what holds without.
const std::vector<std::pair<std::string, Draw>>& expert_fields() {
  static const std::vector<std::pair<std::string, Draw>> list = {
      {"parallel.expert", one_of({1})},
      {"parallel.expert_tensor", one_of({1})},
      {"parallel.expert_placement", one_of({nullptr})},
      {"moe.balance", one_of({"auto"})},
      {"moe.aux_coefficient", one_of({nullptr})},
      {"moe.scope", one_of({"sequence"})},
      {"moe.z_loss", one_of({0})},
      {"moe.bias_rate", one_of({1e-3})},
      {"moe.dispatch", one_of({"alltoall"})},
  };
  return list;
}

/// The same for models that have some; the mesh has its own.
const std::vector<std::pair<std::string, Draw>>& fields_of_experts() {
  static const std::vector<std::pair<std::string, Draw>> list = {
      {"moe.z_loss", one_of({0, 1e-3})},
      {"moe.dispatch", one_of({"alltoall", "allgather"})},
  };
  return list;
}

/// What draw_config places itself, because several keys hang together.
constexpr const char* kPlaced[] = {"run.directory",
                                   "run.steps",
                                   "run.tokens",
                                   "run.epochs",
                                   "init.adapter",
                                   "init.weights",
                                   "lora.rank",
                                   "lora.alpha",
                                   "lora.dropout",
                                   "lora.targets",
                                   "lora.dora",
                                   "lora.rslora",
                                   "lora.base",
                                   "log.cluster",
                                   "tokenizer",
                                   "data.train",
                                   "data.validation",
                                   "data.split",
                                   "data.sequence_length",
                                   "data.order",
                                   "batch.global",
                                   "batch.micro",
                                   "batch.accumulation",
                                   "data.cache_directory",
                                   "precision.fp8",
                                   "parallel.tensor",
                                   "parallel.sequence_parallel",
                                   "parallel.context",
                                   "parallel.context_method",
                                   "parallel.zero_stage",
                                   "parallel.zero_group",
                                   "optimizer.kind",
                                   "optimizer.lr",
                                   "optimizer.matrix_lr",
                                   "lr_schedule.decay_end_step",
                                   "lr_schedule.decay_steps",
                                   "lr_schedule.decay_shape",
                                   "checkpoint.keep_best",
                                   "evaluation.watch",
                                   "evaluation.samples",
                                   "evaluation.stop_after"};

/// Values of another type than any that the field takes, and numbers at and beyond its bounds.
std::vector<Json> candidates(const Field& field) {
  std::vector<Json> list = {true,
                            "3",
                            "nonsense",
                            "",
                            Json::array(),
                            Json::object(),
                            3.7,
                            -1,
                            -0.5,
                            1e300,
                            raw("1e400"),
                            kLargest,
                            Json::Array{1, "x"},
                            Json::Array{Json::Array{0, "p"}},
                            "a\nb",
                            "ADAMW",
                            Json::Array{-1, 2}};
  const FieldRow& row = field.row;
  if (!std::isnan(row.minimum)) list.push_back(row.minimum - 1);
  if (!std::isnan(row.above)) list.push_back(row.above);
  if (!std::isnan(row.maximum)) list.push_back(row.maximum + 1);
  if (!std::isnan(row.below)) list.push_back(Json::Array{row.below, 0});
  if (!field.values.empty()) list.push_back(field.values.front() + "x");
  return list;
}

}  // namespace

std::string refusal_path(const std::string& path) {
  const std::string section = path.substr(0, path.find('.'));
  const auto& known = sections();
  const bool is_section = std::find(known.begin(), known.end(), section) != known.end();
  return is_section ? path : section;
}

void draw_free_fields(Dice& dice, Json& config, const Situation& situation) {
  if (dice.percent(10)) config["$schema"] = "schema.json";
  const int chance = dice.pick({5, 15, 40});
  for (const auto* list : {&free_fields(), &stability_fields(),
                           situation.experts ? &fields_of_experts() : &expert_fields()}) {
    for (const auto& [path, draw] : *list) {
      if (!dice.percent(chance)) continue;
      Json value = draw(dice, situation);
      if (!value.is_null()) set_at(config, path, std::move(value));
    }
  }
  if (situation.experts && dice.percent(chance)) {
    const std::string balance = dice.word({"auto", "aux", "none"});
    set_at(config, "moe.balance", balance);
    if (balance == "aux" && dice.percent(50))
      set_at(config, "moe.aux_coefficient", dice.pick({0.0, 0.1}));
  }
  if (dice.percent(chance)) {
    const Json* schedule = value_at(config, "lr_schedule.kind");
    const bool constant = schedule == nullptr || *schedule == Json("constant");
    std::vector<std::string> kinds = {"adamw", "muon"};
    if (value_at(config, "optimizer.eps") == nullptr) {
      kinds.push_back("lion");
      if (value_at(config, "optimizer.betas") == nullptr) kinds.push_back("adafactor");
    }
    if (constant && value_at(config, "optimizer.ema") == nullptr) kinds.push_back("schedule-free");
    const std::string kind = dice.pick(kinds);
    set_at(config, "optimizer.kind", kind);
    if (kind == "muon" && dice.percent(50))
      set_at(config, "optimizer.matrix_lr", dice.pick<Json>({0, 1e-3, 0.02, 1e-30}));
  }
  // What has a meaning for some kinds of schedule alone.
  const Json* given = value_at(config, "lr_schedule.warmup_steps");
  const std::int64_t warmup = given == nullptr ? 0 : given->as_integer();
  if (decays(config, {"cosine", "linear"}) && dice.percent(chance))
    set_at(config, "lr_schedule.decay_end_step", warmup + dice.pick<std::int64_t>({1, 2, 1000}));
  if (decays(config, {"wsd"})) {
    if (situation.has_steps && dice.percent(50))
      set_at(config, "lr_schedule.decay_steps", dice.between(1, situation.steps));
    if (dice.percent(50))
      set_at(config, "lr_schedule.decay_shape", dice.word({"linear", "sqrt", "cosine"}));
  }
}

void draw_fp8(Dice& dice, Json& config) {
  const Json* tensor_given = value_at(config, "parallel.tensor");
  const std::int64_t tensor = tensor_given == nullptr ? 1 : tensor_given->as_integer();
  const auto size = [&](const char* name) {
    const Json* model = config.find("model");
    const Json* value = model == nullptr || !model->is_object() ? nullptr : model->find(name);
    return value == nullptr || !value->is_integer() ? 0 : value->as_integer();
  };
  const std::int64_t head = size("head_dim"), ffn = size("intermediate_size"),
                     layers = size("num_hidden_layers");
  const Json* cut = value_at(config, "parallel.expert_tensor");
  const std::int64_t expert = size("moe_intermediate_size"),
                     expert_tensor = cut == nullptr ? 1 : cut->as_integer();
  const auto sixteens = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return size(name) % 16 == 0; });
  };
  // Heads of 16 are so on every rank.
  const bool heads = size("kv_lora_rank") > 0
                         ? sixteens({"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim",
                                     "qk_rope_head_dim", "v_head_dim"})
                         : head > 0 && head % 16 == 0;
  const bool fits = heads && size("hidden_size") > 0 && size("hidden_size") % 16 == 0 && ffn > 0 &&
                    ffn % (16 * tensor) == 0 && expert % (16 * expert_tensor) == 0 &&
                    size("shared_expert_intermediate_size") % (16 * tensor) == 0;
  if (!fits || !dice.percent(70)) return;
  set_at(config, "precision.compute", "fp8");
  if (dice.percent(30)) return;
  Json fp8 = Json::object();
  if (dice.percent(70)) fp8["recipe"] = dice.word({"tensor", "block"});
  if (dice.percent(50)) fp8["gradients"] = dice.word({"e5m2", "e4m3"});
  const std::int64_t first = dice.between(0, layers - 1);
  if (dice.percent(40))
    fp8["bf16_layers"] = Json::Array{first, dice.between(0, layers - 1 - first)};
  set_at(config, "precision.fp8", std::move(fp8));
}

namespace {

/// Whether the head of these weights is no embedding. Checkpoints are of a llama.
bool have_own_head(const std::filesystem::path& weights) {
  const std::filesystem::path path = weights / "config.json";
  if (!std::filesystem::exists(path)) return true;
  const Json config = parse_json(read_file(path), path.string());
  const Json* const tied = config.find("tie_word_embeddings");
  return tied != nullptr && *tied == Json(false);
}

}  // namespace

void draw_adapters(Dice& dice, Json& config, const Situation& situation) {
  const Json* const weights = value_at(config, "init.weights");
  if (weights == nullptr || !dice.percent(50)) return;
  const bool own_head = have_own_head(weights->as_string());  // before the config moves
  set_at(config, "lora.rank", dice.pick({1, 2, 3, 8, 33}));
  if (dice.percent(40)) set_at(config, "lora.alpha", dice.pick<Json>({1, 0.5, 16}));
  if (dice.percent(30)) set_at(config, "lora.rslora", dice.percent(50));
  if (dice.percent(30)) set_at(config, "lora.dora", dice.percent(50));
  if (dice.percent(20)) set_at(config, "lora.targets", Json::array());
  if (own_head && dice.percent(40)) set_at(config, "lora.targets", Json::Array{"lm_head"});
  if (dice.percent(40)) set_at(config, "lora.dropout", dice.pick({0.0, 0.05, 0.9}));
  const Json* compute = value_at(config, "precision.compute");
  std::vector<std::string> bases = {"compute"};
  if (compute == nullptr || *compute == Json("fp32")) bases.emplace_back("fp32");
  if (situation.world == 1) bases.emplace_back("nf4");  // a mesh may cut its blocks
  if (dice.percent(50)) set_at(config, "lora.base", dice.pick(bases));
}

void draw_watching(Dice& dice, Json& config, const Situation& situation) {
  if (value_at(config, "evaluation.batches") == nullptr)
    set_at(config, "evaluation.batches", dice.between(1, 4));
  const Json* validation = value_at(config, "data.validation");
  const Json* split = value_at(config, "data.split");
  if (validation != nullptr || (split != nullptr && *split != Json("1"))) {
    if (dice.percent(30)) set_at(config, "checkpoint.keep_best", dice.percent(80));
    const Json* interval = value_at(config, "evaluation.interval_steps");
    // A run makes two steps here, which so few evaluations do not end.
    if (interval != nullptr && *interval != Json(0) && dice.percent(50))
      set_at(config, "evaluation.stop_after", dice.pick<Json>({0, 2, 3, 1000, 1'000'000'000}));
  }
  if (validation != nullptr && validation->is_object() && dice.percent(50)) {
    std::vector<std::string> names;
    for (const Json::Member& one : validation->as_object()) names.push_back(one.first);
    set_at(config, "evaluation.watch", dice.pick(names));
  }
  // Prompts need the ids of a tokenizer; 64 more tokens, positions where these are learned.
  const bool ids = !situation.synthetic && situation.family != "weights";
  const bool positions = situation.family != "gpt2" || situation.positions > 90;
  if (!ids || !positions || !dice.percent(15)) return;
  Json prompts = Json::array();
  for (std::int64_t count = dice.between(0, 2); count > 0; --count)
    prompts.push_back(dice.word({"stroke", " ", "a\nb \"c\"", "\xc3\xa9t\xc3\xa9 7919"}));
  set_at(config, "evaluation.samples", std::move(prompts));
}

void draw_units(Dice& dice, Json& config) {
  for (const Field& field : fields()) {
    const Json* value = value_at(config, field.path);
    if (field.row.plain || value == nullptr || !value->is_integer() || !dice.percent(30)) continue;
    const std::int64_t number = value->as_integer();
    if (field.json_type() != "integer" || number < 0 || number > 1'000'000'000'000) continue;
    const bool bytes = field.row.unit == "bytes";
    const std::int64_t thousand = bytes && number % 1024 == 0 ? 1024 : 1000;
    const char* const unit = !bytes ? "k" : thousand == 1024 ? "KiB" : "KB";
    // Whole for bytes, which are rounded down; counts may have a fraction.
    if (bytes && number % thousand != 0) continue;
    const std::string text = number % thousand == 0 ? fmt::format("{}{}", number / thousand, unit)
                                                    : fmt::format("{}.{:03} {}", number / thousand,
                                                                  number % thousand, unit);
    set_at(config, field.path, text);
  }
}

std::set<std::string> drawn_fields() {
  std::set<std::string> paths(std::begin(kPlaced), std::end(kPlaced));
  for (const auto* list : {&free_fields(), &stability_fields(), &expert_fields()})
    for (const auto& [path, draw] : *list) paths.insert(path);
  return paths;
}

std::string illegal_value(Dice& dice, std::string_view path) {
  const Field& field = *find_field(path);
  std::vector<Json> list;
  for (const Json& value : candidates(field)) {
    RunConfig scratch;
    // A raw part stands for a number that no type holds.
    if (text_of(value) != value.dump() || !field.assign(value, scratch)) list.push_back(value);
  }
  return text_of(dice.pick(list));
}

}  // namespace trireme
