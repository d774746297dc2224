#pragma once
// What is looked at before a run, and the rules by which a rank is odd or slow: of what all ranks
// say, without any of them. Pure.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// kNote: worth knowing, and no fault. The rest beside kOk end a preflight with 3.
enum class FindingStatus : std::uint8_t { kOk, kNote, kOdd, kSlow };
std::string_view name_of(FindingStatus status);

struct Finding {
  std::string name;
  FindingStatus status = FindingStatus::kOk;
  std::vector<int> ranks = {};  ///< that are odd or slow, ascending
  std::string found;            ///< of them, named; where all is well, what there is
  std::string expected = {};    ///< of the others, or the median of all
  std::string advice = {};      ///< what to do

  [[nodiscard]] bool failed() const {
    return status == FindingStatus::kOdd || status == FindingStatus::kSlow;
  }
};

/// Which host each rank of the job is on.
class RankHosts {
 public:
  RankHosts() = default;
  /// `index[r]`: the host of rank r, from 0 in the order of their first ranks.
  RankHosts(std::vector<int> index, std::vector<std::string> names);
  [[nodiscard]] int ranks() const { return static_cast<int>(index_.size()); }
  [[nodiscard]] int hosts() const { return static_cast<int>(names_.size()); }
  [[nodiscard]] int of(int rank) const { return index_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::string& name(int host) const {
    return names_[static_cast<std::size_t>(host)];
  }
  [[nodiscard]] std::vector<int> ranks_of(int host) const;
  /// Whether every host has as many ranks.
  [[nodiscard]] bool even() const;
  /// "rank 2 on b", "ranks 0-3 on a, 4,6 on b". `ranks` ascend.
  [[nodiscard]] std::string text(std::span<const int> ranks) const;

 private:
  std::vector<int> index_;
  std::vector<std::string> names_;
};

/// That hosts have names of their own, and as many ranks each.
Finding hosts_apart(const RankHosts& hosts);

/// What a finding says of a text that all ranks have alike: what most have is right, where as many
/// say otherwise what the first of them says. Empty texts are of ranks that say nothing.
Finding equal_everywhere(std::string name, std::span<const std::string> of_rank,
                         const RankHosts& hosts, std::string advice);

/// What was measured of one rank, group or pair; only those of one kind compare.
struct Rate {
  double value = 0;  ///< 0: not measured
  std::uint64_t kind = 0;
};
/// Of those of a kind that were measured; of an even number the higher of the two in the middle.
double median_of_kind(std::span<const Rate> rates, std::uint64_t kind);
/// The indices of those below `floor` times the median of their kind.
std::vector<std::size_t> below(std::span<const Rate> rates, double floor);

/// A rate as it is shown.
using RateText = std::function<std::string(double)>;
/// `of_rank[r]` of rank r.
Finding fast_everywhere(std::string name, std::span<const Rate> of_rank, double floor,
                        const RankHosts& hosts, const RateText& text);

/// What a device of a rank reached, and the part of the time in which the rank had its core
/// meanwhile; 1 on a GPU.
struct Speed {
  double per_second = 0;  ///< 0: not measured
  double share = 1;
  std::uint64_t kind = 0;
};
std::vector<Rate> rates_of(std::span<const Speed> speeds);
/// Of the median.
inline constexpr double kDeviceFloor = 0.9;
/// Whether ranks at large have their cores for a part of the time only: other programs run there.
bool hosts_are_busy(std::span<const Speed> of_rank);
/// Slow is below kDeviceFloor. On busy hosts a rank is held up by chance: there slow is alone who
/// reaches less than half of the others while it has its core, and the rest is a note.
Finding speeds_alike(std::string name, std::span<const Speed> of_rank, const RankHosts& hosts,
                     const RateText& text);

/// Ranks that moved data with each other, and how fast.
struct GroupRate {
  std::vector<int> ranks;
  Rate rate;
};
/// Names the ranks of slow groups; of a group with ranks all of whose groups, two or more, are slow
/// these alone.
Finding fast_links(std::string name, std::span<const GroupRate> groups, double floor,
                   const RankHosts& hosts, const RateText& text);

/// What a rank has of its host's cores.
struct CoreUse {
  std::vector<int> cpus;  ///< that it runs on, ascending
  int threads = 1;
  int quota = 0;  ///< of CPUs for all ranks of the host together; 0: none
};
/// Threads that share a CPU with one of `mine`, itself counted: 1 where each has its own. `use`: of
/// all ranks of the host.
double threads_of_cpu(std::span<const CoreUse> use, std::size_t mine);
/// More is one too many.
inline constexpr double kCrowdedLoad = 1.01;
/// By which ranks of a host that share CPUs take turns: `of[i]` in 0 ... `count` - 1.
struct TurnOrder {
  std::vector<int> of;
  int count = 1;
};
TurnOrder turns_of(std::span<const CoreUse> use);
/// `load[r]`: threads_of_cpu of rank r.
Finding cores_apart(std::span<const double> load, const RankHosts& hosts);

/// A host's clock beside rank 0's, and by how much that may be wrong.
struct ClockOffset {
  double seconds = 0, error_seconds = 0;
};
/// `of_host[h]`: of host h.
Finding clocks_agree(std::span<const ClockOffset> of_host, const RankHosts& hosts);

}  // namespace trireme
