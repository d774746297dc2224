#include "config/contradictions.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/nearest_word.h"
#include "config/adapters.h"
#include "config/fields.h"

namespace trireme {

namespace {

class Checker {
 public:
  Checker(const Json& given, LoadedConfig& loaded)
      : given_(given), loaded_(loaded), meant_(keys_meant(loaded.problems)) {}

  /// Written in a file or on the command line, legal or not.
  [[nodiscard]] bool has(std::string_view path) const { return value(path) != nullptr; }
  /// Written, or meant by the name that it has elsewhere.
  [[nodiscard]] bool meant(const std::string& path) const {
    return has(path) || meant_.contains(path);
  }

  void report(std::string path, std::string legal, std::string message) {
    const Json* found = value(path);
    loaded_.problems.push_back({std::move(path), found == nullptr ? "nothing" : shown(*found),
                                std::move(legal), "", std::move(message)});
  }

  void run() {
    check_length();
    check_data();
    check_batch();
    check_optimizer();  // a kind has a schedule of its own
    check_schedule();
    check_precision();
    check_trace();
    check_prometheus();
    check_staging();
    check_watching();
    check_lora();
    if (loaded_.config.has_model()) loaded_.config.model.groups = loaded_.config.optimizer.groups;
    if (loaded_.config.has_model()) check_experts();
    const auto of_model = meant_.lower_bound("model.");
    const bool model_meant = of_model != meant_.end() && of_model->starts_with("model.");
    if (!has("model") && !model_meant && !meant("init.weights") &&
        loaded_.config.init.weights == "random") {
      report("model", "Hugging Face config keys, or the path of a config.json or of its directory",
             "is required unless init.weights names weights to start from");
    }
  }

 private:
  [[nodiscard]] const Json* value(std::string_view path) const {
    const auto dot = path.find('.');
    if (dot == std::string_view::npos) return given_.find(path);
    const Json* section = given_.find(path.substr(0, dot));
    return section == nullptr ? nullptr : section->find(path.substr(dot + 1));
  }

  void check_length() {
    const int count =
        (has("run.steps") ? 1 : 0) + (has("run.tokens") ? 1 : 0) + (has("run.epochs") ? 1 : 0);
    if (count == 0 && !meant("run.steps") && !meant("run.tokens") && !meant("run.epochs"))
      report("run.steps", "one of run.steps, run.tokens, run.epochs", "is required");
    if (has("run.epochs") && loaded_.config.data.train.synthetic) {
      report("run.epochs", "run.steps or run.tokens",
             "counts passes, and synthetic data have no end");
    }
    if (count < 2) return;
    for (const char* path : {"run.epochs", "run.tokens", "run.steps"}) {
      if (!has(path)) continue;
      report(path, "one of run.steps, run.tokens, run.epochs",
             "contradicts the other length of the run");
      return;
    }
  }

  void check_data() {
    if (!has("data.split")) return;
    if (has("data.validation")) {
      report("data.split", "data.split or data.validation", "stands in place of data.validation");
    }
    if (loaded_.config.data.train.synthetic) {
      report("data.split", "leave it out", "splits documents, and synthetic data has none");
    }
    if (loaded_.config.data.split && !is_split(*loaded_.config.data.split)) {
      report("data.split", R"(up to three numbers with commas, the first above 0: "969,30,1")",
             "is no list of shares");
    }
  }

  static bool is_split(const std::string& text) {
    int parts = 0;
    bool first_positive = false;
    for (std::size_t at = 0; at <= text.size(); ++parts) {
      const std::size_t end = std::min(text.find(',', at), text.size());
      const std::string part = text.substr(at, end - at);
      if (part.empty() || part.find_first_not_of("0123456789.") != std::string::npos) return false;
      if (part.find('.') != part.rfind('.') || part.front() == '.' || part.back() == '.')
        return false;
      if (parts == 0) first_positive = part.find_first_of("123456789") != std::string::npos;
      at = end + 1;
    }
    return parts <= 3 && first_positive;
  }

  void check_batch() {
    if (!meant("batch.micro") && !meant("batch.global")) {
      report("batch.micro", "batch.micro or batch.global, or both", "is required");
    }
    const auto& global = loaded_.config.batch.global;
    if (global && global->is_ramp() && has("batch.accumulation")) {
      report("batch.accumulation", "leave it out beside a ramp of batch.global",
             "is one number, and each size of the ramp has its own");
    }
  }

  void check_precision() {
    const auto& precision = loaded_.config.precision;
    if (precision.fp8 && precision.compute != ComputePrecision::kFp8) {
      report("precision.fp8", "leave it out, or precision.compute \"fp8\"",
             "says how to compute in fp8, and this run does not");
    }
  }

  /// What one kind has and another has not.
  void check_optimizer() {
    RunConfig::Optimizer& optimizer = loaded_.config.optimizer;
    const bool moments =
        optimizer.kind == OptimizerKind::kAdamW || optimizer.kind == OptimizerKind::kLion;
    if (optimizer.state == MomentType::k8bit && !moments)
      report("optimizer.state", R"("fp32", or optimizer.kind "adamw" or "lion")",
             "is of the moments of AdamW and Lion");
    if (optimizer.kind == OptimizerKind::kMuon) {
      if (!optimizer.matrix_lr) optimizer.matrix_lr = optimizer.lr;
    } else if (has("optimizer.matrix_lr")) {
      report("optimizer.matrix_lr", "leave it out, or optimizer.kind \"muon\"",
             "is of Muon's matrices, and there are none here");
      optimizer.matrix_lr.reset();
    }
    if (optimizer.kind == OptimizerKind::kScheduleFree) return check_schedule_free();
    const bool lion = optimizer.kind == OptimizerKind::kLion;
    if (!lion && optimizer.kind != OptimizerKind::kAdafactor) return;
    const auto has_none = [&](const char* path) {
      if (has(path)) {
        report(path, "leave it out, or optimizer.kind \"adamw\"",
               lion ? "is nothing of Lion's" : "is nothing of Adafactor's");
      }
    };
    if (lion && !has("optimizer.betas")) optimizer.betas = RunConfig::Optimizer::kLionBetas;
    if (!lion) has_none("optimizer.betas");
    if (!lion) optimizer.betas.reset();
    has_none("optimizer.eps");
    optimizer.eps.reset();
  }

  void check_schedule_free() {
    LrScheduleKind& schedule = loaded_.config.lr_schedule.kind;
    if (!has("lr_schedule.kind")) schedule = LrScheduleKind::kConstant;
    if (schedule != LrScheduleKind::kConstant) {
      report("lr_schedule.kind", "\"constant\", or leave it out",
             "lowers the rate, in place of which optimizer.kind \"schedule-free\" averages");
    }
    if (loaded_.config.optimizer.ema > 0) {
      report("optimizer.ema", "0, or leave it out",
             "averages weights that are an average already (optimizer.kind \"schedule-free\")");
    }
  }

  void check_schedule() {
    const auto& schedule = loaded_.config.lr_schedule;
    const bool wsd = schedule.kind == LrScheduleKind::kWsd;
    if (has("lr_schedule.decay_end_step") && (wsd || schedule.kind == LrScheduleKind::kConstant)) {
      report("lr_schedule.decay_end_step", "leave it out, or kind \"cosine\" or \"linear\"",
             "has no meaning for this kind of schedule");
    }
    if (has("lr_schedule.decay_steps") && !wsd) {
      report("lr_schedule.decay_steps", "leave it out, or kind \"wsd\"",
             "has no meaning for this kind of schedule");
    }
    if (schedule.decay_shape != DecayShape::kLinear && !wsd) {
      report("lr_schedule.decay_shape", "leave it out, or kind \"wsd\"",
             "has no meaning for this kind of schedule");
    }
    const double lr = loaded_.config.optimizer.lr;
    if (schedule.min_lr > lr && has("optimizer.lr")) {
      report("lr_schedule.min_lr", fmt::format("a number from 0 to optimizer.lr = {}", lr),
             "is above optimizer.lr, so that the rate would rise");
    }
  }

  void check_trace() {
    const auto& steps = loaded_.config.log.trace_steps;
    if (steps && (*steps)[0] > (*steps)[1]) {
      report("log.trace_steps", "[first, last] with first <= last", "ends before it begins");
    }
  }

  void check_prometheus() {
    const auto& prometheus = loaded_.config.log.prometheus;
    if (prometheus && !prometheus->port && !prometheus->file) {
      report("log.prometheus", "port, file or both, or leave it out", "says nothing of where");
    }
  }

  /// What follows an evaluation needs one.
  void check_watching() {
    const RunConfig& config = loaded_.config;
    const bool evaluates = has("data.validation") || has("data.split");
    if (config.checkpoint.keep_best && !evaluates) {
      report("checkpoint.keep_best", "data.validation or data.split beside it, or false",
             "nothing is evaluated, so that no checkpoint is the best");
    }
    if (config.evaluation.stop_after > 0 && (!evaluates || config.evaluation.interval_steps == 0)) {
      report("evaluation.stop_after",
             evaluates ? "evaluation.interval_steps above 0 beside it, or 0"
                       : "data.validation or data.split beside it, or 0",
             "nothing is evaluated before the end of the run");
    }
    if (!config.evaluation.watch) return;
    std::vector<std::string> names;
    if (config.data.validation) {
      for (const auto& [name, source] : config.data.validation->sets) {
        if (!name.empty()) names.push_back(name);
      }
    }
    if (names.empty()) {
      report("evaluation.watch", R"(leave it out, or data.validation {"name": PREFIX, ...})",
             "chooses among validation sets with names, and there are none");
    } else if (std::find(names.begin(), names.end(), *config.evaluation.watch) == names.end()) {
      loaded_.problems.push_back({"evaluation.watch", shown(*value("evaluation.watch")),
                                  fmt::format("one of {}", fmt::join(names, ", ")),
                                  nearest_word(*config.evaluation.watch, names).value_or(names[0]),
                                  "is none of the names in data.validation"});
    }
  }

  /// Written, and not what holds without it: a run's own config.json writes all.
  [[nodiscard]] bool chosen(const Field& field) const {
    return has(field.path) && field.read(loaded_.config) != field.read(RunConfig());
  }
  [[nodiscard]] bool chosen(std::string_view path) const { return chosen(*find_field(path)); }

  void check_experts() {
    const RunConfig& config = loaded_.config;
    if (!config.model.has_experts()) {
      for (const Field& field : fields()) {
        if ((field.section() == "moe" || field.path.starts_with("parallel.expert")) &&
            chosen(field)) {
          report(field.path, "leave it out, or a model with experts",
                 fmt::format("is of experts, and this {} has none", name_of(config.model.family)));
        }
      }
      return;
    }
    if (config.moe.balance == MoeBalance::kBias && !config.model.has_router_bias()) {
      report(
          "moe.balance", R"("auto", "aux" or "none")",
          fmt::format("moves a bias of the router's choice, which the model_type {} does not have",
                      name_of(config.model.family)));
      return;
    }
    const bool aux = config.balance() == MoeBalance::kAux;
    for (const char* path : {"moe.aux_coefficient", "moe.scope"}) {
      if (!aux && chosen(path))
        report(path, R"(leave it out, or moe.balance "aux")",
               "is of a loss that this run does not add");
    }
    if (config.balance() == MoeBalance::kBias && config.moe.bias_rate > 0 &&
        config.parallel.speculative_step) {
      report("parallel.speculative_step", R"(false, or moe.balance "aux" or "none")",
             "updates before all ranks have counted the tokens of each expert, and the bias of "
             "the choice moves by those (moe.balance)");
    }
    if (config.balance() != MoeBalance::kBias && chosen("moe.bias_rate")) {
      report("moe.bias_rate", R"(leave it out, or moe.balance "bias")",
             "is of a bias that this run does not move");
    }
  }

  void check_lora() {
    RunConfig& config = loaded_.config;
    const RunConfig::Lora& lora = config.lora;
    if (!lora.given()) {
      for (const Field& field : fields()) {
        const bool of_adapters = field.section() == "lora" || field.path == "init.adapter";
        if (!of_adapters || field.path == "lora.rank" || !chosen(field)) continue;
        if (!meant("lora.rank"))
          report("lora.rank", "an integer of at least 1",
                 fmt::format("is required where {} is given", field.path));
        return;
      }
      return;
    }
    if (config.init.weights == "random" && !meant("init.weights")) {
      report("init.weights", "a Hugging Face directory or a checkpoint",
             "is required with lora: adapters stand beside weights that are trained already");
    }
    const bool fp8 = config.precision.compute == ComputePrecision::kFp8;
    if (lora.base == LoraBase::kFp32 &&
        config.precision.compute.value_or(ComputePrecision::kFp32) != ComputePrecision::kFp32) {
      report("lora.base", R"("compute", or precision.compute "fp32")",
             "keeps the weights in fp32, and products read them in another type");
    }
    if (lora.base == LoraBase::kNf4 && fp8) {
      report("lora.base", R"("compute", or precision.compute "bf16" or "fp32")",
             "keeps the weights in four bits, and products of fp8 read them in fp8");
    }
    if (config.moe.balance == MoeBalance::kBias) {
      report("moe.balance", R"("auto", "aux" or "none")",
             "moves a bias of the router, which stands still beside adapters (lora)");
    }
    if (config.has_model() && !has_problem_in(loaded_.problems, "lora"))
      take_adapters(config, loaded_.problems);
  }

  void check_staging() {
    constexpr std::int64_t kStagingBytesMin = RunConfig::Checkpoint::kStagingBytesMin;
    const std::int64_t bytes = loaded_.config.checkpoint.staging_bytes;
    if (bytes > 0 && bytes < kStagingBytesMin) {
      report("checkpoint.staging_bytes", fmt::format("0, or at least {}", kStagingBytesMin),
             "is too little: what is written at once is at most half of it");
    }
  }

  const Json& given_;
  LoadedConfig& loaded_;
  const std::set<std::string> meant_;
};

}  // namespace

void check_contradictions(const Json& given, LoadedConfig& loaded) { Checker(given, loaded).run(); }

}  // namespace trireme
