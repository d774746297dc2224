#include "preflight/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/topology.h"
#include "telemetry/console.h"

namespace trireme {

namespace {

constexpr std::size_t kRanksShown = 64;

/// Three digits with a unit of powers of 1000.
std::string scaled(double value, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  std::size_t prefix = 0;
  for (; value >= 999.5 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  const int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}{}", value, digits, kPrefixes[prefix], unit);
}

std::string or_dash(double value, std::string (*text)(double)) {
  return value > 0 ? text(value) : "-";
}

/// Of each host the least of every figure.
std::vector<RankSpeeds> slowest_of_hosts(const std::vector<RankSpeeds>& ranks) {
  std::map<std::string, RankSpeeds> by_host;
  for (const RankSpeeds& rank : ranks) {
    const auto [at, first] = by_host.try_emplace(rank.host, rank);
    if (first) continue;
    RankSpeeds& least = at->second;
    least.flops_per_second = std::min(least.flops_per_second, rank.flops_per_second);
    least.copy_bytes_per_second = std::min(least.copy_bytes_per_second, rank.copy_bytes_per_second);
    least.host_copy_bytes_per_second =
        std::min(least.host_copy_bytes_per_second, rank.host_copy_bytes_per_second);
  }
  std::vector<RankSpeeds> least;
  for (const auto& [host, rank] : by_host) least.push_back(rank);
  return least;
}

std::string ranks_text(const std::vector<RankSpeeds>& ranks) {
  const bool all = ranks.size() <= kRanksShown;
  const bool gpus = std::any_of(ranks.begin(), ranks.end(), [](const RankSpeeds& rank) {
    return rank.host_copy_bytes_per_second > 0;
  });
  std::vector<std::string> header = {
      all ? "rank" : "from", "host", "device", "cores", "threads", "products", "copies"};
  std::vector<Align> columns = {Align::kRight, Align::kLeft,  Align::kLeft, Align::kLeft,
                                Align::kRight, Align::kRight, Align::kRight};
  if (gpus) {
    header.emplace_back("to host");
    columns.push_back(Align::kRight);
  }
  std::vector<std::vector<std::string>> rows;
  for (const RankSpeeds& rank : all ? ranks : slowest_of_hosts(ranks)) {
    rows.push_back({fmt::format("{}", rank.rank), rank.host, rank.device, rank.cores,
                    fmt::format("{}", rank.threads), or_dash(rank.flops_per_second, flops_text),
                    or_dash(rank.copy_bytes_per_second, bandwidth_text)});
    if (gpus) rows.back().push_back(or_dash(rank.host_copy_bytes_per_second, bandwidth_text));
  }
  return table_text(header, rows, columns);
}

}  // namespace

std::string flops_text(double flops_per_second) { return scaled(flops_per_second, "FLOP/s"); }
std::string bandwidth_text(double bytes_per_second) { return scaled(bytes_per_second, "B/s"); }

bool PreflightReport::ok() const {
  return std::none_of(checks.begin(), checks.end(),
                      [](const Finding& finding) { return finding.failed(); });
}

std::string PreflightReport::reason() const {
  std::string text;
  int more = 0;
  for (const Finding& finding : checks) {
    if (!finding.failed()) continue;
    if (!text.empty()) {
      ++more;
      continue;
    }
    text = fmt::format("{}: {}", finding.name, finding.found);
    if (!finding.expected.empty()) text += fmt::format(" ({})", finding.expected);
  }
  return more == 0 ? text : fmt::format("{}; {} more", text, more);
}

Json preflight_json(const PreflightReport& report) {
  Json json;
  json["ranks"] = Json::array();
  for (const RankSpeeds& rank : report.ranks) {
    Json each;
    each["rank"] = rank.rank;
    each["host"] = rank.host;
    each["device"] = rank.device;
    each["cores"] = rank.cores;
    each["threads"] = rank.threads;
    const auto figure = [&](const char* key, double value) {
      each[key] = value > 0 ? Json(value) : Json(nullptr);
    };
    figure("flops_per_second", rank.flops_per_second);
    figure("copy_bytes_per_second", rank.copy_bytes_per_second);
    figure("host_copy_bytes_per_second", rank.host_copy_bytes_per_second);
    json["ranks"].push_back(std::move(each));
  }
  const auto list = [](const std::vector<int>& numbers) {
    Json array = Json::array();
    for (const int number : numbers) array.push_back(number);
    return array;
  };
  json["hosts"] = Json::array();
  for (const HostMemory& host : report.hosts) {
    Json each;
    each["name"] = host.name;
    each["ranks"] = list(host.ranks);
    each["memory_bytes"] = host.memory_bytes;
    each["free_memory_bytes"] = host.free_memory_bytes;
    json["hosts"].push_back(std::move(each));
  }
  json["checks"] = Json::array();
  for (const Finding& finding : report.checks) {
    Json each;
    each["name"] = finding.name;
    each["status"] = name_of(finding.status);
    each["ranks"] = list(finding.ranks);
    each["found"] = finding.found;
    each["expected"] = finding.expected;
    each["advice"] = finding.advice;
    json["checks"].push_back(std::move(each));
  }
  json["ok"] = report.ok();
  return json;
}

std::string preflight_text(const PreflightReport& report) {
  std::string text = ranks_text(report.ranks);
  const std::string header[] = {"check", "", "found"};
  const Align columns[] = {Align::kLeft, Align::kLeft, Align::kLeft};
  std::vector<std::vector<std::string>> rows;
  for (const Finding& finding : report.checks) {
    std::string found = finding.found;
    if (!finding.expected.empty()) found += fmt::format(" (expected: {})", finding.expected);
    rows.push_back({finding.name, std::string(name_of(finding.status)), std::move(found)});
  }
  text += table_text(header, rows, columns);
  for (const Finding& finding : report.checks)
    if (finding.status != FindingStatus::kOk)
      text += fmt::format("{}: {}\n", finding.name, finding.advice);
  return text;
}

}  // namespace trireme
