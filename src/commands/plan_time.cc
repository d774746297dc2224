#include "commands/plan_time.h"

#include <fmt/core.h>

#include "base/human_format.h"
#include "plan/mean_step.h"
#include "plan/memory.h"

namespace trireme {

namespace {

Json number_or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json(nullptr);
}

Json axes_json(const AxisNumbers& numbers) {
  Json json = Json::object();
  for (const Axis axis : kTrafficAxes)
    if (numbers[axis] > 0) json[name_of(axis)] = numbers[axis];
  return json;
}

/// "1.23 s (4 %)"
std::string part_text(double seconds, double all) {
  return fmt::format("{:.4g} s ({:.1f} %)", seconds, 100 * seconds / all);
}

std::string axes_text(const PlannedTime& planned) {
  std::string text;
  for (const Axis axis : kTrafficAxes) {
    const double exposed = planned.step.exposed[axis], hidden = planned.step.hidden[axis];
    if (exposed + hidden == 0) continue;
    text += fmt::format("  {:<9} {} exposed, {:.4g} s behind work\n", name_of(axis),
                        part_text(exposed, planned.step.seconds), hidden);
  }
  return text;
}

/// Every assumption of a prediction.
std::string assumptions_text(const Cluster& cluster) {
  const Cluster::Efficiency& of = cluster.efficiency;
  std::string text = fmt::format(
      "Assumed: cluster {}, {} of {} a node; of their rates products reach {:.0f} %, memory {:.0f} "
      "%, attention {:.0f} %, links in a node {:.0f} %, between nodes {:.0f} %; experts evenly "
      "chosen, attention not masked by documents, nobody else on the links\n",
      cluster.name, counted(cluster.devices_per_node, "device"), cluster.device.name, 100 * of.gemm,
      100 * of.memory, 100 * of.attention, 100 * of.node, 100 * of.network);
  if (!cluster.gemm.empty() || !cluster.memory.empty())
    text += "Assumed: products and passes over memory as the cluster file has measured them\n";
  if (cluster.program)
    text +=
        "Assumed: layers of another system (\"program\" in the cluster file), not of this one\n";
  return text;
}

std::string money_text(const PlannedTime& planned, const Cluster& cluster) {
  const RunCost& cost = planned.cost;
  std::string text = fmt::format(
      "The run: {} steps, {} tokens in {}: {:.4g} device-hours, {:.4g} for 10^9 tokens\n",
      format_integer(planned.steps), format_count(planned.length.tokens),
      format_duration(planned.length.seconds), cost.device_hours, cost.device_hours_per_1e9_tokens);
  if (cost.kwh) {
    const Cluster::Power& power = cluster.power;
    text += fmt::format(
        "Energy: {:.4g} kWh, {:.4g} for 10^9 tokens (a node {:.4g} W, a busy device {:.4g} W more, "
        "{:.0f} % of the time, PUE {:g})\n",
        *cost.kwh, cost.kwh_per_1e9_tokens.value_or(0), power.node_idle_watts.value_or(0),
        power.device_watts.value_or(0), 100 * planned.length.busy, power.pue);
  }
  if (cost.cost) {
    text += fmt::format("Cost: {:.2f}, {:.2f} for 10^9 tokens (prices of the cluster file)\n",
                        *cost.cost, cost.cost_per_1e9_tokens.value_or(0));
  }
  if (cost.storage_month) {
    text += fmt::format("Storage: {} kept, {} together: {:.2f} a month, {:.2f} each\n",
                        counted(planned.checkpoints, "checkpoint"),
                        format_bytes(planned.length.storage_bytes), *cost.storage_month,
                        *cost.storage_month / static_cast<double>(planned.checkpoints));
  }
  return text;
}

}  // namespace

Cluster take_cluster(const std::string& path_or_name, RunConfig& config,
                     std::vector<Problem>& problems) {
  const std::size_t faults = problems.size();
  Cluster cluster = read_cluster(path_or_name, problems);
  if (problems.size() > faults) return cluster;
  const bool cpu = cluster.device.kind == DeviceKind::kCpu;
  if (config.run.device == DeviceChoice::kAuto) {
    config.run.device = cpu ? DeviceChoice::kCpu : DeviceChoice::kCuda;
  } else if ((config.run.device == DeviceChoice::kCpu) != cpu) {
    problems.push_back({"run.device", cpu ? "\"cuda\"" : "\"cpu\"",
                        cpu ? "\"cpu\" or \"auto\"" : "\"cuda\" or \"auto\"", "\"auto\"",
                        fmt::format("the cluster {} has other devices", cluster.name)});
  }
  return cluster;
}

PlannedTime plan_time(const RunConfig& config, const ResolvedRun& run, const Cluster& cluster,
                      std::int64_t flops_per_token) {
  PlannedTime planned;
  planned.step = predict_step(config.model, step_layout(config, run), cluster);
  planned.steps = run.steps;
  const double seconds = planned.step.seconds;
  const double tokens =
      static_cast<double>(run.batch.global) * static_cast<double>(config.data.sequence_length);
  planned.tokens_per_second = tokens / seconds;
  const DType type = run.fp8 ? DType::kF8E4M3 : run.compute;
  planned.peak_tflops = config.run.peak_tflops.value_or(cluster.peak_flops(type) / 1e12);
  planned.mfu = planned.tokens_per_second * static_cast<double>(flops_per_token) /
                (1e12 * planned.peak_tflops * run.mesh.size());
  RunLength& length = planned.length;
  const PredictedStep mean = predict_mean_step(planned.step, config, run, cluster);
  length.tokens =
      static_cast<double>(run.samples()) * static_cast<double>(config.data.sequence_length);
  length.seconds = mean.seconds * static_cast<double>(run.steps);
  length.devices = run.mesh.size();
  length.busy = 1 - (mean.bubble + mean.host) / mean.seconds;
  planned.checkpoints = checkpoints_kept(config.checkpoint, run.steps);
  length.storage_bytes = planned.checkpoints * checkpoint_bytes(config);
  planned.flops = length.tokens * static_cast<double>(flops_per_token);
  planned.cost = cost_of(length, cluster);
  return planned;
}

Json time_json(const PlannedTime& planned) {
  const PredictedStep& step = planned.step;
  Json json;
  json["step_seconds"] = step.seconds;
  json["compute"] = step.compute;
  json["host"] = step.host;
  json["exposed"] = axes_json(step.exposed);
  json["hidden"] = axes_json(step.hidden);
  json["bubble"] = step.bubble;
  json["optimizer"] = step.optimizer;
  json["tokens_per_second"] = planned.tokens_per_second;
  json["mfu"] = planned.mfu;
  json["peak_tflops"] = planned.peak_tflops;
  return json;
}

Json run_json(const PlannedTime& planned) {
  const RunCost& cost = planned.cost;
  Json json;
  json["tokens"] = planned.length.tokens;
  json["steps"] = planned.steps;
  json["hours"] = cost.hours;
  json["device_hours"] = cost.device_hours;
  json["flops"] = planned.flops;
  json["cost"] = number_or_null(cost.cost);
  json["kwh"] = number_or_null(cost.kwh);
  json["storage_bytes"] = planned.length.storage_bytes;
  json["checkpoints"] = planned.checkpoints;
  json["storage_month"] = number_or_null(cost.storage_month);
  Json& each = json["per_1e9_tokens"];
  each["device_hours"] = cost.device_hours_per_1e9_tokens;
  each["cost"] = number_or_null(cost.cost_per_1e9_tokens);
  each["kwh"] = number_or_null(cost.kwh_per_1e9_tokens);
  return json;
}

Json cluster_json(const Cluster& cluster) {
  Json json;
  json["name"] = cluster.name;
  json["devices_per_node"] = cluster.devices_per_node;
  json["device"] = cluster.device.name;
  Json& efficiency = json["efficiency"];
  efficiency["gemm"] = cluster.efficiency.gemm;
  efficiency["memory"] = cluster.efficiency.memory;
  efficiency["attention"] = cluster.efficiency.attention;
  efficiency["node"] = cluster.efficiency.node;
  efficiency["network"] = cluster.efficiency.network;
  return json;
}

std::string time_text(const PlannedTime& planned, const Cluster& cluster) {
  const PredictedStep& step = planned.step;
  return assumptions_text(cluster) +
         fmt::format(
             "A step takes {:.4g} s (predicted): {} tokens/s, MFU {:.1f} % of {:.4g} TFLOP/s\n"
             "  compute   {}\n{}{}{}  optimizer {}\n",
             step.seconds, format_count(planned.tokens_per_second), 100 * planned.mfu,
             planned.peak_tflops, part_text(step.compute, step.seconds), axes_text(planned),
             step.bubble > 0 ? fmt::format("  bubble    {}\n", part_text(step.bubble, step.seconds))
                             : "",
             step.host > 0 ? fmt::format("  host      {}\n", part_text(step.host, step.seconds))
                           : "",
             part_text(step.optimizer, step.seconds)) +
         money_text(planned, cluster);
}

}  // namespace trireme
