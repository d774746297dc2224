#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/human_format.h"
#include "base/log.h"
#include "base/nearest_word.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/output_files.h"
#include "commands/parse_options.h"
#include "pipeline/checker.h"
#include "pipeline/draw.h"
#include "pipeline/schedules/schedules.h"
#include "pipeline/simulate.h"
#include "plan/resolve.h"
#include "train/device_choice.h"
#include "train/inputs.h"

namespace trireme {

namespace {

/// Of the terminal, else of a page that is wide enough for a small schedule.
int terminal_columns() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 160;
}

struct Options {
  ConfigInput input;
  std::optional<std::string> kind;
  std::optional<int> stages, micro_batches, virtual_stages, group_size;
  std::string times;
  std::optional<double> memory_limit, w_memory, r_memory;
  bool json = false;
  std::string svg;
};

/// "gpipe, 1f1b, ..."
std::string kinds() {
  std::string text;
  for (const std::string& name : schedule_names())
    text.append(text.empty() ? "" : ", ").append(name);
  return text;
}

/// "F,B,W" or "F,B,W,C".
ActionTimes parse_times(const std::string& text) {
  std::array<double, 4> values{};
  std::size_t count = 0, begin = 0;
  while (begin <= text.size() && count < 5) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (count == 4 || !CLI::detail::lexical_cast(word, values[count])) count = 5;
    ++count;
    begin = end + 1;
  }
  if (count != 3 && count != 4)
    throw ConfigError("--times: {}. Legal: three numbers F,B,W or four F,B,W,C", text);
  return {values[0], values[1], values[2], values[3]};
}

void take_options(const Options& options, ScheduleRequest& request) {
  request.stages = options.stages.value_or(request.stages);
  request.micro_batches = options.micro_batches.value_or(request.micro_batches);
  if (options.virtual_stages) request.virtual_stages = options.virtual_stages;
  if (options.group_size) request.group_size = options.group_size;
  if (!options.times.empty()) request.times = parse_times(options.times);
  if (options.memory_limit) request.memory_limit = options.memory_limit;
  request.w_memory = options.w_memory.value_or(request.w_memory);
}

/// A schedule of a file must be of the sizes that were asked for, where any were.
void check_sizes(const Schedule& schedule, const std::string& path, const Options& options) {
  const ScheduleShape shape = shape_of(schedule);
  const auto check = [&](const char* what, std::optional<int> wanted, int found) {
    if (wanted && *wanted != found)
      throw ConfigError("{}: its {} are {}, and {} were asked for. Legal: {}", path, what, found,
                        *wanted, found);
  };
  check("ranks", options.stages, shape.ranks);
  check("micro-batches", options.micro_batches, shape.micro_batches);
  check("virtual stages of a rank", options.virtual_stages, shape.stages_per_rank());
}

struct Drawn {
  Schedule schedule;
  ScheduleRequest request;
  double r_memory = 0;
  std::string name;
  bool norm_is_awaited = true;
};

/// The pipeline that a config resolves to; its micro-batches are the accumulation of a step.
Drawn plan_of_config(const Options& options) {
  if (options.kind || options.stages || options.micro_batches || options.virtual_stages ||
      options.group_size || !options.times.empty() || options.memory_limit || options.w_memory ||
      options.r_memory) {
    throw ConfigError(
        "train schedule: a CONFIG and an option that describes a schedule (--kind, --stages, "
        "--micro-batches, --virtual-stages, --group-size, --times, --memory-limit, --w-memory, "
        "--r-memory). Legal: one or the other; --set parallel.pipeline=8 changes a config");
  }
  LoadedConfig loaded = read_config_with_model(options.input);
  const Inputs inputs = check_inputs(loaded, DataFiles::kChecked);
  ResolveInput facts;
  facts.world = default_world(loaded.config);
  facts.device = device_kind(loaded.config.run.device);
  if (!inputs.data.synthetic) facts.windows = inputs.data.windows;
  ResolvedRun run = resolve_run(loaded.config, facts, loaded.problems, loaded.notes);
  loaded.problems.insert(loaded.problems.end(), inputs.problems.begin(), inputs.problems.end());
  throw_problems(loaded.problems);
  for (const std::string& note : loaded.notes) log_info_text(note);
  Drawn drawn;
  drawn.schedule = run.pipeline.schedule();
  drawn.request.times = run.pipeline.times;
  drawn.request.w_memory = run.pipeline.w_memory;
  drawn.r_memory = run.pipeline.r_memory;
  drawn.name = loaded.config.parallel.pipeline_schedule;
  drawn.norm_is_awaited = !loaded.config.parallel.speculative_step;
  return drawn;
}

Drawn plan_of(const Options& options) {
  if (!options.input.files.empty()) return plan_of_config(options);
  Drawn drawn;
  ScheduleRequest& request = drawn.request;
  if (!options.kind)
    throw ConfigError(
        "train schedule: neither --kind nor CONFIG was given. Legal kinds: {}, or a schedule file",
        kinds());
  drawn.name = *options.kind;
  take_options(options, request);
  drawn.r_memory = options.r_memory.value_or(0);
  if (!(drawn.r_memory >= 0 && drawn.r_memory <= 1e6))
    throw ConfigError("--r-memory: {}. Legal: 0 to 1000000 activations", drawn.r_memory);
  const std::optional<ScheduleKind> kind = schedule_kind(drawn.name);
  if (!kind) {
    if (!drawn.name.ends_with(".json") && !std::filesystem::exists(drawn.name)) {
      const std::optional<std::string> near = nearest_word(drawn.name, schedule_names());
      throw ConfigError(
          "{}: neither a kind of schedule nor a file. Legal: {}, or a schedule file{}", drawn.name,
          kinds(), near ? "; nearest: " + *near : "");
    }
    drawn.schedule = read_schedule(drawn.name);
    require_valid(drawn.schedule, drawn.name,
                  {request.memory_limit, request.w_memory, drawn.r_memory});
    check_sizes(drawn.schedule, drawn.name, options);
    check_request(request, "schedule file");
    return drawn;
  }
  request.kind = *kind;
  if (!options.stages || !options.micro_batches)
    throw ConfigError("train schedule: --kind {} needs --stages and --micro-batches", drawn.name);
  drawn.schedule = make_schedule(request);
  return drawn;
}

Json json_of(const Drawn& drawn, const Simulation& simulation) {
  Json json;
  json["kind"] = drawn.name;
  json["cost"] = simulation.cost;
  json["makespan"] = simulation.makespan;
  json["step_span"] = drawn.norm_is_awaited ? simulation.step_span : simulation.cost;
  json["bubble_rate"] = simulation.bubble_rate;
  for (const double peak : simulation.peak) json["peak"].push_back(peak);
  for (const std::int64_t sent : simulation.transfers) json["transfers"].push_back(sent);
  Json schedule = schedule_json(drawn.schedule, &simulation.starts);
  for (Json::Member& member : schedule.as_object()) json[member.first] = std::move(member.second);
  return json;
}

void print(const Drawn& drawn, const Simulation& simulation) {
  const ScheduleShape shape = shape_of(drawn.schedule);
  const auto [least, most] = std::minmax_element(simulation.peak.begin(), simulation.peak.end());
  std::string text = fmt::format("{}: {}, {} each, {}\n", drawn.name, counted(shape.ranks, "rank"),
                                 counted(shape.stages_per_rank(), "virtual stage"),
                                 counted(shape.micro_batches, "micro-batch"));
  text += draw_text(drawn.schedule, simulation, drawn.request.times, terminal_columns());
  text += fmt::format(
      "Longest rank {:g}, all ranks {:g}, bubble {:.2f} %\n"
      "Activations held at once: {:g} to {:g} full stages; sent by a rank: up to {} tensors\n",
      simulation.cost, simulation.makespan, 100 * simulation.bubble_rate, *least, *most,
      *std::max_element(simulation.transfers.begin(), simulation.transfers.end()));
  std::fputs(text.c_str(), stdout);
}

}  // namespace

int schedule_command(Arguments arguments) {
  Options options;
  CLI::App app("Draws a pipeline schedule: of a kind, of a schedule file, or the one of a config.",
               "train schedule");
  app.add_option("CONFIG", options.input.files,
                 "config files or a run's folder, in place of --kind")
      ->check(config_file());
  app.add_option("--set", options.input.overrides,
                 "key.path=value: one override of the config; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--kind", options.kind, "kind of schedule, or a schedule file")
      ->type_name(fmt::format("{{{}}}|FILE", fmt::join(schedule_names(), ",")));
  app.add_option("--stages", options.stages, "ranks of the pipeline")
      ->check(integer_from(1, std::numeric_limits<int>::max()));
  app.add_option("--micro-batches", options.micro_batches, "micro-batches of a step")
      ->check(integer_from(1, std::numeric_limits<int>::max()));
  app.add_option("--virtual-stages", options.virtual_stages,
                 "stages of a rank; default 1, 2 for interleaved and the V kinds");
  app.add_option("--group-size", options.group_size,
                 "interleaved: micro-batches before the next virtual stage; default --stages");
  app.add_option("--times", options.times,
                 "F,B,W[,C] of one virtual stage, C of a transfer between ranks; default 1,1,1,0");
  app.add_option("--memory-limit", options.memory_limit,
                 "full-stage activations that a rank may hold; zb-auto and zb-v: default --stages");
  app.add_option("--w-memory", options.w_memory,
                 "what is kept from B to W, in activations; default 1");
  app.add_option("--r-memory", options.r_memory,
                 "what R makes until B, beside the activation, in activations; default 0");
  CLI::Option* json =
      app.add_flag("--json", options.json, "print one JSON object, a schedule file too");
  app.add_option("--svg", options.svg, "write a picture to this file")
      ->type_name("FILE")
      ->excludes(json);
  if (!parse_options(app, arguments)) return 0;

  if (!options.svg.empty()) check_picture_file(options.svg);
  const Drawn drawn = plan_of(options);
  const Simulation simulation =
      simulate(drawn.schedule, drawn.request.times, drawn.request.w_memory, drawn.r_memory);
  if (options.json) {
    std::puts(json_of(drawn, simulation).dump().c_str());
  } else if (!options.svg.empty()) {
    write_file_atomically(options.svg, draw_svg(drawn.schedule, simulation, drawn.request.times));
    log_info("{}: written", options.svg);
  } else {
    print(drawn, simulation);
  }
  return 0;
}

}  // namespace trireme
