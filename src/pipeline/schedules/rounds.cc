#include "pipeline/schedules/rounds.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace trireme {

namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr int kNear = 0, kFar = 1;  // stages of a rank on the way in and on the way back

/// Before which actions a W may end late, where the rank has waited less than the longest.
struct Fill {
  bool before_forward, before_far_backward;
};

struct Rank {
  int forwards[2] = {0, 0}, backwards[2] = {0, 0}, weights[2] = {0, 0};
  std::deque<int> pending;  // chunks whose B has no W yet
  double clock = 0, bubble = 0;
  double limit = 2;  // activations of one virtual stage
};

class Rounds {
 public:
  /// `waits`: how long ranks wait in an earlier schedule, to be spread otherwise.
  Rounds(const GreedyTask& task, Fill fill, const std::vector<double>& waits)
      : p_(task.ranks),
        m_(task.micro_batches),
        task_(task),
        fill_(fill),
        waits_(waits),
        longest_(*std::max_element(waits.begin(), waits.end())),
        forward_(2 * p_ * m_, kUnknown),
        backward_(2 * p_ * m_, kUnknown),
        ranks_(p_) {
    schedule.placement = task.placement;
    schedule.ranks.resize(p_);
    for (int i = 0; i < p_; ++i) {
      ranks_[i].limit =
          2 * (1 + 1e-12) * limit_of_rank(task.memory_limit, task.stage_sizes, task.placement, i);
    }
  }

  /// False where the limit is too small.
  bool run() {
    warm_up();
    for (int round = 0; fits_ && round < 2 * m_; ++round) {
      backward_round();
      forward_round();
    }
    for (int i = 0; fits_ && i < p_; ++i) {
      while (!ranks_[i].pending.empty()) put_weight(i);
    }
    return fits_;
  }

  [[nodiscard]] std::vector<double> waits() const {
    std::vector<double> result;
    for (const Rank& rank : ranks_) result.push_back(rank.bubble);
    return result;
  }

  Schedule schedule;

 private:
  [[nodiscard]] int stage(int i, int chunk) const { return chunk == kNear ? i : 2 * p_ - 1 - i; }
  [[nodiscard]] double size(int i, int chunk) const {
    return size_of(task_.stage_sizes, stage(i, chunk));
  }
  [[nodiscard]] double arrival(const std::vector<double>& made, int stage, int micro_batch,
                               int at) const {
    const double time = made[stage * m_ + micro_batch];
    return time + (task_.placement[stage] == at ? 0 : task_.times.transfer);
  }
  /// When the input of the next F or B of a chunk is on rank i; kUnknown: not made yet.
  [[nodiscard]] double forward_input(int i, int chunk) const {
    const int s = stage(i, chunk);
    return s == 0 ? 0 : arrival(forward_, s - 1, ranks_[i].forwards[chunk], i);
  }
  [[nodiscard]] double backward_input(int i, int chunk) const {
    const int s = stage(i, chunk), micro_batch = ranks_[i].backwards[chunk];
    const double own = forward_[s * m_ + micro_batch];
    return s + 1 == 2 * p_ ? own : std::max(own, arrival(backward_, s + 1, micro_batch, i));
  }
  [[nodiscard]] double held(const Rank& rank) const {
    const auto i = static_cast<int>(&rank - ranks_.data());
    double sum = 0;
    for (const int chunk : {kNear, kFar}) {
      const int whole = rank.forwards[chunk] - rank.backwards[chunk];
      const int kept = rank.backwards[chunk] - rank.weights[chunk];
      sum += size(i, chunk) * (whole + task_.w_memory * kept);
    }
    return sum;
  }

  void put(int i, ActionKind kind, int chunk, int micro_batch, double input) {
    Rank& rank = ranks_[i];
    fits_ = fits_ && input != kUnknown;
    const double begin = std::max(rank.clock, input);
    if (!schedule.ranks[i].empty()) rank.bubble += begin - rank.clock;
    bubble_max_ = std::max(bubble_max_, rank.bubble);
    rank.clock = begin + task_.times.of(kind, stage(i, chunk));
    schedule.ranks[i].push_back({kind, stage(i, chunk), micro_batch});
  }
  void put_forward(int i, int chunk) {
    Rank& rank = ranks_[i];
    while (held(rank) + size(i, chunk) > rank.limit && !rank.pending.empty()) put_weight(i);
    fits_ = fits_ && held(rank) + size(i, chunk) <= rank.limit;
    const int micro_batch = rank.forwards[chunk];
    put(i, ActionKind::kForward, chunk, micro_batch, forward_input(i, chunk));
    forward_[stage(i, chunk) * m_ + micro_batch] = rank.clock;
    ++rank.forwards[chunk];
  }
  void put_backward(int i, int chunk) {
    Rank& rank = ranks_[i];
    const int micro_batch = rank.backwards[chunk];
    put(i, ActionKind::kBackwardInput, chunk, micro_batch, backward_input(i, chunk));
    backward_[stage(i, chunk) * m_ + micro_batch] = rank.clock;
    ++rank.backwards[chunk];
    rank.pending.push_back(chunk);
  }
  void put_weight(int i) {
    const int chunk = ranks_[i].pending.front();
    ranks_[i].pending.pop_front();
    put(i, ActionKind::kBackwardWeight, chunk, ranks_[i].weights[chunk]++, 0);
  }

  /// Ws until `input` is there, and one more where the rank has waited less than others.
  void fill_until(int i, double input, bool more) {
    Rank& rank = ranks_[i];
    while (!rank.pending.empty() && input >= rank.clock + task_.times.backward_weight)
      put_weight(i);
    const double longest = std::max(longest_ - waits_[i], bubble_max_);
    if (more && !rank.pending.empty() && input - rank.clock > longest - rank.bubble) put_weight(i);
  }

  /// The first micro-batch runs to the end; while it is on its way back, ranks that would wait for
  /// it start others. Then every rank gets as many as the one before it.
  void warm_up() {
    for (int i = 0; i < p_; ++i) put_forward(i, kNear);
    for (int i = p_ - 1; i >= 0 && fits_; --i) {
      // Ranks before this one need room for their part of it and for what comes back.
      while (i + 1 < p_ && ranks_[i].forwards[kNear] < m_ &&
             held(ranks_[i]) + (1 + i) * (size(i, kNear) + size(i, kFar)) <= ranks_[i].limit &&
             ranks_[i].clock + task_.times.forward <= forward_input(i, kFar)) {
        for (int j = 0; j <= i; ++j) put_forward(j, kNear);
      }
      put_forward(i, kFar);
    }
    int chunk = kNear;
    for (int i = 1; i < p_ && fits_; ++i) {
      const auto behind = [&] {
        const Rank &rank = ranks_[i], &before = ranks_[i - 1];
        return rank.forwards[kNear] + rank.forwards[kFar] <
                   before.forwards[kNear] + before.forwards[kFar] ||
               (rank.forwards[kFar] <= before.forwards[kFar] && before.forwards[kFar] < m_);
      };
      for (; fits_ && behind(); chunk = 1 - chunk) {
        for (int j = p_ - 1; j >= i; --j) {
          if (ranks_[j].forwards[chunk] < m_) put_forward(j, chunk);
        }
      }
    }
  }

  void backward_round() {
    std::vector<int> near, far;
    for (int i = 0; i < p_; ++i) {
      const Rank& rank = ranks_[i];
      const bool can_near = rank.backwards[kNear] < rank.backwards[kFar] &&
                            (backward_input(i, kNear) != kUnknown || rank.backwards[kFar] == m_);
      if (can_near) {
        near.push_back(i);
      } else if (rank.backwards[kFar] < m_) {
        far.push_back(i);
      }
    }
    std::reverse(near.begin(), near.end());  // in order of their inputs
    for (const int i : near) {
      fill_until(i, backward_input(i, kNear), true);
      put_backward(i, kNear);
    }
    for (const int i : far) {
      fill_until(i, backward_input(i, kFar), fill_.before_far_backward);
      put_backward(i, kFar);
    }
  }

  void forward_round() {
    for (int i = 0; i < p_; ++i) {
      const Rank& rank = ranks_[i];
      int chunk = -1;
      if (rank.forwards[kFar] < rank.forwards[kNear] && forward_input(i, kFar) != kUnknown) {
        chunk = kFar;
      } else if (rank.forwards[kNear] < m_ && forward_input(i, kNear) != kUnknown) {
        chunk = kNear;
      }
      if (chunk < 0) continue;
      fill_until(i, forward_input(i, chunk), fill_.before_forward);
      put_forward(i, chunk);
    }
  }

  const int p_, m_;
  const GreedyTask& task_;
  const Fill fill_;
  const std::vector<double>& waits_;
  const double longest_;
  std::vector<double> forward_, backward_;  // when made, by stage and micro-batch
  std::vector<Rank> ranks_;
  double bubble_max_ = 0;
  bool fits_ = true;
};

}  // namespace

std::vector<Schedule> round_plans(const GreedyTask& task) {
  std::vector<Schedule> schedules;
  for (const Fill fill : {Fill{true, true}, {false, true}, {true, false}, {false, false}}) {
    std::vector<double> waits(static_cast<std::size_t>(task.ranks), 0);
    for (double longest = kUnknown;;) {
      Rounds rounds(task, fill, waits);
      if (!rounds.run()) break;
      waits = rounds.waits();
      schedules.push_back(std::move(rounds.schedule));
      const double now = *std::max_element(waits.begin(), waits.end());
      if (now >= longest) break;
      longest = now;
    }
  }
  return schedules;
}

}  // namespace trireme
