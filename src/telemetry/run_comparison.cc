#include "telemetry/run_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/file.h"
#include "base/human_format.h"
#include "base/utf8.h"
#include "telemetry/metrics_file.h"
#include "telemetry/prediction.h"

namespace trireme {

namespace {

std::optional<double> real(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->as_double();
}

std::optional<std::int64_t> integer(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  if (value == nullptr || !value->is_integer()) return std::nullopt;
  return value->as_integer();
}

std::string text(const Json& line, std::string_view key) {
  const Json* value = line.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

/// A mean with weights; empty where there is no weight.
struct Mean {
  double sum = 0, weight = 0;
  void add(double value, double by) {
    sum += value * by;
    weight += by;
  }
  [[nodiscard]] std::optional<double> value() const {
    if (!(weight > 0)) return std::nullopt;
    return sum / weight;
  }
};

/// Reads the lines of metrics.jsonl in order.
class MetricsReader {
 public:
  void add(const Json& line) {
    const std::string kind = text(line, "kind");
    const std::optional<std::int64_t> step = integer(line, "step");
    if (kind == "start") {
      end_reason_.clear();
      begin_prediction(line);
      if (const Json* config = line.find("config"); config != nullptr && config->is_object())
        config_ = *config;
    } else if (kind == "step" && step) {
      add_step(*step, line);
    } else if (kind == "end") {
      end_reason_ = text(line, "reason");
    } else if (kind == "evaluation" && step) {
      if (!evaluated_ || *step != *evaluated_) validation_.clear();
      evaluated_ = step;
      validation_[text(line, "name")] = real(line, "loss");
    }
  }

  void give(RunSummary& run) const {
    run.steps = steps_;
    run.tokens = tokens_;
    run.loss = loss_;
    run.tokens_per_second = speed_.value();
    run.mfu = mfu_.value();
    run.step_seconds = step_seconds_.value();
    run.predicted_step_seconds = predicted_;
    run.joules = joules_;
    run.end_reason = end_reason_;
    if (run.config.is_null()) run.config = config_;
    run.validation_loss = validation_loss(run.config);
  }

 private:
  void begin_prediction(const Json& line) {
    const Json* predicted = line.find("predicted");
    predicted_ = predicted != nullptr ? real(*predicted, "step_seconds") : std::nullopt;
    step_seconds_ = {};
    first_step_ = true;
  }

  void add_step(std::int64_t step, const Json& line) {
    steps_ = step;
    if (const auto joules = real(line, "joules")) joules_ = joules_.value_or(0) + *joules;
    if (const auto tokens = integer(line, "consumed_tokens")) tokens_ = tokens;
    if (const auto loss = real(line, "loss")) loss_ = loss;
    const std::optional<double> seconds = real(line, "step_seconds");
    if (!seconds || !(*seconds > 0)) return;
    if (!std::exchange(first_step_, false) && predicted_) step_seconds_.add(*seconds, 1);
    if (const auto speed = real(line, "tokens_per_second")) speed_.add(*speed, *seconds);
    if (const auto mfu = real(line, "mfu")) mfu_.add(*mfu, *seconds);
  }

  [[nodiscard]] std::optional<double> validation_loss(const Json& config) const {
    const Json* section = config.find("evaluation");
    const std::string watched = section != nullptr ? text(*section, "watch") : "";
    const auto found = validation_.find(watched);
    if (!watched.empty() && found != validation_.end()) return found->second;
    Mean mean;
    for (const auto& [name, loss] : validation_) {
      if (!loss) return std::nullopt;
      mean.add(*loss, 1);
    }
    return mean.value();
  }

  std::optional<std::int64_t> steps_, tokens_, evaluated_;
  std::optional<double> loss_;
  std::map<std::string, std::optional<double>> validation_;  ///< of the last evaluation, by name
  Mean speed_, mfu_, step_seconds_;
  std::optional<double> predicted_, joules_;
  bool first_step_ = true;
  std::string end_reason_;
  Json config_;
};

using Flat = std::vector<std::pair<std::string, Json>>;

void flatten(const Json& json, const std::string& path, Flat& out) {
  if (!json.is_object() || json.as_object().empty()) {
    if (!path.empty()) out.emplace_back(path, json);
    return;
  }
  for (const auto& [key, value] : json.as_object())
    flatten(value, path.empty() ? key : path + "." + key, out);
}

template <class T>
Json json_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

/// Columns as wide as their longest cell, the first to the left, the others to the right.
class Table {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  [[nodiscard]] std::string text() const {
    std::vector<std::size_t> widths;
    for (const auto& cells : rows_) {
      widths.resize(std::max(widths.size(), cells.size()));
      for (std::size_t i = 0; i < cells.size(); ++i)
        widths[i] = std::max(widths[i], columns_of(cells[i]));
    }
    std::string out;
    for (const auto& cells : rows_) {
      std::string line;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const std::string space(widths[i] - columns_of(cells[i]), ' ');
        line += i == 0 ? cells[i] + space : "  " + space + cells[i];
      }
      line.resize(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  static std::size_t columns_of(std::string_view cell) {
    return static_cast<std::size_t>(std::count_if(cell.begin(), cell.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
  }
  std::vector<std::vector<std::string>> rows_;
};

template <class T, class Format>
std::string cell(const std::optional<T>& value, Format format) {
  return value ? format(*value) : "-";
}

std::string value_cell(const Json& value) {
  constexpr std::size_t kBytesMax = 40;
  std::string shown = value.is_null() ? "-" : value.is_string() ? value.as_string() : value.dump();
  if (shown.size() > kBytesMax) {
    shown.resize(utf8_valid_prefix(std::string_view(shown).substr(0, kBytesMax - 3)));
    shown += "...";
  }
  return shown;
}

}  // namespace

RunSummary summarize_run(const std::filesystem::path& directory) {
  RunSummary run;
  run.directory = directory.string();
  const std::filesystem::path config = directory / "config.json",
                              metrics = directory / "metrics.jsonl";
  if (!is_folder(directory)) {
    throw DataError("{}: {}. Give the folder of a run (run.directory)", run.directory,
                    is_there(directory) ? "is no folder" : "there is no such folder");
  }
  const bool has_config = is_there(config);
  const bool has_metrics = is_there(metrics);
  if (!has_config && !has_metrics) {
    throw DataError(
        "{}: holds neither config.json nor metrics.jsonl, so it is no run. Give the folder of a "
        "run (run.directory)",
        run.directory);
  }
  if (has_config) {
    run.config = parse_json(read_file(config), config.string());
    if (!run.config.is_object()) throw DataError("{}: must be an object", config.string());
  }
  MetricsReader reader;
  if (has_metrics)
    for_each_metrics_line(metrics, 0,
                          [&](std::string_view, const Json& line) { reader.add(line); });
  reader.give(run);
  return run;
}

Comparison compare_runs(std::vector<RunSummary> runs) {
  Comparison comparison;
  comparison.runs = std::move(runs);
  const std::size_t count = comparison.runs.size();
  std::map<std::string, std::size_t> place;
  for (std::size_t i = 0; i < count; ++i) {
    Flat flat;
    flatten(comparison.runs[i].config, "", flat);
    for (auto& [path, value] : flat) {
      const auto [found, added] = place.try_emplace(path, comparison.config.size());
      if (added) comparison.config.emplace_back(path, std::vector<Json>(count));
      comparison.config[found->second].second[i] = std::move(value);
    }
  }
  std::erase_if(comparison.config, [](const auto& key) {
    const auto& values = key.second;
    const bool same = std::all_of(values.begin(), values.end(),
                                  [&](const Json& value) { return value == values.front(); });
    return same || key.first == "run.directory";
  });
  return comparison;
}

Json comparison_json(const Comparison& comparison) {
  Json json;
  Json& runs = json["runs"] = Json::array();
  for (const RunSummary& run : comparison.runs) {
    Json object;
    object["directory"] = run.directory;
    object["steps"] = json_or_null(run.steps);
    object["tokens"] = json_or_null(run.tokens);
    object["loss"] = json_or_null(run.loss);
    object["validation_loss"] = json_or_null(run.validation_loss);
    object["tokens_per_second"] = json_or_null(run.tokens_per_second);
    object["mfu"] = json_or_null(run.mfu);
    object["step_seconds"] = json_or_null(run.step_seconds);
    object["predicted_step_seconds"] = json_or_null(run.predicted_step_seconds);
    object["joules"] = json_or_null(run.joules);
    runs.push_back(std::move(object));
  }
  Json& config = json["config"] = Json::object();
  for (const auto& [path, values] : comparison.config)
    config.as_object().emplace_back(path, Json(Json::Array(values)));
  return json;
}

std::vector<std::string> short_names(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const RunSummary& run : comparison.runs) {
    names.push_back(run.directory);
    while (names.back().size() > 1 && names.back().back() == '/') names.back().pop_back();
  }
  std::string shared = names.empty() ? "" : names.front().substr(0, names.front().rfind('/') + 1);
  for (const std::string& name : names) {
    while (!name.starts_with(shared)) {
      shared.pop_back();
      shared.resize(shared.rfind('/') + 1);
    }
  }
  for (std::string& name : names) name = name.substr(shared.size());
  return names;
}

std::string summaries_text(const Comparison& comparison) {
  const std::vector<std::string> names = short_names(comparison);
  Table table;
  std::vector<std::string> heading = {"run",        "steps",    "tokens", "loss",
                                      "validation", "tokens/s", "MFU"};
  const auto any = [&](const auto& has) {
    return std::any_of(comparison.runs.begin(), comparison.runs.end(), has);
  };
  const bool predicted =
      any([](const RunSummary& run) { return run.predicted_step_seconds.has_value(); });
  const bool energy = any([](const RunSummary& run) { return run.joules.has_value(); });
  if (predicted) heading.insert(heading.end(), {"s/step", "predicted"});
  if (energy) heading.emplace_back("kWh");
  table.row(std::move(heading));
  const auto loss = [](double value) { return fmt::format("{:.4f}", value); };
  const auto seconds = [](double value) { return fmt::format("{:.4g}", value); };
  const auto kwh = [](double joules) { return fmt::format("{:.4g}", joules / kJoulesPerKwh); };
  for (std::size_t i = 0; i < names.size(); ++i) {
    const RunSummary& run = comparison.runs[i];
    std::vector<std::string> cells = {
        names[i],
        cell(run.steps, format_integer),
        cell(run.tokens, [](std::int64_t n) { return format_count(static_cast<double>(n)); }),
        cell(run.loss, loss),
        cell(run.validation_loss, loss),
        cell(run.tokens_per_second, format_count),
        cell(run.mfu, [](double value) { return fmt::format("{:.1f} %", 100 * value); })};
    if (predicted) {
      cells.push_back(cell(run.step_seconds, seconds));
      cells.push_back(cell(run.predicted_step_seconds, seconds));
    }
    if (energy) cells.push_back(cell(run.joules, kwh));
    table.row(std::move(cells));
  }
  return table.text();
}

std::string comparison_text(const Comparison& comparison) {
  const std::vector<std::string> names = short_names(comparison);
  std::string out = summaries_text(comparison);
  if (comparison.config.empty()) return out + "\nThe configs are the same.\n";
  Table config;
  std::vector<std::string> heading = {"config"};
  heading.insert(heading.end(), names.begin(), names.end());
  config.row(std::move(heading));
  for (const auto& [path, values] : comparison.config) {
    std::vector<std::string> cells = {path};
    for (const Json& value : values) cells.push_back(value_cell(value));
    config.row(std::move(cells));
  }
  return out + "\n" + config.text();
}

}  // namespace trireme
