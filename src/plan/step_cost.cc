#include "plan/step_cost.h"

#include <algorithm>

#include "base/json.h"

namespace trireme {

std::string_view name_of(StepPhase phase) {
  static constexpr std::string_view kNames[] = {"data",      "forward", "backward", "communication",
                                                "optimizer", "waiting", "other"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(StepPhase::kCount));
  return kNames[static_cast<int>(phase)];
}

StepPhase step_phase_of(Phase phase) {
  switch (phase) {
    case Phase::kData:
      return StepPhase::kData;
    case Phase::kForward:
      return StepPhase::kForward;
    case Phase::kBackwardInput:
    case Phase::kBackwardWeight:
      return StepPhase::kBackward;
    case Phase::kCommunication:
      return StepPhase::kCommunication;
    case Phase::kOptimizer:
      return StepPhase::kOptimizer;
    case Phase::kIdle:
      return StepPhase::kWaiting;
    default:
      return StepPhase::kOther;
  }
}

namespace {

constexpr double kSecondsPerNs = 1e-9;

bool same_row(const OpRecord& a, const OpRecord& b) {
  return a.phase == b.phase && a.op == b.op && a.type == b.type;
}

template <class Rows>
auto find_row(Rows& rows, const OpRecord& row) {
  return std::find_if(rows.begin(), rows.end(),
                      [&](const OpRecord& each) { return same_row(each, row); });
}

void add_row(std::vector<OpRecord>& rows, const OpRecord& row) {
  const auto found = find_row(rows, row);
  if (found == rows.end()) {
    rows.push_back(row);
    return;
  }
  found->calls += row.calls;
  found->ns += row.ns;
  found->flops += row.flops;
  found->bytes += row.bytes;
}

Range range_of(std::span<const double> values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  Range range{0, *least, *most};
  for (const double value : values) range.mean += value / static_cast<double>(values.size());
  return range;
}

/// The longer of the two times below which nothing gets on this machine.
void set_bound(OpCost& cost, const MachineRates& rates, std::size_t ranks) {
  cost.bound = cost.flops > 0 ? Bound::kCompute : Bound::kMemory;
  if (!rates.known()) return;
  const double calls = static_cast<double>(cost.calls) * static_cast<double>(ranks);
  const double compute = cost.flops / rates.flops_per_second(cost.type);
  const double memory =
      cost.bytes > 0 ? cost.bytes / rates.copy_bytes_per_second(cost.bytes / std::max(1.0, calls))
                     : 0;
  cost.bound = compute >= memory ? Bound::kCompute : Bound::kMemory;
  cost.bound_seconds = std::max(compute, memory);
}

OpCost cost_of_row(const OpRecord& row, std::span<const RankTimes> ranks, std::int64_t steps) {
  OpCost cost;
  cost.phase = row.phase;
  cost.op = row.op;
  cost.type = row.type;
  cost.calls = row.calls / steps;
  std::vector<double> seconds;
  for (const RankTimes& rank : ranks) {
    const auto found = find_row(rank.ops, row);
    const OpRecord mine = found == rank.ops.end() ? OpRecord() : *found;
    const auto per_step = [&](std::int64_t sum) {
      return static_cast<double>(sum) / static_cast<double>(steps);
    };
    seconds.push_back(per_step(mine.ns) * kSecondsPerNs);
    cost.flops += per_step(mine.flops);
    cost.bytes += per_step(mine.bytes);
  }
  cost.seconds = range_of(seconds);
  return cost;
}

std::vector<OpCost> costs_of_ops(std::span<const RankTimes> ranks, std::int64_t steps,
                                 const MachineRates& rates) {
  std::vector<OpCost> costs;
  for (const OpRecord& row : ranks.front().ops) {
    costs.push_back(cost_of_row(row, ranks, steps));
    set_bound(costs.back(), rates, ranks.size());
  }
  std::stable_sort(costs.begin(), costs.end(), [](const OpCost& a, const OpCost& b) {
    if (a.phase != b.phase) return a.phase < b.phase;
    return a.seconds.mean > b.seconds.mean;
  });
  return costs;
}

PhaseCost cost_of_phase(StepPhase phase, std::span<const RankTimes> ranks, std::int64_t steps) {
  std::vector<double> seconds;
  for (const RankTimes& rank : ranks) {
    seconds.push_back(static_cast<double>(rank.phase_ns[static_cast<std::size_t>(phase)]) *
                      kSecondsPerNs / static_cast<double>(steps));
  }
  return {range_of(seconds), 0};
}

std::string_view part_of(const OpCost& cost) {
  if (cost.flops <= 0) return "memory-bound ops";
  return cost.op.starts_with("attention") ? "attention" : "products";
}

/// What is no op goes by its phase where that says more.
std::string_view part_of(StepPhase phase) {
  const bool tells = phase == StepPhase::kData || phase == StepPhase::kCommunication ||
                     phase == StepPhase::kWaiting;
  return tells ? name_of(phase) : "not in ops";
}

void add_part(std::vector<PartCost>& parts, std::string_view name, double seconds,
              double bound_seconds) {
  auto found = std::find_if(parts.begin(), parts.end(),
                            [&](const PartCost& part) { return part.part == name; });
  if (found == parts.end()) found = parts.insert(parts.end(), {std::string(name), 0, 0});
  found->seconds += seconds;
  found->bound_seconds += bound_seconds;
}

void add_parts(StepCost& cost) {
  for (const OpCost& op : cost.ops) {
    add_part(cost.parts, part_of(op), op.seconds.mean, op.bound_seconds);
    cost.bound_seconds += op.bound_seconds;
  }
  std::stable_sort(cost.parts.begin(), cost.parts.end(),
                   [](const PartCost& a, const PartCost& b) { return a.seconds > b.seconds; });
  for (std::size_t i = 0; i < cost.phases.size(); ++i) {
    add_part(cost.parts, part_of(static_cast<StepPhase>(i)), cost.phases[i].not_in_ops, 0);
  }
}

}  // namespace

RankTimes rank_times(
    std::span<const std::int64_t, static_cast<std::size_t>(Phase::kCount)> phase_ns,
    const OpTrace& ops) {
  RankTimes times;
  for (std::size_t i = 0; i < phase_ns.size(); ++i) {
    const auto phase = static_cast<Phase>(i);
    times.phase_ns[static_cast<std::size_t>(step_phase_of(phase))] +=
        phase_ns[i] - ops.beyond_ns(phase);
  }
  for (const OpTotal& total : ops.totals()) {
    add_row(times.ops, {step_phase_of(total.phase), total.op, total.type, total.calls, total.ns,
                        total.flops, total.bytes});
  }
  return times;
}

std::string text_of(const RankTimes& times, const MachineRates& rates) {
  Json::Array phases, ops, copies;
  for (const std::int64_t ns : times.phase_ns) phases.emplace_back(ns);
  for (const OpRecord& each : times.ops) {
    ops.emplace_back(Json::Array{static_cast<int>(each.phase), each.op, static_cast<int>(each.type),
                                 each.calls, each.ns, each.flops, each.bytes});
  }
  for (const CopyRate& copy : rates.copies) {
    copies.emplace_back(Json::Array{copy.bytes, copy.bytes_per_second});
  }
  Json json;
  json["phases"] = std::move(phases);
  json["ops"] = std::move(ops);
  json["sgemm"] = rates.sgemm_flops_per_second;
  json["bf16"] = rates.bf16_flops_per_second;
  json["fp8"] = rates.fp8_flops_per_second;
  json["copies"] = std::move(copies);
  return json.dump();
}

void parse_rank(std::string_view text, RankTimes& times, MachineRates& rates) {
  const Json json = parse_json(text, "the times of a rank");
  const Json::Array& phases = json.find("phases")->as_array();
  for (std::size_t i = 0; i < times.phase_ns.size(); ++i) {
    times.phase_ns[i] = phases.at(i).as_integer();
  }
  for (const Json& each : json.find("ops")->as_array()) {
    const Json::Array& row = each.as_array();
    times.ops.push_back({static_cast<StepPhase>(row.at(0).as_integer()), row.at(1).as_string(),
                         static_cast<DType>(row.at(2).as_integer()), row.at(3).as_integer(),
                         row.at(4).as_integer(), row.at(5).as_integer(), row.at(6).as_integer()});
  }
  rates.sgemm_flops_per_second = json.find("sgemm")->as_double();
  rates.bf16_flops_per_second = json.find("bf16")->as_double();
  rates.fp8_flops_per_second = json.find("fp8")->as_double();
  for (const Json& each : json.find("copies")->as_array()) {
    const Json::Array& copy = each.as_array();
    rates.copies.push_back({copy.at(0).as_integer(), copy.at(1).as_double()});
  }
}

StepCost cost_of_step(std::span<const RankTimes> ranks, std::int64_t steps, double step_seconds,
                      const MachineRates& rates) {
  StepCost cost;
  cost.seconds = step_seconds;
  cost.ops = costs_of_ops(ranks, steps, rates);
  double rest = step_seconds;
  for (std::size_t i = 0; i < cost.phases.size(); ++i) {
    PhaseCost& phase = cost.phases[i];
    phase = cost_of_phase(static_cast<StepPhase>(i), ranks, steps);
    if (static_cast<StepPhase>(i) == StepPhase::kOther) {
      const double uncovered = std::max(0.0, rest);
      phase.seconds = {uncovered, uncovered, uncovered};
    }
    rest -= phase.seconds.mean;
    phase.not_in_ops = phase.seconds.mean;
    for (const OpCost& op : cost.ops) {
      if (op.phase == static_cast<StepPhase>(i)) phase.not_in_ops -= op.seconds.mean;
    }
  }
  add_parts(cost);
  return cost;
}

}  // namespace trireme
