#pragma once
// Generators of schedules, one file each: pure functions of sizes, times and limits.
//
// In the formulas p is the number of ranks, m of micro-batches, v of virtual stages of a rank, i a
// rank from 0, w what is kept from B to W, in activations. Peaks count full stages.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule.h"
#include "pipeline/simulate.h"

namespace trireme {

enum class ScheduleKind : std::uint8_t {
  kGpipe,
  kOneFOneB,
  kInterleaved,
  kZbH1,
  kZbH2,
  kZbAuto,
  kZbV,
  kVHalf,
  kVMin,
  kDualPipeV,
};

/// "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-auto", "zb-v", "v-half", "v-min",
/// "dualpipe-v"
const std::vector<std::string>& schedule_names();
std::optional<ScheduleKind> schedule_kind(std::string_view name);
/// Virtual stages of a rank where nobody says how many: 1, and 2 for interleaved and the V kinds.
int default_virtual_stages(ScheduleKind kind);

struct ScheduleRequest {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  int stages = 1;  ///< ranks of the pipeline
  int micro_batches = 1;
  std::optional<int> virtual_stages;  ///< of a rank
  std::optional<int> group_size;      ///< micro-batches that a rank runs before its next virtual
                                      ///< stage, for interleaved; else `stages`
  ActionTimes times;
  std::optional<double> memory_limit;  ///< full-stage activations that a rank may hold
  double w_memory = 1;                 ///< 0 to 1e6
  /// Bytes of each virtual stage over those that the limit counts, at least 1; none: all equal.
  StageSizes stage_sizes = {};
};

/// ConfigError where times or w_memory of a request have no meaning; `what` begins the message.
void check_request(const ScheduleRequest& request, std::string_view what);

/// Rank of each virtual stage in a schedule of this request, where the kind exists for its numbers.
std::vector<std::int32_t> placement_of(const ScheduleRequest& request);

/// ConfigError where the kind does not exist for these numbers of stages and micro-batches.
void check_sizes(const ScheduleRequest& request);

/// A schedule that check_schedule accepts. ConfigError: no such kind for these numbers.
Schedule make_schedule(const ScheduleRequest& request);

/// GPipe (Huang et al. 2019): all forwards, then all backwards. Bubble (p-1)(F+B+W), peak m.
Schedule make_gpipe(int stages, int micro_batches);

/// Interleaved 1F1B (Narayanan et al. 2021) with groups of N micro-batches (Megatron-core): rank i
/// runs stages i, p+i, ... in turns of N micro-batches, 2(p-1-i) + (v-1)N actions ahead. N = p:
/// bubble (p-1)(F+B+W)/v, peak of rank 0 p + (p-1)/v. Needs p <= N <= m; a last group of fewer than
/// N micro-batches must still have p.
Schedule make_interleaved(int stages, int virtual_stages, int micro_batches, int group_size);

/// ZB-H1 (Qi et al. 2023): 1F1B with W postponed, no more activations on any rank than 1F1B has on
/// the first. As published for w up to 1: rank i keeps up to i+1 micro-batches from B to W, bubble
/// (p-1)(F+B-W), peak (p-i) + i·w, in full for w = 1: p. Above 1 it keeps as many of them as
/// `memory_limit` (default p) allows, and where that is none B and W are one action.
Schedule make_zb_h1(int stages, int micro_batches, double w_memory = 1,
                    std::optional<double> memory_limit = {}, const StageSizes& stage_sizes = {});
/// ZB-H2: 2(p-1-i)+1 forwards ahead. Bubble (p-1)(F+B-2W) of each rank, peak 2p-1 for w up to 1.
/// Needs m >= 2p-1. Above 1 it keeps what `memory_limit` (default 2p-1) allows, as above.
Schedule make_zb_h2(int stages, int micro_batches, double w_memory = 1,
                    std::optional<double> memory_limit = {}, const StageSizes& stage_sizes = {});
/// ZB-1p, ZB-2p and between (Qi et al. 2023): the shortest schedule found for these times under
/// `memory_limit` (default p, where 1F1B fits). Where that has no room for what W keeps, B and W
/// are one action.
Schedule make_zb_auto(const ScheduleRequest& request);

/// ZB-V (Qi et al. 2023; v = 2, V placement): the shortest of the hand-made schedule, with bubble 0
/// and peak p where F = B = W and w is up to 1, the authors' rounds for times and `memory_limit`
/// (default p), V-Half where it fits, and a search's, which serves w above 1 too: where the limit
/// has no room for what W keeps, by a V of 1F1B.
Schedule make_zb_v(const ScheduleRequest& request);

/// V-Half and V-Min (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): a building
/// block of six passes repeated for every micro-batch, the gaps of its warm-up and cool-down closed
/// as far as the peak of the steady state allows. Peaks (p+2)/2 for V-Half, rounded down, about p/3
/// for V-Min; their bubbles at unit times are in tests/pipeline/schedules_test.cc.
Schedule make_v_half(const ScheduleRequest& request);
Schedule make_v_min(const ScheduleRequest& request);

/// DualPipeV (DeepSeek 2025, after DualPipe; v = 2, V placement): forward of one virtual stage and
/// backward of the other run together as a group. Peak p + 1/2. Needs m >= 2p.
Schedule make_dualpipe_v(int stages, int micro_batches);

}  // namespace trireme
