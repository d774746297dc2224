#pragma once
// What all checks of a preflight share, and the checks themselves. All are collective over the job
// and add what they find to the report, on rank 0.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/launch.h"
#include "device/context.h"
#include "device/topology.h"
#include "preflight/preflight.h"

namespace trireme {

struct Inspection {
  Launch& launch;
  Communicator& job;
  const PreflightRequest& request;
  const PreparedRun* const prepared;  ///< null: there is no config
  const RunConfig config;             ///< without one its defaults
  const RankHosts hosts;
  const bool first_of_host;
  Placement placement = {};
  int turn = 0, turns = 1;  ///< of this rank's products on its host
  bool crowded = false;     ///< on some host ranks share cores
  bool busy = false;        ///< other programs run where the ranks do
  std::uint64_t kind = 0;   ///< of this rank's device and threads
  PreflightReport report = {};

  /// Whether times of transfers are theirs, and not those of ranks that wait for a core.
  [[nodiscard]] bool links_compare() const { return !crowded && !busy; }
  [[nodiscard]] bool on_gpu() const { return placement.device.kind == DeviceKind::kCuda; }
  void add(Finding finding) {
    if (job.rank() == 0) report.checks.push_back(std::move(finding));
  }
};

/// Slow is what is measured below its floor so many times: chance is no fault.
inline constexpr int kAttempts = 4;

void check_folders(Inspection& at);
void check_data(Inspection& at);
void check_memory(Inspection& at);
void check_speed(Inspection& at, Context& context);
void check_links(Inspection& at, Context& context);

/// What each rank says, on rank 0; elsewhere empty.
std::vector<Json> told_to_first(Communicator& job, const Json& mine);
/// A member of each, which is a text.
std::vector<std::string> texts_of(const std::vector<Json>& told, std::string_view key);

/// `mine` of rank 0, of rank 1, ..., on every rank.
template <class T>
std::vector<T> gathered(Communicator& ranks, std::span<const T> mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(mine.size() * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  return all;
}
template <class T>
std::vector<T> gathered(Communicator& ranks, const T& mine) {
  return gathered(ranks, std::span(&mine, 1));
}

}  // namespace trireme
