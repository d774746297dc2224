#include "commands/plan_search.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/file.h"
#include "base/human_format.h"
#include "config/fields.h"
#include "plan/rank_memory.h"
#include "telemetry/console.h"

namespace trireme {

namespace {

constexpr std::int64_t kRanksMost = 65536;  // that are looked at for the fewest

Json number_or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json(nullptr);
}

std::string recompute_word(Recompute recompute) {
  RunConfig config;
  config.parallel.recompute = recompute;
  return find_field("parallel.recompute")->read(config).as_string();
}

std::string_view precision_word(const TimedLayout& layout) {
  return layout.fp8 ? "fp8" : name_of(layout.compute);
}

/// Of the whole run at the layout's price of 10^9 tokens.
std::optional<double> run_cost(const PlannedSearch& planned, const TimedLayout& layout) {
  if (!layout.cost) return {};
  const double tokens =
      static_cast<double>(planned.steps) *
      static_cast<double>(layout.batch.global * planned.task.config.data.sequence_length);
  return *layout.cost * tokens / 1e9;
}

Json layout_json(const PlannedSearch& planned, const TimedLayout& layout) {
  const PredictedStep& step = layout.step;
  Json json;
  json["parallel"] = parallel_json(layout.choice);
  json["parallel"]["data"] = std::int64_t{layout.mesh.extent(Axis::kData)};
  json["batch"]["global"] = layout.batch.global;
  json["batch"]["micro"] = layout.batch.micro;
  json["batch"]["accumulation"] = layout.batch.accumulation;
  json["precision"] = precision_word(layout);
  json["recompute"] = recompute_word(layout.choice.recompute);
  json["step_seconds"] = step.seconds;
  json["compute"] = step.compute;
  json["exposed"] = Json::object();
  for (const Axis axis : kTrafficAxes)
    if (step.exposed[axis] > 0) json["exposed"][name_of(axis)] = step.exposed[axis];
  json["bubble"] = step.bubble;
  json["memory_bytes_max"] = layout.bytes();
  json["cost"] = number_or_null(run_cost(planned, layout));
  return json;
}

/// "compute 87 %, bubble 7 %, tensor 6 %": what takes most of the step.
std::string bounds_text(const PredictedStep& step) {
  std::vector<std::pair<double, std::string>> parts = {{step.compute, "compute"},
                                                       {step.bubble, "bubble"},
                                                       {step.host, "host"},
                                                       {step.optimizer, "optimizer"}};
  for (const Axis axis : kTrafficAxes)
    parts.emplace_back(step.exposed[axis], std::string(name_of(axis)));
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < 3; ++i) {
    const double percent = 100 * parts[i].first / step.seconds;
    if (percent < 0.5) break;
    text += fmt::format("{}{} {:.0f} %", i == 0 ? "" : ", ", parts[i].second, percent);
  }
  return text;
}

std::string mesh_words(const TimedLayout& layout) {
  std::string text;
  const auto add = [&](const char* name, std::int64_t extent) {
    if (extent > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, extent);
  };
  const LayoutChoice& choice = layout.choice;
  add("tensor", choice.tensor);
  add("context", choice.context);
  if (choice.context > 1) {
    RunConfig config;
    config.parallel.context_method = choice.context_method;
    text += " " + find_field("parallel.context_method")->read(config).as_string();
  }
  add("pipeline", choice.pipeline);
  add("data", layout.mesh.extent(Axis::kData));
  add("expert", choice.expert);
  add("expert_tensor", choice.expert_tensor);
  return text.empty() ? "1 rank" : text;
}

std::string schedule_words(const LayoutChoice& choice) {
  if (choice.pipeline == 1) return "";
  return choice.virtual_stages ? fmt::format("{} {}", choice.schedule, *choice.virtual_stages)
                               : choice.schedule;
}

std::string cost_word(const TimedLayout& layout) {
  return layout.cost ? fmt::format("{:.0f}", *layout.cost) : "";
}

std::string layouts_table(const std::vector<TimedLayout>& layouts, bool with_cost) {
  std::vector<std::string> header = {"step",  "memory",    "mesh", "schedule",
                                     "micro", "recompute", "zero", "takes most"};
  std::vector<Align> columns = {Align::kRight, Align::kRight, Align::kLeft,  Align::kLeft,
                                Align::kRight, Align::kLeft,  Align::kRight, Align::kLeft};
  if (with_cost) {
    header.emplace_back("cost of 10^9 tokens");
    columns.push_back(Align::kRight);
  }
  std::vector<std::vector<std::string>> rows;
  for (const TimedLayout& layout : layouts) {
    const LayoutChoice& choice = layout.choice;
    rows.push_back({fmt::format("{:.4g} s", layout.step.seconds), format_bytes(layout.bytes()),
                    mesh_words(layout), schedule_words(choice), fmt::format("{}", choice.micro),
                    recompute_word(choice.recompute), fmt::format("{}", choice.zero_stage),
                    bounds_text(layout.step)});
    if (with_cost) rows.back().push_back(cost_word(layout));
  }
  return table_text(header, rows, columns);
}

bool fits(const PlannedSearch& planned, const TimedLayout& layout) {
  return planned.task.memory == 0 || layout.bytes() <= planned.task.memory;
}

std::string own_text(const PlannedSearch& planned) {
  if (!planned.own)
    return fmt::format("The config's own layout is not legal here: {}\n", planned.own_refused);
  const TimedLayout& own = *planned.own;
  std::string text = fmt::format("The config's own layout{}:\n",
                                 fits(planned, own) ? "" : ", which does not fit") +
                     layouts_table({own}, own.cost.has_value());
  if (planned.micro) {
    text += fmt::format("Its largest micro-batch that fits: {} ({:.4g} s, {})\n",
                        planned.micro->batch.micro, planned.micro->step.seconds,
                        format_bytes(planned.micro->bytes()));
  }
  for (const Trial& trial : planned.trials) {
    if (!trial.layout) {
      text += fmt::format("  with {}: refused ({})\n", trial.change, trial.refused);
      continue;
    }
    text += fmt::format(
        "  with {}: {:.4g} s ({:+.1f} %), {}{}\n", trial.change, trial.layout->step.seconds,
        100 * (trial.layout->step.seconds / own.step.seconds - 1),
        format_bytes(trial.layout->bytes()), fits(planned, *trial.layout) ? "" : ", does not fit");
  }
  return text;
}

/// What the order of the list is worth.
std::string proof_text(const SearchResult& found) {
  std::string text =
      found.bounded
          ? "By bounds from below no other layout that fits is faster than the first"
          : "Too many layouts are near the best to time them all: a faster one may be left";
  if (!found.all_schedules)
    text +=
        fmt::format("; schedules other than 1f1b and interleaved were tried on the best alone{}",
                    found.long_step ? ", zb-auto and zb-v not at all" : "");
  return fmt::format("{} ({} shapes, {} timed)\n", text, format_integer(found.shapes),
                     format_integer(found.timed));
}

std::optional<std::int64_t> global_batch(const LayoutTask& task) {
  if (task.config.batch.global) return task.config.batch.global->largest();
  const RunConfig::Parallel& own = task.config.parallel;
  const std::int64_t others = own.tensor * own.context * own.pipeline;
  if (task.input.world % others != 0) return {};
  std::vector<Problem> problems;
  const ResolvedBatch batch = resolve_batch(task.config.batch, task.input.world / others, problems);
  if (!problems.empty()) return {};
  return batch.global;
}

/// Nothing fits: the nearest miss, and what would make it fit.
Problem nothing_fits(const PlannedSearch& planned) {
  const LayoutTask& task = planned.task;
  Problem problem{"--search", fmt::format("{}", counted(task.input.world, "rank")), "", "", ""};
  const std::optional<TimedLayout> nearest = frugal_layout(task);
  if (!nearest) {
    problem.legal = "ranks, a batch.global and sizes of the model that some layout divides";
    problem.message =
        "no layout is legal for this model and batch" +
        (planned.own_refused.empty() ? "" : ". Of the config's own: " + planned.own_refused);
    return problem;
  }
  problem.message = fmt::format(
      "no layout fits in the {} of a rank. The nearest is {}, micro {}, zero_stage {}, "
      "recompute \"{}\": a rank needs {}",
      format_bytes(task.memory), mesh_words(*nearest), nearest->choice.micro,
      nearest->choice.zero_stage, recompute_word(nearest->choice.recompute),
      needed_text(nearest->memory));
  problem.legal = fmt::format("at least {} of memory", format_bytes(nearest->bytes()));
  if (planned.fewest)
    problem.legal += fmt::format(", or {} ranks or more", planned.fewest->mesh.size());
  RunConfig config = task.config;
  take_choice(nearest->choice, config.batch.global->largest(), config);
  const std::string advice =
      memory_advice(config, task.input.world, task.input.device, task.memory);
  if (!advice.empty()) problem.message += ". Change, what helps most first: " + advice;
  return problem;
}

void ask_of_own(PlannedSearch& planned) {
  std::vector<Problem> problems;
  planned.own = time_layout(planned.task, planned.task.config, problems);
  if (!planned.own) {
    planned.own_refused = format_problem(problems.front());
    // It stands within a sentence.
    if (planned.own_refused.ends_with('.')) planned.own_refused.pop_back();
    return;
  }
  planned.trials = trials_of(planned.task);
  planned.micro = largest_micro_batch(planned.task);
}

}  // namespace

PlannedSearch plan_search(LayoutTask task, std::vector<Problem>& problems) {
  PlannedSearch planned;
  if (task.config.batch.global && task.config.batch.global->is_ramp()) {
    const std::int64_t largest = task.config.batch.global->largest();
    problems.push_back({"batch.global", "a ramp", "a number beside --search",
                        std::to_string(largest),
                        fmt::format("is of several sizes, and --search compares steps of one: look "
                                    "for a layout of the largest, --set batch.global={}",
                                    largest)});
    return planned;
  }
  const std::optional<std::int64_t> global = global_batch(task);
  if (!global) {
    problems.push_back({"batch.global", "nothing", "samples of a step", "",
                        "is needed: search keeps it, and the config's own layout, which would tell "
                        "it, does not fit these ranks"});
    return planned;
  }
  task.config.batch.global = *global;
  planned.steps = resolve_steps(task.config, *global, task.input.windows, problems);
  planned.task = std::move(task);
  ask_of_own(planned);
  planned.found = search_layouts(planned.task);
  planned.fewest = fewest_ranks(planned.task,
                                planned.found.best.empty() ? kRanksMost : planned.task.input.world);
  if (planned.found.best.empty()) problems.push_back(nothing_fits(planned));
  return planned;
}

Json layouts_json(const PlannedSearch& planned) {
  Json json = Json::array();
  for (const TimedLayout& layout : planned.found.best) json.push_back(layout_json(planned, layout));
  return json;
}

Json search_json(const PlannedSearch& planned) {
  Json json;
  json["own"] = planned.own ? layout_json(planned, *planned.own) : Json(nullptr);
  if (planned.own) json["own"]["fits"] = fits(planned, *planned.own);
  json["front"] = Json::array();
  for (const TimedLayout& layout : planned.found.front)
    json["front"].push_back(layout_json(planned, layout));
  json["changes"] = Json::array();
  for (const Trial& trial : planned.trials) {
    Json change;
    change["change"] = trial.change;
    if (trial.layout) {
      change["step_seconds"] = trial.layout->step.seconds;
      change["memory_bytes_max"] = trial.layout->bytes();
    } else {
      change["refused"] = trial.refused;
    }
    json["changes"].push_back(std::move(change));
  }
  json["micro_most"] = planned.micro ? Json(planned.micro->batch.micro) : Json(nullptr);
  json["ranks_fewest"] =
      planned.fewest ? Json(std::int64_t{planned.fewest->mesh.size()}) : Json(nullptr);
  json["shapes"] = planned.found.shapes;
  json["timed"] = planned.found.timed;
  json["bounded"] = planned.found.bounded;
  json["all_schedules"] = planned.found.all_schedules;
  return json;
}

std::string search_text(const PlannedSearch& planned) {
  const SearchResult& found = planned.found;
  if (found.best.empty()) return "";
  const bool money = found.best.front().cost.has_value();
  const LayoutTask& task = planned.task;
  std::string text = fmt::format(
      "Layouts of {} for a batch of {} by predicted seconds{}; the best of each mesh:\n",
      counted(task.input.world, "rank"), format_integer(task.config.batch.global->largest()),
      task.memory > 0 ? fmt::format(", of what fits in {}", format_bytes(task.memory)) : "");
  text += layouts_table(found.best, money) + proof_text(found);
  if (found.front.size() > 1) {
    text += "Slower, but with less memory or money:\n" +
            layouts_table({found.front.begin() + 1, found.front.end()}, money);
  }
  text += own_text(planned);
  if (planned.fewest) {
    text += fmt::format(
        "The fewest ranks that hold the model{}: {} ({} of a rank: {}, full "
        "recomputation, zero_stage {})\n",
        planned.fewest->mesh.size() < task.cluster.devices_per_node ? "" : ", in whole nodes",
        planned.fewest->mesh.size(), format_bytes(planned.fewest->bytes()),
        mesh_words(*planned.fewest), planned.fewest->choice.zero_stage);
  }
  return text;
}

void check_written_config(const std::string& path) {
  if (is_there(path))
    throw ConfigError("--write: {} exists and would be overwritten. Choose another file", path);
}

void write_best_config(const PlannedSearch& planned, Json given, const std::string& path) {
  take_choice(planned.found.best.front().choice, planned.task.config.batch.global->largest(),
              given);
  write_file_atomically(path, given.dump(2) + "\n");
}

}  // namespace trireme
