#include "e2e/random_configs/judge.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "config/fields.h"
#include "config/model_keys.h"
#include "e2e/random_configs/process.h"

namespace trireme {

namespace {

// What is not run, so that a thousand configs stay a matter of minutes.
constexpr std::int64_t kMemoryMax = std::int64_t{600} << 20;
constexpr double kFlopsMax = 2e9;
// Resident memory of a run of nothing, with program, libraries, MPI and thread stacks.
constexpr std::int64_t kProgramBytes = std::int64_t{160} << 20;

std::vector<Json> lines_of(const std::filesystem::path& file) {
  std::vector<Json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, file.string()));
  return lines;
}

/// A member, or null where a line or a plan lacks it.
const Json& member(const Json& object, std::string_view key) {
  static const Json nothing;
  const Json* found = object.find(key);
  return found == nullptr ? nothing : *found;
}

std::string text_at(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  return value.is_string() ? value.as_string() : "";
}

std::int64_t integer(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  return value.is_integer() ? value.as_integer() : -1;
}

std::vector<Json> of_kind(const std::vector<Json>& lines, std::string_view kind) {
  std::vector<Json> found;
  for (const Json& line : lines) {
    if (member(line, "kind") == Json(kind)) found.push_back(line);
  }
  return found;
}

class Judge {
 public:
  Judge(const RandomConfig& drawn, const Case& the_case, const Tools& tools)
      : drawn_(drawn), case_(the_case), tools_(tools) {}

  Verdict judge() {
    write_files();
    plan_ = program("plan", plan_arguments());
    switch (plan_.code) {
      case 0:
        accepted();
        break;
      case 2:
        refused();
        break;
      case 74:  // a file that the config names
        verdict_.outcome = "without its files";
        require(drawn_.codes.contains(74), "plan ends with 74");
        same_code_from_train(74);
        break;
      default:
        verdict_.outcome = "broken";
        fault(fmt::format("plan ends with {}", plan_.code));
    }
    return std::move(verdict_);
  }

 private:
  void fault(std::string text) { verdict_.faults.push_back(std::move(text)); }
  void require(bool condition, std::string text) {
    if (!condition) fault(std::move(text));
  }

  void write_files() {
    std::filesystem::remove_all(case_.folder);
    std::filesystem::create_directories(case_.folder);
    for (std::size_t i = 0; i < drawn_.configs.size(); ++i) {
      const std::string name = fmt::format("config{}.json", i);
      std::ofstream(case_.folder / name) << drawn_.configs[i];
      config_.push_back(name);
    }
    for (const std::string& text : drawn_.overrides) {
      config_.emplace_back("--set");
      config_.push_back(text);
    }
    for (const auto& [name, text] : drawn_.files) {
      std::filesystem::create_directories((case_.folder / name).parent_path());
      std::ofstream(case_.folder / name) << text;
    }
  }

  Ended program(const std::string& name, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), tools_.train.string());
    return run_program(arguments, case_.folder, name);
  }

  [[nodiscard]] std::vector<std::string> plan_arguments() const {
    std::vector<std::string> arguments = {"plan", "--json",  "--memory",
                                          "2GiB", "--world", std::to_string(drawn_.world)};
    arguments.insert(arguments.end(), config_.begin(), config_.end());
    return arguments;
  }

  Ended train(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = config_;
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (drawn_.world == 1) return program("train", std::move(arguments));
    arguments.insert(arguments.begin(),
                     {tools_.launcher.string(), "-n", std::to_string(drawn_.world)});
    return run_program(arguments, case_.folder, "train");
  }

  /// Several ranks take long to start: only some of the configs that want them are started.
  [[nodiscard]] bool can_start() const { return drawn_.world == 1 || case_.ranks_too; }

  // ---- refused

  void refused() {
    verdict_.outcome = "refused";
    require(drawn_.refused || drawn_.may_refuse || !drawn_.codes.empty() || only_memory(),
            "a plausible config is refused");
    const Json* errors = report_of(plan_);
    if (errors == nullptr) return;
    require(!errors->as_array().empty(), "refused without errors");
    for (const Json& error : errors->as_array()) check_error(error);
    for (const std::string& path : drawn_.must_refuse) {
      // There, or within it: "batch.global[1][0]".
      const bool found = std::ranges::any_of(verdict_.refused_at, [&](const std::string& one) {
        return one == path || one.starts_with(path + ".") || one.starts_with(path + "[");
      });
      require(found, "not refused at " + path);
    }
    if (only_memory() || !can_start()) return;
    const Ended ended = train({});
    // A missing file of tokens has a code of its own, which a plan only has where nothing else is
    // wrong.
    const bool file_first = ended.code == 74 && drawn_.codes.contains(74);
    require(ended.code == 2 || file_first,
            fmt::format("train ends with {}, plan with 2", ended.code));
    if (ended.code != 2) return;
    for (const Json& error : errors->as_array()) {
      const std::string message = text_at(error, "message");
      require(ended.log.find(message) != std::string::npos, "train does not say: " + message);
    }
    require(!std::filesystem::exists(case_.folder / "run" / "metrics.jsonl"),
            "a refused config left metrics");
  }

  [[nodiscard]] bool only_memory() const {
    return verdict_.refused_at == std::vector<std::string>{"--memory"};
  }

  const Json* report_of(const Ended& plan) {
    try {
      report_ = parse_json(plan.out, "the plan");
    } catch (const Error& error) {
      fault(fmt::format("the plan is no JSON: {}", error.what()));
      return nullptr;
    }
    const Json* errors = report_.find("errors");
    if (errors == nullptr || !errors->is_array()) fault("the plan has no errors");
    if (errors == nullptr || !errors->is_array()) return nullptr;
    verdict_.refused_at.clear();
    for (const Json& error : errors->as_array())
      verdict_.refused_at.push_back(text_at(error, "path"));
    return errors;
  }

  void check_error(const Json& error) {
    const std::string path = text_at(error, "path");
    for (const char* key : {"found", "legal", "nearest", "message"}) {
      const Json* text = error.find(key);
      require(text != nullptr && text->is_string(), fmt::format("{}: {} is no text", path, key));
    }
    require(!text_at(error, "message").empty(), path + ": no message");
    const bool known = path.starts_with("--") ||
                       find_field(path.substr(0, path.find('['))) != nullptr ||
                       names_model_key(path) || value_at(drawn_.merged, path) != nullptr ||
                       (path.empty() && drawn_.must_refuse == std::vector<std::string>{""}) ||
                       std::find(sections().begin(), sections().end(), path) != sections().end();
    require(known, fmt::format("\"{}\" is no path of the config or of the schema", path));
  }

  static bool names_model_key(const std::string& path) {
    if (path == "model" || path == "model.path") return true;
    if (!path.starts_with("model.")) return false;
    std::string key = path.substr(6);
    key = key.substr(0, key.find('.'));
    return std::any_of(std::begin(kFamilies), std::end(kFamilies),
                       [&](Family family) { return find_model_key(family, key) != nullptr; });
  }
  static constexpr Family kFamilies[] = {Family::kLlama, Family::kQwen2, Family::kQwen3,
                                         Family::kGemma3, Family::kGpt2};

  void same_code_from_train(int code) {
    if (!can_start()) return;
    const Ended ended = train({});
    require(ended.code == code, fmt::format("train ends with {}, plan with {}", ended.code, code));
  }

  // ---- accepted

  void accepted() {
    verdict_.outcome = "not run";
    const Json* errors = report_of(plan_);
    if (errors == nullptr) return;
    require(errors->as_array().empty(), "accepted with errors");
    require(!drawn_.refused,
            "accepted, but must be refused at " +
                (drawn_.must_refuse.empty() ? "some path" : drawn_.must_refuse[0]));
    if (!drawn_.affordable || !is_affordable() || !verdict_.faults.empty()) return;
    if (!can_start()) return;

    const std::int64_t planned = integer(report_, "steps");
    const Json* exit_at = value_at(drawn_.merged, "run.exit_at_step");
    std::int64_t last = planned > 0 ? planned : 2;
    std::vector<std::string> more;
    if (exit_at != nullptr) last = std::min(last, exit_at->as_integer());
    if (last > 2) {
      more = {"--set", "run.exit_at_step=2"};
      last = 2;
    }
    const Ended ended = train(more);
    verdict_.outcome = ended.code == 0 ? "run" : fmt::format("ended with {}", ended.code);
    require(ended.code == 0 || drawn_.codes.contains(ended.code),
            fmt::format("accepted, but train ends with {}", ended.code));
    require(ended.log.find(fmt::format("train: exit {} (", ended.code)) != std::string::npos,
            "no closing line");
    if (ended.code == 0) check_run(last);
  }

  [[nodiscard]] bool is_affordable() const {
    const Json& batch = member(report_, "batch");
    const double tokens = static_cast<double>(integer(batch, "global")) *
                          value_at(drawn_.merged, "data.sequence_length")->as_double();
    const Json* steps = value_at(drawn_.merged, "evaluation.batches");
    const double passes = 2 + (steps == nullptr ? 20 : std::min(steps->as_double(), 100.0));
    return integer(report_, "memory_bytes_max") <= kMemoryMax &&
           static_cast<double>(integer(report_, "model_flops_per_token")) * tokens * passes <=
               20 * kFlopsMax;
  }

  void check_run(std::int64_t last) {
    const std::filesystem::path run =
        case_.folder / value_at(drawn_.merged, "run.directory")->as_string();
    const std::vector<Json> lines = lines_of(run / "metrics.jsonl");
    const std::vector<Json> steps = of_kind(lines, "step");
    require(static_cast<std::int64_t>(steps.size()) == last,
            fmt::format("{} step lines, not {}", steps.size(), last));
    for (const Json& skip : of_kind(lines, "skip")) {  // sequences of a token may be all padding
      const Json reason = member(skip, "reason");
      if (reason == Json("no_targets") || reason == Json("skip_steps"))
        without_loss_.insert(integer(skip, "step"));
    }
    for (std::size_t i = 0; i < steps.size(); ++i) check_step(steps[i], i);
    require(of_kind(lines, "end").size() == 1, "not one end line");
    require(!of_kind(lines, "checkpoint").empty(), "nothing was saved");

    const Json* directory = value_at(drawn_.merged, "checkpoint.directory");
    const std::filesystem::path saved =
        directory == nullptr ? run / "checkpoints" : case_.folder / directory->as_string();
    const Ended verified = program("verify", {"checkpoint", "verify", saved.string()});
    require(verified.code == 0, fmt::format("checkpoint verify ends with {}", verified.code));
    const std::string name = fmt::format("step-{:08}", last);
    require(std::filesystem::exists(saved / name / "manifest.json"), name + " is not there");

    check_resolved(run / "config.json");
    if (case_.index % 8 == 0 && drawn_.world == 1) use_the_result(run);
  }

  void check_step(const Json& line, std::size_t index) {
    require(integer(line, "step") == static_cast<std::int64_t>(index) + 1,
            "the steps are not in order");
    for (const char* key : {"loss", "grad_norm"}) {
      const bool finite = member(line, key).is_number();
      require(finite || !drawn_.finite || without_loss_.contains(integer(line, "step")),
              fmt::format("step {}: {} is not finite", index + 1, key));
    }
    require(
        integer(line, "consumed_samples") == samples_behind(static_cast<std::int64_t>(index) + 1),
        "consumed_samples is not the plan's");
    const std::int64_t memory = integer(line, "memory_bytes");
    const std::int64_t planned = integer(report_, "memory_bytes_max");
    require(memory <= kProgramBytes + planned * 3 / 2,
            fmt::format("{} bytes of memory, {} were planned", memory, planned));
  }

  /// Consumed behind so many steps of the batch that the plan tells.
  [[nodiscard]] std::int64_t samples_behind(std::int64_t steps) const {
    const Json& batch = member(report_, "batch");
    const Json* ramp = batch.find("ramp");
    if (ramp == nullptr) return steps * integer(batch, "global");
    const std::int64_t length = value_at(drawn_.merged, "data.sequence_length")->as_integer();
    std::int64_t samples = 0;
    for (; steps > 0; --steps) {
      std::int64_t size = 0;
      for (const Json& phase : ramp->as_array())
        if (samples * length >= integer(phase, "from_token")) size = integer(phase, "global");
      samples += size;
    }
    return samples;
  }

  /// The config that a run leaves says the same as the one it was given.
  void check_resolved(const std::filesystem::path& file) {
    const Ended again = program(
        "plan_again", {"plan", "--json", "--world", std::to_string(drawn_.world), file.string()});
    require(again.code == 0, fmt::format("plan of the run's config.json ends with {}", again.code));
    if (again.code != 0) return;
    const Json other = parse_json(again.out, "the second plan");
    for (const char* key : {"batch", "parameters", "ranks", "model_flops_per_token"}) {
      require(member(other, key) == member(report_, key),
              fmt::format("config.json of the run plans other {}", key));
    }
    if (integer(report_, "steps") > 0)
      require(integer(other, "steps") == integer(report_, "steps"),
              "config.json plans other steps");
  }

  /// What people do next.
  void use_the_result(const std::filesystem::path& run) {
    const auto ends_well = [&](const char* name, std::vector<std::string> arguments) {
      const Ended ended = program(name, std::move(arguments));
      require(ended.code == 0, fmt::format("{} ends with {}", name, ended.code));
    };
    if (!drawn_.finite) return;
    ends_well("generate", {"generate", "--checkpoint", run.string(), "--token-ids", "0",
                           "--max-new-tokens", "1", "--temperature", "0"});
    ends_well("export", {"export", "--checkpoint", run.string(), "--output", "exported"});
    ends_well("data", {"data", (run / "config.json").string(), "--count", "2", "--json"});
    const bool validation = value_at(drawn_.merged, "data.validation") != nullptr;
    if (validation) ends_well("evaluate", {"evaluate", (run / "config.json").string()});
  }

  const RandomConfig& drawn_;
  const Case& case_;
  const Tools& tools_;
  Verdict verdict_;
  std::vector<std::string> config_;
  Ended plan_;
  std::set<std::int64_t> without_loss_;  ///< steps
  Json report_;
};

}  // namespace

Verdict judge(const RandomConfig& drawn, const Case& the_case, const Tools& tools) {
  return Judge(drawn, the_case, tools).judge();
}

}  // namespace trireme
