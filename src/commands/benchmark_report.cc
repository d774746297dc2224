#include "commands/benchmark_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/human_format.h"

namespace trireme {

namespace {

/// Null where the divisor says "not measured".
Json quotient(double a, double b) { return b > 0 ? Json(a / b) : Json(); }

Json machine_json(const BenchmarkResult& result) {
  const MachineRates& rates = result.rates;
  Json json;
  json["cpu"] = result.cpu;
  json["isa"] = result.isa;
  json["threads"] = result.world * result.threads;
  if (!rates.known()) return json;
  json["sgemm_gflops"] = rates.sgemm_flops_per_second * 1e-9;
  json["bf16_gflops"] =
      rates.bf16_flops_per_second > 0 ? Json(rates.bf16_flops_per_second * 1e-9) : Json();
  if (rates.fp8_flops_per_second > 0) json["fp8_gflops"] = rates.fp8_flops_per_second * 1e-9;
  json["copy_gb_per_second"] = rates.memory_bytes_per_second() * 1e-9;
  json["cache_copy_gb_per_second"] = rates.cache_bytes_per_second() * 1e-9;
  json["copies"] = Json::array();
  for (const CopyRate& copy : rates.copies) {
    json["copies"].push_back(Json::Object{{"bytes_per_rank", copy.bytes},
                                          {"gb_per_second", copy.bytes_per_second * 1e-9}});
  }
  return json;
}

void put_seconds(Json& json, const Range& seconds, const BenchmarkResult& result) {
  json["seconds"] = seconds.mean;
  if (result.world > 1) {
    json["seconds_minimum"] = seconds.minimum;
    json["seconds_maximum"] = seconds.maximum;
  }
  json["share"] = seconds.mean / result.cost.seconds;
}

Json op_json(const OpCost& op, const BenchmarkResult& result) {
  Json json;
  json["phase"] = name_of(op.phase);
  json["op"] = op.op;
  json["type"] = name_of(op.type);
  json["calls"] = op.calls;
  put_seconds(json, op.seconds, result);
  json["flops"] = op.flops;
  json["bytes"] = op.bytes;
  json["gflops"] = quotient(op.flops * 1e-9, op.seconds.mean);
  json["gb_per_second"] = quotient(op.bytes * 1e-9, op.seconds.mean);
  json["bound"] = op.bound == Bound::kCompute ? "compute" : "memory";
  json["of_rate"] = result.rates.known() ? quotient(op.bound_seconds, op.seconds.mean) : Json();
  return json;
}

Json phase_json(StepPhase phase, const BenchmarkResult& result) {
  const PhaseCost& cost = result.cost.phases[static_cast<std::size_t>(phase)];
  Json json;
  json["phase"] = name_of(phase);
  put_seconds(json, cost.seconds, result);
  json["not_in_ops"] = cost.not_in_ops;
  return json;
}

Json part_json(const PartCost& part, const BenchmarkResult& result) {
  Json json;
  json["part"] = part.part;
  json["seconds"] = part.seconds;
  json["share"] = part.seconds / result.cost.seconds;
  const bool ops = part.bound_seconds > 0;
  json["roofline_seconds"] = ops ? Json(part.bound_seconds) : Json();
  json["of_rate"] = ops ? quotient(part.bound_seconds, part.seconds) : Json();
  return json;
}

Json bytes_json(const ByAxis& bytes) {
  Json json = Json::object();
  for (const Axis axis : kTrafficAxes) json[name_of(axis)] = bytes[axis];
  return json;
}

Json seconds_json(const ByAxis& ns) {
  Json json = Json::object();
  for (const Axis axis : kTrafficAxes) json[name_of(axis)] = static_cast<double>(ns[axis]) * 1e-9;
  return json;
}

Json rank_json(const RankFigures& rank) {
  Json json;
  json["memory_bytes"] = rank.memory_bytes;
  json["planned_memory_bytes"] = rank.planned_memory_bytes;
  json["heap_bytes"] = rank.heap_bytes;
  json["scratch_bytes"] = rank.scratch_bytes;
  json["untouched_bytes"] = rank.untouched_bytes;
  json["code_bytes"] = rank.code_bytes;
  json["sent_bytes"] = bytes_json(rank.sent_bytes);
  json["planned_sent_bytes"] = bytes_json(rank.planned_sent_bytes);
  json["communication_exposed"] = seconds_json(rank.exposed_ns);
  return json;
}

double phase_seconds(const StepCost& cost, StepPhase phase) {
  return cost.phases[static_cast<std::size_t>(phase)].seconds.mean;
}

}  // namespace

double BenchmarkResult::mean_seconds() const {
  return std::accumulate(step_seconds.begin(), step_seconds.end(), 0.0) /
         static_cast<double>(step_seconds.size());
}

std::optional<double> BenchmarkResult::of_product_rate() const {
  if (!rates.known()) return std::nullopt;
  return model_flops / median_seconds() / rates.flops_per_second(compute);
}

Json benchmark_json(const BenchmarkResult& result) {
  const double median = result.median_seconds();
  const StepCost& cost = result.cost;
  Json json;
  json["world"] = result.world;
  json["threads_per_rank"] = result.threads;
  json["compute"] = result.precision;
  json["steps"] = static_cast<std::int64_t>(result.step_seconds.size());
  json["step_seconds"]["minimum"] = result.step_seconds.front();
  json["step_seconds"]["median"] = median;
  json["step_seconds"]["maximum"] = result.step_seconds.back();
  json["step_seconds"]["mean"] = result.mean_seconds();
  json["tokens_per_second"] = result.tokens / median;
  json["tflops_per_second"] = result.model_flops / median * 1e-12;
  json["mfu"] = result.peak_flops ? Json(result.model_flops / median / *result.peak_flops) : Json();
  json["of_product_rate"] = result.of_product_rate() ? Json(*result.of_product_rate()) : Json();
  json["memory_bytes"] = result.memory_bytes;
  json["time"]["forward"] = phase_seconds(cost, StepPhase::kForward);
  json["time"]["backward"] = phase_seconds(cost, StepPhase::kBackward);
  json["time"]["communication_exposed"] = phase_seconds(cost, StepPhase::kCommunication);
  json["time"]["optimizer"] = phase_seconds(cost, StepPhase::kOptimizer);
  json["time"]["data_wait"] = phase_seconds(cost, StepPhase::kData);
  json["ranks"] = Json::array();
  for (const RankFigures& rank : result.ranks) json["ranks"].push_back(rank_json(rank));
  json["machine"] = machine_json(result);
  json["phases"] = Json::array();
  for (std::size_t i = 0; i < cost.phases.size(); ++i) {
    json["phases"].push_back(phase_json(static_cast<StepPhase>(i), result));
  }
  json["ops"] = Json::array();
  for (const OpCost& op : cost.ops) json["ops"].push_back(op_json(op, result));
  json["bounds"] = Json::array();
  for (const PartCost& part : cost.parts) json["bounds"].push_back(part_json(part, result));
  json["roofline_seconds"] = result.rates.known() ? Json(cost.bound_seconds) : Json();
  json["of_roofline"] = result.rates.known() ? quotient(cost.bound_seconds, cost.seconds) : Json();
  return json;
}

namespace {

constexpr std::size_t kColumnsMax = 100;
constexpr std::string_view kRow = "{:<28}{:>6}{:>10}{:>9}{:>9}{:>8}{:>8}  {}";

/// What would show as 0.0 % is left to --json.
bool shows(double seconds, const StepCost& cost) { return seconds >= 0.0005 * cost.seconds; }

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", seconds * 1e3); }
std::string percent(double part) { return fmt::format("{:.1f} %", 100 * part); }
std::string whole_percent(double part) { return fmt::format("{:.0f} %", 100 * part); }
/// A mark for each twentieth.
std::string bar(double share) {
  const double marks = std::clamp(share, 0.0, 1.0) * 20 + 0.5;
  return std::string(static_cast<std::size_t>(marks), '#');
}

/// Without the spaces that end it.
std::string trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string plain_row(std::string_view name, double seconds, double share, std::string_view tail) {
  return trimmed(
      fmt::format(kRow, name, "", milliseconds(seconds), percent(share), "", "", "", tail));
}

std::string op_row(const OpCost& op, const BenchmarkResult& result) {
  const double seconds = op.seconds.mean, share = seconds / result.cost.seconds;
  const auto rate = [&](double work) {
    return work > 0 && seconds > 0 ? fmt::format("{:.1f}", work / seconds * 1e-9) : std::string();
  };
  const bool compute = op.bound == Bound::kCompute;
  return trimmed(fmt::format(
      kRow, "  " + op.op, op.calls, milliseconds(seconds), percent(share),
      compute ? rate(op.flops) : "", compute ? "" : rate(op.bytes),
      op.bound_seconds > 0 && seconds > 0 ? whole_percent(op.bound_seconds / seconds) : "",
      bar(share)));
}

std::string head_text(const BenchmarkResult& result) {
  const double median = result.median_seconds(), flops = result.model_flops / median;
  std::string text = fmt::format("{}, {}\n", result.model, result.precision);
  text += fmt::format("cpu       {}, {}; {} rank{} x {} thread{}\n", result.cpu, result.isa,
                      result.world, result.world > 1 ? "s" : "", result.threads,
                      result.threads > 1 ? "s" : "");
  text += fmt::format(
      "step      {} ms (median of {}; {} to {})   {} tokens/s   memory {}{}\n",
      milliseconds(median), result.step_seconds.size(), milliseconds(result.step_seconds.front()),
      milliseconds(result.step_seconds.back()), format_count(result.tokens / median),
      format_bytes(result.memory_bytes), result.world > 1 ? " a rank" : "");
  text += fmt::format("model     {:.1f} GFLOP/s", flops * 1e-9);
  if (result.of_product_rate()) {
    text += fmt::format(", {} of the machine's {}product rate", percent(*result.of_product_rate()),
                        result.compute == DType::kBF16 ? "bf16 " : "");
  }
  if (result.peak_flops)
    text += fmt::format(", MFU {}{}", percent(flops / *result.peak_flops),
                        result.precision == "fp8" ? " of the fp8 peak" : "");
  text += '\n';
  const MachineRates& rates = result.rates;
  if (!rates.known()) return text;
  text +=
      fmt::format("machine   products {:.1f} GFLOP/s{}, copy {:.1f} GB/s (in cache {:.1f})\n",
                  rates.sgemm_flops_per_second * 1e-9,
                  (rates.bf16_flops_per_second > 0
                       ? fmt::format(" (bf16 {:.1f})", rates.bf16_flops_per_second * 1e-9)
                       : "") +
                      (rates.fp8_flops_per_second > 0
                           ? fmt::format(" (fp8 {:.1f})", rates.fp8_flops_per_second * 1e-9)
                           : ""),
                  rates.memory_bytes_per_second() * 1e-9, rates.cache_bytes_per_second() * 1e-9);
  return text;
}

std::string table_text(const BenchmarkResult& result) {
  const StepCost& cost = result.cost;
  std::string text = trimmed(
      fmt::format(kRow, "phase and op", "calls", "ms", "share", "GFLOP/s", "GB/s", "of rate", ""));
  for (std::size_t i = 0; i < cost.phases.size(); ++i) {
    const auto phase = static_cast<StepPhase>(i);
    const PhaseCost& each = cost.phases[i];
    if (!shows(each.seconds.mean, cost)) continue;
    const double share = each.seconds.mean / cost.seconds;
    text += plain_row(name_of(phase), each.seconds.mean, share, bar(share));
    bool ops = false;
    for (const OpCost& op : cost.ops) {
      if (op.phase != phase) continue;
      ops = true;
      if (shows(op.seconds.mean, cost)) text += op_row(op, result);
    }
    if (ops && shows(each.not_in_ops, cost)) {
      text += plain_row("  not in ops", each.not_in_ops, each.not_in_ops / cost.seconds, "");
    }
  }
  return text + plain_row("step, mean", cost.seconds, 1, "");
}

std::string between_ranks_text(const BenchmarkResult& result) {
  if (result.world == 1) return "";
  std::string text;
  for (std::size_t i = 0; i < result.cost.phases.size(); ++i) {
    const Range& seconds = result.cost.phases[i].seconds;
    // A fiftieth of the step is what one would look into.
    if (seconds.maximum - seconds.minimum < 0.02 * result.cost.seconds) continue;
    text += fmt::format("  {} {} to {} ms\n", name_of(static_cast<StepPhase>(i)),
                        milliseconds(seconds.minimum), milliseconds(seconds.maximum));
  }
  return text.empty() ? "between ranks no phase differs by 2 % of the step\n"
                      : "between ranks\n" + text;
}

/// What is above its bound, the most first, as much as a line takes.
std::string most_to_gain(const StepCost& cost) {
  struct Gain {
    std::string name;
    double seconds;
  };
  std::vector<Gain> gains;
  for (const OpCost& op : cost.ops) gains.push_back({op.op, op.seconds.mean - op.bound_seconds});
  for (const PartCost& part : cost.parts) {
    if (part.bound_seconds == 0) gains.push_back({part.part, part.seconds});
  }
  std::stable_sort(gains.begin(), gains.end(),
                   [](const Gain& a, const Gain& b) { return a.seconds > b.seconds; });
  std::string text = "most to gain, of the step:";
  for (const Gain& gain : gains) {
    const std::string next = fmt::format("{} {} {}", text.back() == ':' ? "" : ",", gain.name,
                                         percent(gain.seconds / cost.seconds));
    if (text.size() + next.size() > kColumnsMax || !shows(gain.seconds, cost)) break;
    text += next;
  }
  return text;
}

std::string bounds_text(const BenchmarkResult& result) {
  const StepCost& cost = result.cost;
  std::string text =
      trimmed(fmt::format(kRow, "what bounds the step", "", "ms", "share", "", "", "of rate", ""));
  for (const PartCost& part : cost.parts) {
    if (!shows(part.seconds, cost)) continue;
    const double share = part.seconds / cost.seconds;
    const std::string of_rate = part.bound_seconds > 0 && part.seconds > 0
                                    ? whole_percent(part.bound_seconds / part.seconds)
                                    : "";
    text += trimmed(fmt::format(kRow, "  " + part.part, "", milliseconds(part.seconds),
                                percent(share), "", "", of_rate, bar(share)));
  }
  if (!result.rates.known()) return text;
  text += fmt::format("at the machine's rates the step would take {} ms: {} of that is reached\n",
                      milliseconds(cost.bound_seconds), percent(cost.bound_seconds / cost.seconds));
  text += most_to_gain(cost) + "\n";
  text += "of rate: of the machine's product, or of its copy of as many bytes\n";
  return text;
}

/// Of the rank that sends most along an axis: what went, how long a mean rank waited.
std::string sent_text(const BenchmarkResult& result) {
  std::string text;
  for (const Axis axis : kTrafficAxes) {
    const RankFigures* most = nullptr;
    double waited = 0;
    for (const RankFigures& rank : result.ranks) {
      waited +=
          static_cast<double>(rank.exposed_ns[axis]) / static_cast<double>(result.ranks.size());
      if (most == nullptr || rank.sent_bytes[axis] > most->sent_bytes[axis]) most = &rank;
    }
    if (most == nullptr || most->sent_bytes[axis] == 0) continue;
    text += fmt::format("  {:<8} {} in a step (planned {}), waited for {} ms\n", name_of(axis),
                        format_bytes(most->sent_bytes[axis]),
                        format_bytes(most->planned_sent_bytes[axis]), milliseconds(waited * 1e-9));
  }
  return text.empty() ? text : "sent by a rank\n" + text;
}

}  // namespace

std::string benchmark_text(const BenchmarkResult& result) {
  return head_text(result) + "\n" + table_text(result) + between_ranks_text(result) +
         sent_text(result) + "\n" + bounds_text(result);
}

}  // namespace trireme
