#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>

#include "base/human_format.h"
#include "base/log.h"
#include "base/units.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/parse_options.h"
#include "config/fields.h"
#include "dataset/sources.h"
#include "model/flops.h"
#include "pipeline/simulate.h"
#include "plan/time.h"
#include "plan/traffic.h"
#include "telemetry/console.h"
#include "train/device_choice.h"
#include "train/inputs.h"
#include "train/prepare.h"
#include "train/runtime.h"

namespace trireme {

namespace {

struct Options {
  ConfigInput input;
  std::optional<std::int64_t> world;
  std::string memory;
  std::optional<double> mtbf_hours, write_gbps;
  bool json = false;
};

/// Ranks that need the same.
struct EqualRanks {
  int first = 0, stage = 0;
  std::int64_t count = 0, parameters = 0;
  RankMemory memory;
};

struct Figures {
  ResolvedRun run;
  std::int64_t world = 1;
  std::vector<EqualRanks> ranks;
  RankMemory memory;  ///< of the rank that needs most
  ParameterCount parameters;
  std::int64_t checkpoint_bytes = 0, flops_per_token = 0;
  std::vector<Traffic> traffic;            ///< of rank 0
  std::vector<std::int64_t> stage_layers;  ///< of each virtual stage
  double bubble_rate = 0, rank_imbalance = 0;
  std::optional<double> interval_seconds;
  double mtbf_seconds = 0, save_seconds = 0;  ///< what that interval follows from
};

/// What differs between ranks is the pipeline stage and the place on the tensor axis: shards are
/// padded to the largest, tokens cut evenly.
std::vector<EqualRanks> ranks_of(const RunConfig& config, const ResolvedRun& run, DType compute) {
  std::vector<EqualRanks> ranks;
  const int places = run.mesh.extent(Axis::kTensor), stages = run.mesh.extent(Axis::kPipeline);
  const int of_stage = run.mesh.size() / stages;
  for (int rank = 0; rank < run.mesh.size();
       rank += rank % of_stage + 1 < places ? 1 : of_stage - places + 1) {
    const MemoryRequest request = memory_request(config, run, compute, StagePurpose::kTraining,
                                                 rank, device_kind(config.run.device));
    EqualRanks equal{rank, rank / of_stage, of_stage / places, 0,
                     estimate_memory(config.model, request)};
    for (const ParamMeta& param : request.part.declare(config.model).metas) {
      if (param.shares == kNoParam)
        equal.parameters += local_shape(param.shape, param.cut, request.part.store.tensor).count();
    }
    if (!ranks.empty() && ranks.back().memory == equal.memory &&
        ranks.back().parameters == equal.parameters && ranks.back().stage == equal.stage) {
      ranks.back().count += equal.count;
    } else {
      ranks.push_back(equal);
    }
  }
  return ranks;
}

/// What only the sources themselves know: lengths of shares and orders. Of files that are there.
void check_sources(const RunConfig& config, const ResolvedRun& run,
                   std::vector<Problem>& problems) {
  const auto check = [&](const char* path, const std::function<void()>& body) {
    try {
      body();
    } catch (const DataError&) {  // told before, or found when the run begins
    } catch (const ConfigError& error) {
      problems.push_back(problem_of(error, path));
    }
  };
  check("data.train", [&] { check_training_source(config, run.steps * run.batch.global); });
  check(config.data.validation ? "data.validation" : "data.split",
        [&] { check_validation_sources(config); });
}

void check_memory(const Options& options, const Figures& figures, std::vector<Problem>& problems) {
  if (options.memory.empty()) return;
  const std::int64_t limit = parse_bytes(options.memory, "--memory");
  if (figures.memory.total() <= limit) return;
  problems.push_back({"--memory", format_bytes(limit),
                      fmt::format("at least {}", format_bytes(figures.memory.total())), "",
                      fmt::format("a rank needs {} (activations {}). Use a smaller batch.micro or "
                                  "data.sequence_length, parallel.zero_stage, parallel.tensor or "
                                  "parallel.recompute, or precision.compute \"bf16\"",
                                  format_bytes(figures.memory.total()),
                                  format_bytes(figures.memory.activations))});
}

void take_pipeline(const Pipeline& pipeline, Figures& figures) {
  const Simulation simulation = simulate(pipeline.plan, pipeline.times);
  figures.bubble_rate = simulation.bubble_rate;
  const std::vector<double>& busy = simulation.busy;
  const double mean =
      std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
  figures.rank_imbalance = *std::max_element(busy.begin(), busy.end()) / mean - 1;
  for (const ChunkRange& stage : pipeline.stages) figures.stage_layers.push_back(stage.layers);
}

Figures compute(const Options& options, const RunConfig& config, const ResolvedRun& run,
                std::int64_t world) {
  Figures figures;
  figures.run = run;
  figures.world = world;
  const DType compute = compute_type(config, device_kind(config.run.device));
  figures.ranks = ranks_of(config, run, compute);
  for (const EqualRanks& rank : figures.ranks) {
    if (rank.memory.total() > figures.memory.total()) figures.memory = rank.memory;
  }
  figures.parameters = count_parameters(config.model);
  take_pipeline(run.pipeline, figures);
  figures.checkpoint_bytes = checkpoint_bytes(config.model);
  figures.flops_per_token = model_flops_per_token(config.model, config.data.sequence_length);
  figures.traffic =
      step_traffic(config.model, memory_request(config, run, compute, StagePurpose::kTraining, 0),
                   config.data.document_mask);
  if (options.mtbf_hours) {
    figures.mtbf_seconds = *options.mtbf_hours * 3600;
    figures.save_seconds =
        static_cast<double>(figures.checkpoint_bytes) / (options.write_gbps.value_or(1) * 1e9);
    figures.interval_seconds = young_daly_seconds(figures.mtbf_seconds, figures.save_seconds);
  }
  return figures;
}

Json json_of(const Figures& figures) {
  Json json;
  json["world"] = figures.world;
  for (int axis = 0; axis < kAxisCount; ++axis) {
    json["mesh"][name_of(static_cast<Axis>(axis))] =
        std::int64_t{figures.run.mesh.extent(static_cast<Axis>(axis))};
  }
  json["steps"] = figures.run.steps;
  json["batch"]["global"] = figures.run.batch.global;
  json["batch"]["micro"] = figures.run.batch.micro;
  json["batch"]["accumulation"] = figures.run.batch.accumulation;
  json["batch"]["pass"] = figures.run.passes.micro;
  json["batch"]["data_ranks"] = figures.run.batch.data_ranks;
  json["parameters"]["total"] = figures.parameters.total;
  json["parameters"]["active"] = figures.parameters.active;
  for (const EqualRanks& equal : figures.ranks) {
    const RankMemory& memory = equal.memory;
    Json rank;
    rank["rank"] = equal.first;
    rank["stage"] = equal.stage;
    rank["count"] = equal.count;
    rank["parameters"] = equal.parameters;
    rank["memory_bytes"]["parameters"] = memory.parameters;
    rank["memory_bytes"]["gradients"] = memory.gradients;
    rank["memory_bytes"]["optimizer"] = memory.optimizer;
    rank["memory_bytes"]["activations"] = memory.activations;
    rank["memory_bytes"]["buffers"] = memory.buffers;
    if (memory.undo > 0) rank["memory_bytes"]["undo"] = memory.undo;
    rank["memory_bytes"]["total"] = memory.total();
    rank["save_staging_bytes"] = memory.saving;
    json["ranks"].push_back(std::move(rank));
  }
  json["memory_bytes_max"] = figures.memory.total();
  json["checkpoint_bytes"] = figures.checkpoint_bytes;
  json["bubble_rate"] = figures.bubble_rate;
  for (const std::int64_t layers : figures.stage_layers) json["stage_layers"].push_back(layers);
  json["rank_imbalance"] = figures.rank_imbalance;
  json["model_flops_per_token"] = figures.flops_per_token;
  json["traffic_bytes"] = Json::object();
  json["traffic_bytes"]["data"]["gradients"] = std::int64_t{0};
  for (const Traffic& traffic : figures.traffic)
    json["traffic_bytes"][name_of(traffic.axis)][traffic.kind] = traffic.bytes;
  if (figures.interval_seconds) json["checkpoint_interval_seconds"] = *figures.interval_seconds;
  return json;
}

void print(const RunConfig& config, const Figures& figures) {
  const RankMemory& memory = figures.memory;
  const std::vector<MemoryItem> items = items_of(memory);
  std::string text =
      fmt::format("{}: {}\n{} parameters, {} FLOP a token\n", counted(figures.world, "rank"),
                  figures.run.mesh.text(), format_integer(figures.parameters.total),
                  format_count(static_cast<double>(figures.flops_per_token)));
  text += batch_text(arithmetic_of(figures.run, config.data.sequence_length)) +
          (figures.ranks.size() == 1 ? "Memory of each rank:\n"
                                     : "Memory of the rank that needs most:\n") +
          memory_text(items, 0);
  if (figures.stage_layers.size() > 1) {
    text += fmt::format(
        "Layers of the virtual stages: {}; the longest rank computes {:.1f} % more than the mean, "
        "bubble {:.1f} %\n",
        fmt::join(figures.stage_layers, ", "), 100 * figures.rank_imbalance,
        100 * figures.bubble_rate);
  }
  for (const Traffic& traffic : figures.traffic) {
    text += fmt::format("Sent by each rank in a step: {} ({}, {} axis)\n",
                        format_bytes(traffic.bytes), traffic.kind, name_of(traffic.axis));
  }
  if (device_kind(config.run.device) == DeviceKind::kCpu) {
    text +=
        "Beside it: 2 to 4 MB of compiled products and MPI's buffers, about as much of programs "
        "read from disk, and in fp32 packed operands of products (up to 3 MB a thread); `train "
        "benchmark` measures them\n";
  }
  text +=
      fmt::format("A checkpoint: {}; each rank copies what it writes of it into {}{}\n",
                  format_bytes(figures.checkpoint_bytes), format_bytes(memory.saving),
                  device_kind(config.run.device) == DeviceKind::kCpu ? ", which the buffers hold"
                                                                     : " of the host's memory");
  if (figures.interval_seconds) {
    text += fmt::format(
        "Save every {}: what loses least where a failure comes every {} and a save stops the run "
        "for "
        "{:.3g} s (Young, Daly)\n",
        format_duration(*figures.interval_seconds), format_duration(figures.mtbf_seconds),
        figures.save_seconds);
  }
  std::fputs(text.c_str(), stdout);
}

/// A config of which no key could be read, as the object that is promised for every fault.
void print_unreadable(const Options& options, const Error& error) {
  Json json;
  json["world"] = options.world.value_or(1);
  json["errors"] = problems_json({{"", "", "", "", error.what()}});
  std::puts(json.dump(2).c_str());
}

}  // namespace

int plan_command(Arguments arguments) {
  Options options;
  CLI::App app("Checks a config for N ranks without starting any, and says what the run needs.",
               "train plan");
  add_config_options(app, options.input);
  app.add_option("--world", options.world,
                 "ranks; default tensor x context x pipeline x (data or 1)")
      ->check(integer_from(1));
  app.add_option("--memory", options.memory,
                 "what a rank may use, such as 80GiB; more is an error");
  app.add_option("--mtbf-hours", options.mtbf_hours,
                 "mean time between failures, for the checkpoint interval")
      ->check(number_above(0));
  app.add_option("--write-gbps", options.write_gbps,
                 "GB/s at which checkpoints are written; default 1")
      ->check(number_above(0));
  app.add_flag("--json", options.json, "print one JSON object, also when there are errors");
  if (!parse_options(app, arguments)) return 0;

  LoadedConfig loaded;
  try {
    loaded = read_config_with_model(options.input);
  } catch (const Error& error) {
    if (options.json) print_unreadable(options, error);
    throw;
  }
  RunConfig& config = loaded.config;
  const std::int64_t world = options.world.value_or(default_world(config));
  ResolveInput input;
  input.world = world;
  input.device = device_kind(config.run.device);
  const Inputs inputs = check_inputs(loaded, DataFiles::kChecked);
  if (!inputs.data.synthetic && inputs.data.tokens > 0) input.windows = inputs.data.windows;
  const ResolvedRun run = resolve_run(config, input, loaded.problems, loaded.notes);
  loaded.problems.insert(loaded.problems.end(), inputs.problems.begin(), inputs.problems.end());
  if (auto fault = device_fault(config)) loaded.problems.push_back(*std::move(fault));
  if (loaded.problems.empty()) check_sources(config, run, loaded.problems);
  for (const std::string& note : loaded.notes) log_info_text(note);
  std::optional<Figures> figures;
  if (loaded.problems.empty()) {
    figures = compute(options, config, run, world);
    check_memory(options, *figures, loaded.problems);
  }
  if (options.json) {
    Json json = figures ? json_of(*figures) : Json::object();
    if (!figures) json["world"] = world;
    json["errors"] = problems_json(loaded.problems);
    std::puts(json.dump(2).c_str());
  } else if (figures) {
    print(config, *figures);
  }
  throw_problems(loaded.problems);
  return 0;
}

}  // namespace trireme
