#include "preflight/preflight.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "base/hash.h"
#include "base/human_format.h"
#include "base/log.h"
#include "base/stop_flag.h"
#include "device/cpu_info.h"
#include "device/gpu.h"
#include "preflight/inspection.h"
#include "preflight/link_probe.h"
#include "train/device_choice.h"
#include "train/rank_placement.h"

namespace trireme {

namespace {

std::uint64_t kind_of(const std::string& text) {
  return std::stoull(xxh3_128_hex(text).substr(0, 16), nullptr, 16);
}

RankHosts hosts_of(const Launch& launch) {
  int first = launch.job().rank();
  launch.host().broadcast(std::as_writable_bytes(std::span(&first, 1)), 0);
  const std::vector<int> firsts = gathered(launch.job(), first);
  const std::vector<std::string> name_of_rank = launch.job().all_gather_text(launch.host_name());
  std::map<int, int> index_of_first;
  std::vector<std::string> names;
  std::vector<int> index;
  for (std::size_t rank = 0; rank < firsts.size(); ++rank) {
    const auto [at, added] =
        index_of_first.try_emplace(firsts[rank], static_cast<int>(names.size()));
    if (added) names.push_back(name_of_rank[rank]);
    index.push_back(at->second);
  }
  return {std::move(index), std::move(names)};
}

void look_at(const Inspection& at, const char* what) {
  run_together(at.job, [] { give_up_if_stopped("train preflight"); });
  log_info("preflight: {}", what);
}

void check_hosts(Inspection& at) {
  at.add(hosts_apart(at.hosts));
  if (at.job.rank() != 0) return;
  for (int host = 0; host < at.hosts.hosts(); ++host)
    at.report.hosts.push_back({at.hosts.name(host), at.hosts.ranks_of(host), 0, 0});
  at.report.ranks.resize(static_cast<std::size_t>(at.hosts.ranks()));
  for (int rank = 0; rank < at.hosts.ranks(); ++rank) {
    at.report.ranks[static_cast<std::size_t>(rank)].rank = rank;
    at.report.ranks[static_cast<std::size_t>(rank)].host = at.hosts.name(at.hosts.of(rank));
  }
}

/// Device and cores as a run would have them; false where it would have none.
bool place(Inspection& at) {
  const int allowed = usable_cpu_count();
  const std::vector<std::vector<Core>> mask = {usable_cores()};
  try {
    at.placement = bind_to_cores(at.config, at.launch);
  } catch (const Error& error) {  // on every rank
    at.add(
        {"device", FindingStatus::kOdd, {}, error.what(), "", "a run would end with these words"});
    return false;
  }
  Json mine;
  for (const int cpu : at.placement.cpus) mine["cpus"].push_back(cpu);
  mine["threads"] = at.placement.threads;
  std::vector<CoreUse> use;
  for (const std::string& text : at.launch.host().all_gather_text(mine.dump())) {
    const Json json = parse_json(text, "the cores of a rank");
    CoreUse& each = use.emplace_back();
    for (const Json& cpu : json.find("cpus")->as_array())
      each.cpus.push_back(static_cast<int>(cpu.as_integer()));
    each.threads = static_cast<int>(json.find("threads")->as_integer());
    each.quota = allowed < count_cpus(mask) ? allowed : 0;
  }
  const auto me = static_cast<std::size_t>(at.launch.local_rank());
  const TurnOrder turns = turns_of(use);
  at.turn = turns.of[me];
  at.turns = turns.count;
  const std::vector<double> load = gathered(at.job, threads_of_cpu(use, me));
  at.crowded = *std::max_element(load.begin(), load.end()) > kCrowdedLoad;
  at.add(cores_apart(load, at.hosts));
  return true;
}

void check_facts(Inspection& at) {
  const std::vector<Fact> facts =
      facts_of_rank({at.request.input, at.prepared != nullptr ? at.config.run.directory : "",
                     at.placement, at.first_of_host, at.request.sources});
  // What a GPU is, not which of its host's.
  at.kind = kind_of(fmt::format("{} {} {} {}", cpu_model_name(), name_of(detect_isa()),
                                at.placement.threads,
                                at.on_gpu() ? gpu::info(at.placement.device.index).name : "CPU"));
  Json mine;
  for (const Fact& fact : facts) mine[fact.name] = fact.text;
  mine[" device"] = device_text(at.placement.device);
  mine[" cores"] = range_text(at.placement.cpus);
  mine[" threads"] = fmt::format("{}", at.placement.threads);
  const std::vector<Json> told = told_to_first(at.job, mine);
  if (told.empty()) return;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    RankSpeeds& figures = at.report.ranks[rank];
    figures.device = told[rank].find(" device")->as_string();
    figures.cores = told[rank].find(" cores")->as_string();
    figures.threads = std::stoll(told[rank].find(" threads")->as_string());
  }
  for (const Fact& fact : facts) {
    Finding finding = equal_everywhere(fact.name, texts_of(told, fact.name), at.hosts, fact.advice);
    if (!finding.found.empty()) at.add(std::move(finding));
  }
}

void check_clocks(Inspection& at) {
  const std::unique_ptr<Communicator> firsts = at.job.split(at.first_of_host ? 0 : 1);
  if (!at.first_of_host) return;
  const std::vector<ClockOffset> offsets = compare_clocks(*firsts, [] {
    return std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count()};
  });
  at.add(clocks_agree(offsets, at.hosts));
}

/// Of texts that are empty where all is well.
Finding quiet_finding(const Inspection& at, const char* name, const std::vector<std::string>& texts,
                      const char* advice) {
  Finding finding{name, FindingStatus::kOk, {}, "none", "", ""};
  std::string found;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const int mine = static_cast<int>(rank);
    finding.ranks.push_back(mine);
    found += fmt::format("{}{}: {}", found.empty() ? "" : "; ", at.hosts.text(std::span(&mine, 1)),
                         texts[rank]);
  }
  if (finding.ranks.empty()) return finding;
  finding.status = FindingStatus::kOdd;
  finding.found = found;
  finding.expected = "none";
  finding.advice = advice;
  return finding;
}

/// What only shows behind work: clocks that were lowered, ports that went down.
void check_health(Inspection& at, const std::string& downs) {
  const std::string gpu = gpu_fault(at.placement.device, at.request.sources);
  const std::string now = at.first_of_host ? times_down(at.request.sources) : downs;
  Json mine;
  mine["gpu"] = gpu;
  mine["fabric"] = now == downs ? "" : fmt::format("{} -> {}", downs, now);
  const std::vector<Json> told = told_to_first(at.job, mine);
  if (told.empty()) return;
  if (at.on_gpu())
    at.add(quiet_finding(at, "GPU health", texts_of(told, "gpu"),
                         "let that GPU cool, or take it out (nvidia-smi -q -d ECC,PERFORMANCE)"));
  if (const auto fabric = texts_of(told, "fabric"); !downs.empty())
    at.add(quiet_finding(at, "fabric errors", texts_of(told, "fabric"),
                         "that port lost its link during these minutes: cable or switch"));
}

}  // namespace

std::vector<Json> told_to_first(Communicator& job, const Json& mine) {
  const std::string all = job.reduce_text(
      mine.dump(),
      [](const std::string& lower, const std::string& higher) { return lower + "," + higher; });
  if (job.rank() != 0) return {};
  return parse_json("[" + all + "]", "what all ranks say").as_array();
}

std::vector<std::string> texts_of(const std::vector<Json>& told, std::string_view key) {
  std::vector<std::string> texts;
  for (const Json& each : told) texts.push_back(each.find(key)->as_string());
  return texts;
}

PreflightReport check_program(const Launch& launch) {
  const Fact fact = program_fact();
  PreflightReport report;
  report.checks.push_back(equal_everywhere(fact.name, launch.job().all_gather_text(fact.text),
                                           hosts_of(launch), fact.advice));
  return report;
}

PreflightReport check_ranks(Launch& launch, const PreflightRequest& request) {
  Inspection at{launch,
                launch.job(),
                request,
                request.prepared,
                request.prepared != nullptr ? request.prepared->config : RunConfig(),
                hosts_of(launch),
                launch.local_rank() == 0};
  look_at(at, "hosts and software");
  check_hosts(at);
  if (!place(at)) return std::move(at.report);
  const std::string downs = times_down(request.sources);
  check_facts(at);
  look_at(at, "clocks");
  check_clocks(at);
  look_at(at, "disks, data and memory");
  check_folders(at);
  check_data(at);
  check_memory(at);
  Context context(at.placement.device, at.placement.threads, detect_isa());
  look_at(at, "products and copies");
  check_speed(at, context);
  if (at.job.size() > 1) {
    look_at(at, "links");
    check_links(at, context);
  }
  check_health(at, downs);
  return std::move(at.report);
}

}  // namespace trireme
