#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/human_format.h"
#include "dataset/sources.h"
#include "plan/memory.h"
#include "preflight/folder_probe.h"
#include "preflight/inspection.h"
#include "train/run_files.h"

namespace trireme {

namespace {

/// Of the median: what many share varies.
constexpr double kDiskFloor = 0.5;
/// What a checkpoint is made of beside a file of each rank.
constexpr std::int64_t kFilesOfCheckpoint = 16;

/// Where a run would write: what stands of it. As rank 0 finds it.
std::vector<std::pair<std::string, std::string>> folders(const Inspection& at) {
  const auto on_first = [&](const std::filesystem::path& folder) {
    return at.job.broadcast_text(
        at.job.rank() == 0 ? standing_part(folder).lexically_normal().string() : "", 0);
  };
  if (at.prepared == nullptr) return {{"working folder", on_first(".")}};
  std::vector<std::pair<std::string, std::string>> all = {
      {"run.directory", on_first(at.config.run.directory)}};
  std::string checkpoints = on_first(at.config.checkpoint_directory());
  if (checkpoints != all.front().second)
    all.emplace_back("checkpoint.directory", std::move(checkpoints));
  return all;
}

Finding folder_finding(const Inspection& at, const std::string& name, const std::string& folder,
                       const std::vector<Json>& told) {
  Finding finding{name, FindingStatus::kOk, {}, folder, "", ""};
  const auto odd = [&](const std::string& found, const char* expected, const char* advice) {
    finding.status = FindingStatus::kOdd;
    finding.found = folder + ": " + found;
    finding.expected = expected;
    finding.advice = advice;
  };
  if (const std::string& fault = told.front().find("fault")->as_string(); !fault.empty()) {
    finding.ranks = {0};
    odd(fault, "rank 0 can write there", "make room or allow it, or choose another folder");
    return finding;
  }
  for (std::size_t rank = 0; rank < told.size(); ++rank)
    if (!told[rank].find("appears")->as_bool()) finding.ranks.push_back(static_cast<int>(rank));
  if (!finding.ranks.empty()) {
    odd("what rank 0 writes does not appear at " + at.hosts.text(finding.ranks),
        "the same folder on all hosts", "choose a folder on a file system that all hosts share");
    return finding;
  }
  std::string why;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    const std::string& refused = told[rank].find("refused")->as_string();
    if (refused.empty()) continue;
    why = refused;
    finding.ranks.push_back(static_cast<int>(rank));
  }
  if (!finding.ranks.empty())
    odd(fmt::format("{} cannot write: {}", at.hosts.text(finding.ranks), why),
        "every rank can write there", "make room or allow it, or choose another folder");
  return finding;
}

bool saves_elsewhere(const Inspection& at) {
  return standing_part(at.config.checkpoint_directory()).lexically_normal() !=
         standing_part(at.config.run.directory).lexically_normal();
}

Finding space_finding(const Inspection& at, const std::string& name,
                      const std::vector<Json>& told) {
  const auto least = [&](const char* key) {
    std::int64_t known = -1;
    for (const Json& each : told) {
      const std::int64_t value = each.find(key)->as_integer();
      if (value >= 0 && (known < 0 || value < known)) known = value;
    }
    return known;
  };
  const std::int64_t bytes = least("bytes"), files = least("files");
  Finding finding{name + " space", FindingStatus::kOk, {}, "not known", "", ""};
  if (bytes < 0) return finding;
  finding.found = format_bytes(bytes) + " free";
  if (files >= 0)
    finding.found += fmt::format(", {} files", format_count(static_cast<double>(files)));
  if (at.prepared == nullptr || (name == "run.directory" && saves_elsewhere(at))) return finding;
  // The newest, and the one that is being written; each with a tenth for what is not tensors.
  const double needed = 2.2 * static_cast<double>(checkpoint_bytes(at.config)) +
                        static_cast<double>(at.config.checkpoint.min_free_bytes);
  const std::int64_t needed_files = 2 * (at.job.size() + kFilesOfCheckpoint);
  if (static_cast<double>(bytes) >= needed && (files < 0 || files >= needed_files)) return finding;
  finding.status = FindingStatus::kOdd;
  finding.ranks = {0};
  finding.expected = fmt::format("{} and {} files for two checkpoints",
                                 format_bytes(static_cast<std::int64_t>(needed)), needed_files);
  finding.advice = "free space, or set checkpoint.directory to another disk";
  return finding;
}

void check_folder(Inspection& at, const std::string& name, const std::string& folder) {
  FolderFacts facts = probe_folder(at.launch, folder);
  std::vector<Rate> rates = gathered(at.job, Rate{facts.bytes_per_second, 0});
  for (int more = 1; more < kAttempts && !below(rates, kDiskFloor).empty(); ++more) {
    if (facts.bytes_per_second > 0) time_writing(folder, facts);
    rates = gathered(at.job, Rate{facts.bytes_per_second, 0});
  }
  Json mine;
  mine["fault"] = facts.fault;
  mine["refused"] = facts.refused;
  mine["appears"] = facts.appears;
  mine["bytes"] = facts.free_bytes;
  mine["files"] = facts.free_files;
  const std::vector<Json> told = told_to_first(at.job, mine);
  if (told.empty()) return;
  at.add(folder_finding(at, name, folder, told));
  if (at.report.checks.back().failed()) return;
  at.add(space_finding(at, name, told));
  Finding writing = fast_everywhere(name + " writing", rates, kDiskFloor, at.hosts, bandwidth_text);
  writing.advice = "all wait for the slowest save; look at that host's mount and network";
  at.add(std::move(writing));
}

/// "4 files, 988 MiB, xxh3 of names and sizes": cheap, and tells a copy that was cut short.
std::string files_text(const std::filesystem::path& folder) {
  std::map<std::string, std::uintmax_t> sizes;
  std::error_code fault;
  for (std::filesystem::directory_iterator at(folder, fault), end; !fault && at != end;
       at.increment(fault)) {
    std::error_code none;
    if (at->is_regular_file(none)) sizes[at->path().filename().string()] = at->file_size(none);
  }
  if (fault) return fault.message();
  std::string all;
  std::uintmax_t bytes = 0;
  for (const auto& [name, size] : sizes) {
    all += fmt::format("{} {}\n", name, size);
    bytes += size;
  }
  return fmt::format("{}, {}, xxh3 {}", counted(std::ssize(sizes), "file"),
                     format_bytes(static_cast<std::int64_t>(bytes)),
                     xxh3_128_hex(all).substr(0, 12));
}

constexpr const char* kCopyAnew =
    "copy the files anew, or keep them on a file system that all hosts share";

/// A folder that every rank reads.
void check_files(Inspection& at, const char* name, const std::string& folder) {
  Json mine;
  mine["found"] = at.first_of_host ? files_text(folder) : "";
  const std::vector<Json> told = told_to_first(at.job, mine);
  if (!told.empty()) at.add(equal_everywhere(name, texts_of(told, "found"), at.hosts, kCopyAnew));
}

/// Of each host beside rank 0's.
void check_token_files(Inspection& at) {
  const Json& first = at.prepared->data_fingerprints;
  if (first.as_object().empty()) return;  // synthetic
  const std::string alike = counted(std::ssize(first.as_object()), "token file") + " as rank 0 has";
  std::string found = at.first_of_host ? alike : "";
  try {
    const Json mine = at.first_of_host ? data_fingerprints(at.config) : first;
    if (!(mine == first)) found = "other files";
    for (const auto& [prefix, facts] : mine.as_object()) {
      const Json* const there = first.find(prefix);
      if (there != nullptr && *there == facts) continue;
      found = fmt::format("{}: {}", prefix, facts.dump());
      break;
    }
  } catch (const Error& error) {
    found = error.what();
  }
  Json mine;
  mine["found"] = found;
  const std::vector<Json> told = told_to_first(at.job, mine);
  if (told.empty()) return;
  at.add(equal_everywhere("data", texts_of(told, "found"), at.hosts, kCopyAnew));
}

}  // namespace

void check_folders(Inspection& at) {
  for (const auto& [name, folder] : folders(at)) check_folder(at, name, folder);
}

void check_data(Inspection& at) {
  if (at.prepared == nullptr) return;
  check_token_files(at);
  if (at.config.init.weights != "random") check_files(at, "init.weights", at.config.init.weights);
  if (at.config.init.adapter) check_files(at, "init.adapter", *at.config.init.adapter);
}

}  // namespace trireme
