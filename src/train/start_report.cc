#include "train/start_report.h"

#include "base/human_format.h"
#include "base/log.h"
#include "base/version.h"
#include "checkpoint/own_shards.h"
#include "device/gpu.h"
#include "model/flops.h"
#include "telemetry/console.h"
#include "train/device_choice.h"

namespace trireme {

namespace {

std::string saving_text(const RunConfig::Checkpoint& config, const RankMemory& memory,
                        std::int64_t needed) {
  if (!config.async) return "";
  return fmt::format(
      "  saving    {} of memory for a save under way{}\n", format_bytes(memory.saving),
      memory.saving >= needed ? ""
                              : fmt::format(" of {}: beyond it steps wait for the disk "
                                            "(checkpoint.staging_bytes)",
                                            format_bytes(needed)));
}

/// "bf16", or "fp8 (one scale a tensor, gradients e5m2; MFU is of the fp8 peak)".
std::string precision_text(const ResolvedRun& run) {
  std::string text(precision_name(run));
  if (!run.fp8) return text;
  text += fmt::format(
      " ({}, gradients {}",
      run.fp8->recipe == Fp8Recipe::kBlock ? "scales of blocks of 128" : "one scale a tensor",
      name_of(run.fp8->gradients));
  const auto [first, last] = run.fp8->bf16_layers;
  if (first + last > 0)
    text += fmt::format("; the first {} and last {} layers in bf16", first, last);
  return text + (run.device == DeviceKind::kCuda ? "; MFU is of the fp8 peak)" : ")");
}

}  // namespace

void print_start(const PreparedRun& prepared, const Runtime& runtime, const Placement& placement,
                 const RankMemory& memory) {
  const RunConfig& config = prepared.config;
  RankPlacement mine;
  mine.rank = runtime.replica().rank();
  mine.host = runtime.launch.host_name();
  mine.cores = range_text(placement.cpus);
  mine.threads = runtime.options.threads;
  mine.device = device_text(runtime.context.device());
  Json place = Json::object();
  place["host"] = mine.host;
  place["cores"] = mine.cores;
  place["threads"] = mine.threads;
  place["device"] = mine.device;
  const std::string all = runtime.replica().reduce_text(
      place.dump(),
      [](const std::string& lower, const std::string& higher) { return lower + "," + higher; });
  if (mine.rank != 0) return;
  std::vector<RankPlacement> places;
  const Json others = parse_json("[" + all + "]", "the places of all ranks");
  for (const Json& other : others.as_array()) {
    places.push_back({static_cast<std::int64_t>(places.size()), other.find("host")->as_string(),
                      other.find("cores")->as_string(), other.find("threads")->as_integer(),
                      other.find("device")->as_string()});
  }
  const std::vector<MemoryItem> items = items_of(memory);
  // A GPU's memory is taken by now, a host's when it is touched.
  std::int64_t available = memory_bytes_available() / runtime.launch.local_size();
  if (runtime.context.on_gpu()) {
    available = static_cast<std::int64_t>(gpu::free_bytes());
    for (const MemoryItem& item : items) available += item.second;
  }
  BatchArithmetic batch = arithmetic_of(prepared.run, config.data.sequence_length);
  batch.windows = prepared.data.windows;
  const ParameterCount count = count_parameters(runtime.model);
  const auto shown = [](std::int64_t parameters) {
    return format_count(static_cast<double>(parameters));
  };
  log_info("{} with {} parameters{}, computing in {}", name_of(config.model.family),
           shown(count.total),
           config.model.adapters || !config.model.groups.empty()
               ? fmt::format(", of which {}{} are trained", shown(count.trained),
                             config.model.adapters ? " in adapters" : "")
               : "",
           precision_text(prepared.run));
  log_info_text(batch_text(batch) + memory_text(items, available) +
                saving_text(config.checkpoint, memory, staged_bytes_max(runtime.store.state())) +
                placements_text(places));
}

StartLine start_line(const PreparedRun& prepared, const Runtime& runtime) {
  StartLine line;
  line.version = program_version();
  line.world = runtime.replica().size();
  line.mesh = prepared.run.mesh.json();
  line.parameters = count_parameters(runtime.model).total;
  line.model_flops_per_token =
      model_flops_per_token(prepared.config.model, prepared.config.data.sequence_length);
  line.peak_tflops = peak_tflops(prepared.config, runtime.context.device());
  line.config = resolved_json(prepared.config);
  line.predicted = prepared.predicted;
  return line;
}

}  // namespace trireme
