#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "base/file.h"
#include "base/human_format.h"
#include "base/log.h"
#include "base/math.h"
#include "base/units.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/parse_options.h"
#include "commands/plan_experts.h"
#include "commands/plan_search.h"
#include "commands/plan_time.h"
#include "config/fields.h"
#include "model/flops.h"
#include "pipeline/simulate.h"
#include "plan/fp8_support.h"
#include "plan/rank_memory.h"
#include "plan/traffic.h"
#include "telemetry/console.h"
#include "train/device_choice.h"
#include "train/inputs.h"
#include "train/prepare.h"
#include "train/run_files.h"
#include "train/runtime.h"

namespace trireme {

namespace {

/// The interval between checkpoints that loses least: sqrt(2 x mean time between failures x time of
/// a save), both in seconds (Young 1974; Daly 2006 refines it for saves that take long).
double young_daly_seconds(double mtbf_seconds, double save_seconds) {
  return std::sqrt(2 * mtbf_seconds * save_seconds);
}

struct Options {
  ConfigInput input;
  std::optional<std::int64_t> world;
  std::string memory, cluster, expert_load, write;
  std::optional<double> mtbf_hours, write_gbps;
  bool json = false, no_data = false, search = false;
};

struct Figures {
  ResolvedRun run;
  std::int64_t world = 1;
  std::vector<EqualRanks> ranks;
  RankMemory memory;  ///< of the rank that needs most
  ParameterCount parameters;
  std::int64_t checkpoint_bytes = 0, flops_per_token = 0;
  std::vector<Traffic> traffic;            ///< of each axis and kind, of the rank that sends most
  std::vector<std::int64_t> stage_layers;  ///< of each virtual stage
  double bubble_rate = 0, rank_imbalance = 0;
  double even_bubble_rate = 0;  ///< were all stages as long as their mean
  std::optional<double> interval_seconds;
  double mtbf_seconds = 0, save_seconds = 0;  ///< what that interval follows from
  std::optional<PlannedExperts> experts;
  std::optional<Cluster> cluster;
  bool device_of_cluster = false;  ///< the config left it open
  std::optional<PlannedTime> time;
};

/// What only the sources themselves know: lengths of splits and orders.
void check_sources(const RunConfig& config, const ResolvedRun& run,
                   std::vector<Problem>& problems) {
  try {
    check_training_source(config, run.samples());
  } catch (const Error& error) {
    problems.push_back(problem_of(error, "data.train"));
  }
}

void check_length_without_data(const RunConfig& config, std::vector<Problem>& problems) {
  if (!config.run.epochs) return;
  problems.push_back({"run.epochs", fmt::format("{}", *config.run.epochs),
                      "run.steps or run.tokens, or a plan without --no-data", "",
                      "counts windows of data that are left out"});
}

/// The placement, written where that is wanted.
void take_experts(const Options& options, const RunConfig& config, Figures& figures,
                  std::vector<Problem>& problems) {
  if (options.expert_load.empty()) return;
  try {
    figures.experts = plan_experts(config, read_expert_load(options.expert_load, config.model));
    if (options.write.empty() || options.search) return;
    write_file_atomically(options.write,
                          expert_placement_json(figures.experts->placement).dump() + "\n");
  } catch (const Error& error) {
    problems.push_back(problem_of(error, figures.experts ? "--write" : "--expert-load"));
  }
}

/// What a rank may use: --memory, else that of the cluster's devices; 0: not known.
std::int64_t memory_limit(const Options& options, const std::optional<Cluster>& cluster) {
  if (!options.memory.empty()) return parse_bytes(options.memory, "--memory");
  return cluster ? cluster->device.memory_bytes : 0;
}

void check_memory(const Options& options, std::int64_t limit, const RunConfig& config,
                  const Figures& figures, std::vector<Problem>& problems) {
  if (limit == 0 || figures.memory.total() <= limit) return;
  const std::string advice = memory_advice(config, figures.world, figures.run.device, limit);
  problems.push_back(
      {options.memory.empty() ? "--cluster" : "--memory", format_bytes(limit),
       fmt::format("at least {}", format_bytes(figures.memory.total())), "",
       fmt::format("a rank needs {}{}", needed_text(figures.memory),
                   advice.empty() ? "" : ". Change, what helps most first: " + advice)});
}

void take_pipeline(const Pipeline& pipeline, Figures& figures) {
  const Simulation simulation = simulate(pipeline.schedule(), pipeline.times);
  figures.bubble_rate = simulation.bubble_rate;
  const std::vector<double>& busy = simulation.busy;
  const double mean =
      std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
  figures.rank_imbalance = *std::max_element(busy.begin(), busy.end()) / mean - 1;
  for (const ChunkRange& stage : pipeline.stages) figures.stage_layers.push_back(stage.layers);
  ActionTimes even = pipeline.times;
  even.stages.clear();
  figures.even_bubble_rate = simulate(pipeline.schedule(), even).bubble_rate;
}

/// Ranks with more tokens or rows have lower numbers: the first of equal ranks sends most.
std::vector<Traffic> most_traffic(const RunConfig& config, const Figures& figures) {
  std::vector<Traffic> most;
  for (const EqualRanks& equal : figures.ranks) {
    const MemoryRequest request =
        memory_request(config, figures.run, StagePurpose::kTraining, equal.first);
    for (const Traffic& traffic : step_traffic(config.model, request, config.data.document_mask)) {
      const auto same = std::find_if(most.begin(), most.end(), [&](const Traffic& other) {
        return other.axis == traffic.axis && std::string_view(other.kind) == traffic.kind;
      });
      if (same == most.end()) {
        most.push_back(traffic);
      } else {
        same->bytes = std::max(same->bytes, traffic.bytes);
        same->transfers = std::max(same->transfers, traffic.transfers);
        same->copies = std::max(same->copies, traffic.copies);
        same->worst_bytes = std::max(same->worst_bytes, traffic.worst_bytes);
      }
    }
  }
  return most;
}

/// What a host asks for in a step to move all that.
struct HostWork {
  std::int64_t collectives = 0, copies = 0;
};
HostWork host_work(const std::vector<Traffic>& traffic) {
  HostWork work;
  for (const Traffic& each : traffic) {
    work.collectives += each.transfers;
    work.copies += each.copies;
  }
  return work;
}

Figures compute(const Options& options, const RunConfig& config, const ResolvedRun& run,
                std::int64_t world) {
  Figures figures;
  figures.run = run;
  figures.world = world;
  figures.ranks = ranks_of(config, run);
  figures.memory = most_of(figures.ranks);
  figures.parameters = count_parameters(config.model);
  take_pipeline(run.pipeline, figures);
  figures.checkpoint_bytes = checkpoint_bytes(config);
  figures.flops_per_token = model_flops_per_token(config.model, config.data.sequence_length);
  figures.traffic = most_traffic(config, figures);
  if (options.mtbf_hours) {
    figures.mtbf_seconds = *options.mtbf_hours * 3600;
    figures.save_seconds =
        static_cast<double>(figures.checkpoint_bytes) / (options.write_gbps.value_or(1) * 1e9);
    figures.interval_seconds = young_daly_seconds(figures.mtbf_seconds, figures.save_seconds);
  }
  return figures;
}

/// What is assumed of nodes where nobody says.
constexpr std::int64_t kNodeGpus = 8;
std::int64_t node_devices(const std::optional<Cluster>& cluster) {
  return cluster ? cluster->devices_per_node : kNodeGpus;
}
void assume_machine(std::int64_t memory, const std::optional<Cluster>& cluster, DeviceKind device,
                    ResolveInput& input) {
  input.device = device;
  if (device == DeviceKind::kCpu || memory == 0) return;
  input.node = {node_devices(cluster), memory};
}

std::string_view device_word(DeviceKind device) {
  return device == DeviceKind::kCuda ? "cuda" : "cpu";
}

/// The phases of batch.global; one that no step meets has no steps.
Json ramp_json(const RunConfig& config, const ResolvedRun& run) {
  const std::vector<BatchPhase>& phases = config.batch.global->phases;
  const std::vector<std::int64_t> sizes = run.ramp.sizes();
  const auto steps_before = [&](std::size_t i) {
    if (i == phases.size()) return run.steps;
    const std::int64_t samples = ceil_div(phases[i].from_token, config.data.sequence_length);
    return std::min(run.steps, run.ramp.steps_to(samples));
  };
  Json json = Json::array();
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const auto which = std::ranges::find(sizes, phases[i].size) - sizes.begin();
    const Pipeline& pipeline = run.pipeline;
    Json phase;
    phase["from_token"] = phases[i].from_token;
    phase["global"] = phases[i].size;
    phase["accumulation"] = phases[i].size / (run.batch.micro * run.batch.data_ranks);
    phase["first_step"] = steps_before(i) + 1;
    phase["steps"] = steps_before(i + 1) - steps_before(i);
    phase["bubble_rate"] =
        simulate(pipeline.steps[static_cast<std::size_t>(which)].schedule, pipeline.times)
            .bubble_rate;
    json.push_back(std::move(phase));
  }
  return json;
}

Json json_of(const RunConfig& config, const Figures& figures) {
  Json json;
  json["world"] = figures.world;
  json["device"] = device_word(figures.run.device);
  json["precision"] = precision_name(figures.run);
  json["mesh"] = figures.run.mesh.json();
  json["steps"] = figures.run.steps;
  json["batch"]["global"] = figures.run.batch.global;
  json["batch"]["micro"] = figures.run.batch.micro;
  json["batch"]["accumulation"] = figures.run.batch.accumulation;
  json["batch"]["pass"] = figures.run.passes.micro;
  json["batch"]["data_ranks"] = figures.run.batch.data_ranks;
  if (config.batch.global && config.batch.global->is_ramp())
    json["batch"]["ramp"] = ramp_json(config, figures.run);
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
    rank["memory_bytes"]["buffers"] = memory.buffers + memory.libraries;
    if (memory.undo > 0) rank["memory_bytes"]["undo"] = memory.undo;
    rank["memory_bytes"]["total"] = memory.total();
    rank["save_staging_bytes"] = memory.saving;
    if (memory.libraries > 0) rank["nccl_bytes"] = memory.libraries;  // of the buffers, an estimate
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
  for (const Traffic& traffic : figures.traffic) {
    json["traffic_bytes"][name_of(traffic.axis)][traffic.kind] = traffic.bytes;
    if (traffic.worst_bytes > 0)
      json["worst_traffic_bytes"][name_of(traffic.axis)][traffic.kind] = traffic.worst_bytes;
  }
  const auto [collectives, copies] = host_work(figures.traffic);
  json["host"]["collectives"] = collectives;
  json["host"]["copies"] = copies;
  if (figures.interval_seconds) json["checkpoint_interval_seconds"] = *figures.interval_seconds;
  if (figures.experts) json["expert_placement"] = experts_json(*figures.experts);
  if (figures.time) {
    json["cluster"] = cluster_json(*figures.cluster);
    json["time"] = time_json(*figures.time);
    json["run"] = run_json(*figures.time);
  }
  return json;
}

/// What the figures are for, and who chose that.
std::string assumed_text(const RunConfig& config, const Figures& figures) {
  const bool here = config.run.device == DeviceChoice::kAuto;
  const std::int64_t node = node_devices(figures.cluster);
  return fmt::format("Assumed: device {} ({}), precision {} ({})\n",
                     device_word(figures.run.device),
                     figures.device_of_cluster ? "the cluster's"
                     : !here                   ? "run.device"
                     : figures.run.device == DeviceKind::kCuda
                         ? "run.device is auto, and this machine has it"
                         : "run.device is auto, and this build or machine has no GPU; "
                           "--set run.device=cuda plans for one",
                     precision_name(figures.run),
                     config.precision.compute ? "precision.compute" : "its default") +
         (figures.run.zero_group == 0
              ? ""
              : fmt::format("Assumed: {} GPUs a node, each with a copy of the model "
                            "(parallel.zero_group {})\n",
                            node, figures.run.zero_group));
}

/// A row for each pipeline stage: of its rank that needs most.
std::string stages_text(const Figures& figures) {
  const std::string header[] = {"stage", "layers", "parameters", "activations", "memory"};
  const Align columns[] = {Align::kRight, Align::kRight, Align::kRight, Align::kRight,
                           Align::kRight};
  std::vector<std::vector<std::string>> rows;
  const std::vector<std::int32_t>& placement = figures.run.pipeline.placement;
  for (int stage = 0; stage < figures.run.mesh.extent(Axis::kPipeline); ++stage) {
    const EqualRanks* most = nullptr;
    for (const EqualRanks& rank : figures.ranks) {
      if (rank.stage == stage && (most == nullptr || rank.memory.total() > most->memory.total()))
        most = &rank;
    }
    std::int64_t layers = 0;
    for (std::size_t s = 0; s < placement.size(); ++s)
      layers += placement[s] == stage ? figures.stage_layers[s] : 0;
    rows.push_back({fmt::format("{}", stage), fmt::format("{}", layers),
                    format_count(static_cast<double>(most->parameters)),
                    format_bytes(most->memory.activations), format_bytes(most->memory.total())});
  }
  return "Memory by pipeline stage, of a rank:\n" + table_text(header, rows, columns);
}

std::string pipeline_text(const Figures& figures) {
  if (figures.run.mesh.extent(Axis::kPipeline) == 1) return "";
  return stages_text(figures) +
         fmt::format(
             "Layers of the virtual stages: {}; the longest rank computes {:.1f} % more than the "
             "mean\nBubble {:.1f} %: {:.1f} % of the schedule, {:+.1f} % since stages are not "
             "equally long (the head is part of the last)\n",
             fmt::join(figures.stage_layers, ", "), 100 * figures.rank_imbalance,
             100 * figures.bubble_rate, 100 * figures.even_bubble_rate,
             100 * (figures.bubble_rate - figures.even_bubble_rate));
}

void print(const RunConfig& config, const Figures& figures) {
  const RankMemory& memory = figures.memory;
  const std::vector<MemoryItem> items = items_of(memory);
  std::string text =
      fmt::format("{}: {}\n", counted(figures.world, "rank"), figures.run.mesh.text()) +
      assumed_text(config, figures) +
      fmt::format("{} parameters, {} FLOP a token\n", format_integer(figures.parameters.total),
                  format_count(static_cast<double>(figures.flops_per_token)));
  text += batch_text(arithmetic_of(figures.run, config.data.sequence_length));
  const double tokens =
      static_cast<double>(figures.run.samples()) * static_cast<double>(config.data.sequence_length);
  text += fmt::format("  compute   {:.3g} FLOP in all\n",
                      tokens * static_cast<double>(figures.flops_per_token));
  text += (figures.ranks.size() == 1 ? "Memory of each rank:\n"
                                     : "Memory of the rank that needs most:\n") +
          memory_text(items, 0) + pipeline_text(figures);
  for (const Traffic& traffic : figures.traffic) {
    const std::string worst =
        traffic.worst_bytes == 0
            ? ""
            : fmt::format("; {} where routing is at its worst", format_bytes(traffic.worst_bytes));
    text += fmt::format("Sent in a step by the rank that sends most: {} ({}, {} axis{})\n",
                        format_bytes(traffic.bytes), traffic.kind, name_of(traffic.axis), worst);
  }
  if (const HostWork work = host_work(figures.traffic); work.collectives > 0) {
    text += fmt::format("Asked for by a rank's host in a step: {} transfers, {} copies for them\n",
                        format_integer(work.collectives), format_integer(work.copies));
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
        "for {:.3g} s (Young, Daly)\n",
        format_duration(*figures.interval_seconds), format_duration(figures.mtbf_seconds),
        figures.save_seconds);
  }
  if (figures.experts) text += experts_text(*figures.experts);
  if (figures.time) text += time_text(*figures.time, *figures.cluster);
  std::fputs(text.c_str(), stdout);
}

/// A config that could not be read, as the object that is promised for every fault.
void print_unreadable(const Options& options, const Error& error) {
  Json json;
  json["world"] = options.world.value_or(1);
  json["errors"] = problems_json({{"", "", "", "", error.what()}});
  std::puts(json.dump(2).c_str());
}

/// As the extents of `parallel`: figures of a rank each are kept.
constexpr std::int64_t kWorldMost = 1 << 20;

void declare(CLI::App& app, Options& options) {
  add_config_options(app, options.input);
  app.add_option("--world", options.world,
                 "ranks; default tensor x context x pipeline x (data or 1)")
      ->check(integer_from(1, kWorldMost));
  app.add_option("--memory", options.memory,
                 "what a rank may use, such as 80GiB; more is an error");
  app.add_option("--cluster", options.cluster,
                 "seconds, money and energy there: a cluster file, or a name of configs/clusters; "
                 "devices, their memory and the node size are then the cluster's")
      ->type_name("FILE|NAME");
  CLI::Option* mtbf = app.add_option("--mtbf-hours", options.mtbf_hours,
                                     "mean time between failures, for the checkpoint interval")
                          ->check(number_above(0));
  app.add_option("--write-gbps", options.write_gbps,
                 "GB/s at which checkpoints are written; default 1")
      ->check(number_above(0))
      ->needs(mtbf);
  app.add_option("--expert-load", options.expert_load,
                 "tokens of each expert (a run writes expert_load.json): where they should stand")
      ->type_name("FILE");
  app.add_flag("--search", options.search,
               "with --cluster: the best layouts of --world ranks for the model, its global batch "
               "and the memory of a rank. Extents, schedule, ZeRO's stage, micro-batch and "
               "recomputation are free; model, sequence length, global batch and precision stay");
  app.add_option("--write", options.write,
                 "of --search: the config with the best layout; of --expert-load: the file for "
                 "parallel.expert_placement. With --search an existing file is refused")
      ->type_name("FILE");
  app.add_flag("--no-data", options.no_data,
               "the data, and the disk for checkpoints, are on another host: do not look for them");
  app.add_flag("--json", options.json, "print one JSON object, also when there are errors");
}

/// The cluster that is asked for; none where it has faults, which are noted.
std::optional<Cluster> cluster_of(const Options& options, LoadedConfig& loaded) {
  if (options.cluster.empty()) return {};
  const std::size_t faults = loaded.problems.size();
  Cluster cluster;
  try {
    cluster = take_cluster(options.cluster, loaded.config, loaded.problems);
  } catch (const Error& error) {
    loaded.problems.push_back(problem_of(error, "--cluster"));
  }
  if (loaded.problems.size() > faults) return {};
  return cluster;
}

void take_time(const RunConfig& config, const Cluster& cluster, Figures& figures) {
  figures.cluster = cluster;
  figures.time = plan_time(config, figures.run, cluster, figures.flops_per_token);
}

Json answer_json(const RunConfig& config, const std::optional<Figures>& figures,
                 const std::optional<PlannedSearch>& searched, std::int64_t world) {
  Json json = figures ? json_of(config, *figures) : Json::object();
  if (!figures) json["world"] = world;
  if (searched) {
    json["layouts"] = layouts_json(*searched);
    json["search"] = search_json(*searched);
  }
  return json;
}

/// Whether a placement stands there, which another may replace.
bool is_placement(const std::string& path) {
  try {
    const Json json = parse_json(read_file(path), path);
    return json.is_object() && json.find("placement") != nullptr;
  } catch (const Error&) {
    return false;
  }
}

/// What is written goes where nothing is read or lost.
void check_write(const Options& options) {
  if (options.search && options.cluster.empty()) {
    throw ConfigError(
        "--search: compares seconds, which need --cluster FILE or a name of configs/clusters");
  }
  if (options.search && !options.expert_load.empty()) {
    throw ConfigError(
        "--search: and --expert-load, which is of one layout. Search first, then place the experts "
        "of the config that --write gives");
  }
  if (options.write.empty()) return;
  if (options.search) return check_written_config(options.write);
  if (options.expert_load.empty()) {
    throw ConfigError(
        "--write: is for the config that --search finds, or the placement that --expert-load finds "
        "(there is nothing else to write). Give one of them");
  }
  if (std::error_code absent;
      std::filesystem::equivalent(options.write, options.expert_load, absent)) {
    throw ConfigError(
        "--write: {} is read as --expert-load (it would be overwritten). Choose "
        "another file",
        options.write);
  }
  if (is_there(options.write) && !is_placement(options.write)) {
    throw ConfigError(
        "--write: {} exists and is no placement of experts (it would be overwritten). Choose "
        "another file",
        options.write);
  }
}

}  // namespace

int plan_command(Arguments arguments) {
  Options options;
  CLI::App app("Checks a config for N ranks without starting any, and says what the run needs.",
               "train plan");
  declare(app, options);
  if (!parse_options(app, arguments)) return 0;
  check_write(options);

  LoadedConfig loaded;
  try {
    loaded = read_config_with_model(options.input);
  } catch (const Error& error) {
    if (options.json) print_unreadable(options, error);
    throw;
  }
  RunConfig& config = loaded.config;
  const bool auto_device = config.run.device == DeviceChoice::kAuto;
  const std::optional<Cluster> cluster = cluster_of(options, loaded);
  const std::int64_t memory = memory_limit(options, cluster);
  const std::int64_t world = options.world.value_or(default_world(config));
  ResolveInput input;
  input.world = world;
  assume_machine(memory, cluster, device_kind(config.run.device), input);
  const Inputs inputs =
      check_inputs(loaded, options.no_data ? DataFiles::kLeftOut : DataFiles::kChecked);
  if (auto fault = foreign_file(config)) loaded.problems.push_back(*std::move(fault));
  if (options.no_data) check_length_without_data(config, loaded.problems);
  if (!inputs.data.synthetic && inputs.data.tokens > 0) {
    input.windows = inputs.data.windows;
    if (inputs.tokenizer) input.vocabulary = inputs.tokenizer->vocab_size();
  }
  std::vector<Problem> of_layout = loaded.problems;
  const ResolvedRun run = resolve_run(config, input, of_layout, loaded.notes);
  // A search looks for another layout than one at fault.
  const bool search = options.search && cluster && loaded.problems.empty();
  const bool legal = of_layout.empty();
  if (!search) loaded.problems = of_layout;
  loaded.problems.insert(loaded.problems.end(), inputs.problems.begin(), inputs.problems.end());
  if (auto fault = device_fault(config)) loaded.problems.push_back(*std::move(fault));
  if (cluster)
    if (auto fault = fp8_fault(config, *cluster)) loaded.problems.push_back(*std::move(fault));
  if (loaded.problems.empty() && !options.no_data) {
    if (legal) check_sources(config, run, loaded.problems);
    if (auto fault = disk_fault(config, checkpoint_bytes(config)))
      loaded.problems.push_back(*std::move(fault));
  }
  for (const std::string& note : loaded.notes) log_info_text(note);
  std::optional<Figures> figures;
  std::optional<PlannedSearch> searched;
  if (search && loaded.problems.empty())
    searched = plan_search({config, input, *cluster, memory}, loaded.problems);
  if (loaded.problems.empty() && legal) {
    figures = compute(options, config, run, world);
    figures->device_of_cluster = cluster && auto_device;
    if (cluster) take_time(config, *cluster, *figures);
    if (!search) check_memory(options, memory, config, *figures, loaded.problems);
    take_experts(options, config, *figures, loaded.problems);
  }
  if (options.json) {
    Json json = answer_json(config, figures, searched, world);
    json["errors"] = problems_json(loaded.problems);
    std::puts(json.dump(2).c_str());
  } else {
    if (figures) print(config, *figures);
    if (searched) std::fputs(search_text(*searched).c_str(), stdout);
  }
  throw_problems(loaded.problems);
  if (searched && !options.write.empty()) write_best_config(*searched, loaded.given, options.write);
  return 0;
}

}  // namespace trireme
