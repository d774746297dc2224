#include <algorithm>
#include <array>
#include <deque>
#include <tuple>

#include "pipeline/schedules/schedules.h"

namespace trireme {

namespace {

/// The passes of a micro-batch on a rank, each after the one before it. Near is the rank's stage on
/// the way in, far the one on the way back. W is none of them: it takes slots that are free.
enum Pass { kForwardNear, kForwardFar, kInputFar, kInputNear, kPasses };

/// The slots in which the passes of micro-batch 0 run. A rank runs six passes for each micro-batch,
/// the two W among them, so the next one follows six slots later and no two passes meet.
using BuildingBlock = std::array<int, kPasses>;
constexpr int kPeriod = 6;

/// The block of one rank repeated for every micro-batch.
class Row {
 public:
  Row(const BuildingBlock& block, int micro_batches) {
    states_.resize(static_cast<std::size_t>(block[kInputNear] + kPeriod * micro_batches));
    for (int pass = 0; pass < kPasses; ++pass) {
      for (int i = 0; i < micro_batches; ++i) {
        slots_[pass].push_back(block[pass] + kPeriod * i);
        at(slots_[pass].back()).pass = pass;
      }
    }
    play(0, end() - 1);
  }

  [[nodiscard]] int slot(int pass, int micro_batch) const {
    return slots_[pass][static_cast<std::size_t>(micro_batch)];
  }
  [[nodiscard]] int peak() const {
    int peak = 0;
    for (const State& state : states_) peak = std::max(peak, state.held);
    return peak;
  }

  enum class Take { kIdleSlots, kSlotsOfWeightsToo };
  /// Moves a pass to the first such slot from `first` on with which the rank holds `limit` at most.
  void pull(int pass, int micro_batch, int first, int limit, Take take) {
    int& slot = slots_[pass][static_cast<std::size_t>(micro_batch)];
    for (int to = first; to < slot; ++to) {
      if (at(to).pass != kNone || (at(to).weight && take == Take::kIdleSlots)) continue;
      std::swap(at(to).pass, at(slot).pass);
      if (play(to, slot) <= limit) {
        slot = to;
        return;
      }
      std::swap(at(to).pass, at(slot).pass);
      play(to, slot);
    }
  }

  [[nodiscard]] std::vector<Action> actions(int near, int far) const {
    std::vector<Action> actions;
    std::deque<Action> weights;
    const auto weight = [&] {
      actions.push_back(weights.front());
      weights.pop_front();
    };
    int count[kPasses] = {0, 0, 0, 0};
    for (const State& state : states_) {
      if (state.pass == kNone) {
        if (!weights.empty()) weight();
        continue;
      }
      const bool forward = state.pass == kForwardNear || state.pass == kForwardFar;
      const int stage = state.pass == kForwardNear || state.pass == kInputNear ? near : far;
      const int i = count[state.pass]++;
      actions.push_back({forward ? ActionKind::kForward : ActionKind::kBackwardInput, stage, i});
      if (!forward) weights.push_back({ActionKind::kBackwardWeight, stage, i});
    }
    while (!weights.empty()) weight();
    return actions;
  }

 private:
  static constexpr int kNone = -1;
  struct State {
    int pass = kNone;
    bool weight = false;        // a W runs here
    int held = 0, waiting = 0;  // after this slot: activations, and W among them that could run
  };

  [[nodiscard]] int end() const { return static_cast<int>(states_.size()); }
  State& at(int slot) { return states_[static_cast<std::size_t>(slot)]; }

  /// Counts again from slot `from` on, beyond `last` as far as anything changes. Returns the peak.
  int play(int from, int last) {
    int held = from == 0 ? 0 : at(from - 1).held;
    int waiting = from == 0 ? 0 : at(from - 1).waiting, peak = 0;
    for (int slot = from; slot < end(); ++slot) {
      State& state = at(slot);
      state.weight = state.pass == kNone && waiting > 0;
      if (state.pass == kForwardNear || state.pass == kForwardFar) {
        ++held;
      } else if (state.pass != kNone) {
        ++waiting;
      } else if (state.weight) {
        --held;
        --waiting;
      }
      peak = std::max(peak, held);
      if (slot > last && state.held == held && state.waiting == waiting) break;
      state.held = held;
      state.waiting = waiting;
    }
    return peak;
  }

  std::vector<int> slots_[kPasses];
  std::vector<State> states_;
};

/// Moves the passes before and after the steady state to the left, each as far as its input and
/// the peak of the steady state allow: warm-up and cool-down of the block have gaps.
void close_gaps(std::vector<Row>& rows, int micro_batches) {
  const int ranks = static_cast<int>(rows.size());
  const int steady_begin = rows[0].slot(kInputNear, 0);
  const int steady_end = rows[0].slot(kForwardNear, micro_batches - 1);
  int limit = 0;
  for (const Row& row : rows) limit = std::max(limit, row.peak());
  std::vector<std::tuple<int, int, int, int>> passes;  // slot, rank, pass, micro-batch
  for (int rank = 0; rank < ranks; ++rank) {
    for (int pass = 0; pass < kPasses; ++pass) {
      for (int i = 0; i < micro_batches; ++i) {
        const int slot = rows[static_cast<std::size_t>(rank)].slot(pass, i);
        if (slot < steady_begin || slot > steady_end) passes.emplace_back(slot, rank, pass, i);
      }
    }
  }
  std::sort(passes.begin(), passes.end());
  for (const auto& [slot, rank, pass, i] : passes) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    const int before = pass == kForwardNear || pass == kInputFar ? rank - 1 : rank + 1;
    int input = i > 0 ? row.slot(pass, i - 1) : -1;
    if (pass > 0) input = std::max(input, row.slot(pass - 1, i));
    if (before >= 0 && before < ranks)
      input = std::max(input, rows[static_cast<std::size_t>(before)].slot(pass, i));
    // At the end a W is better late than a B: others wait for the B.
    const bool first = slot > steady_end && (pass == kInputFar || pass == kInputNear);
    row.pull(pass, i, input + 1, limit,
             first ? Row::Take::kSlotsOfWeightsToo : Row::Take::kIdleSlots);
  }
}

template <class BlockOfRank>
Schedule v_schedule(const ScheduleRequest& request, BlockOfRank&& block) {
  const int p = request.stages;
  std::vector<Row> rows;
  for (int rank = 0; rank < p; ++rank) rows.emplace_back(block(rank), request.micro_batches);
  close_gaps(rows, request.micro_batches);
  Schedule schedule;
  schedule.placement = v_placement(p);
  for (int rank = 0; rank < p; ++rank) {
    schedule.ranks.push_back(rows[static_cast<std::size_t>(rank)].actions(rank, 2 * p - 1 - rank));
  }
  return schedule;
}

}  // namespace

Schedule make_v_half(const ScheduleRequest& request) {
  const int p = request.stages;
  // Where p is even, the way back waits half a period, so that no slot is taken twice.
  const int wait = p % 2 == 0 ? kPeriod / 2 : 0;
  return v_schedule(request, [&](int i) {
    return BuildingBlock{2 * i, 3 * p - 2 - i, 3 * p + wait + 2 * i - 1, 6 * p + wait - 2 - i};
  });
}

Schedule make_v_min(const ScheduleRequest& request) {
  const int p = request.stages;
  const int wait = p % 3 == 0 ? kPeriod / 3 : 0;  // as above, where three divides p
  return v_schedule(request, [&](int i) {
    return BuildingBlock{i, 2 * p - 1 - i, 2 * p + wait + i, 4 * p + wait - 1 - i};
  });
}

}  // namespace trireme
