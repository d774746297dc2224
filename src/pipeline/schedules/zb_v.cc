#include <algorithm>

#include "pipeline/schedules/rounds.h"
#include "pipeline/schedules/schedules.h"
#include "pipeline/schedules/search.h"

namespace trireme {

namespace {

/// One rank of the pattern for `length` micro-batches; those from `micro_batches` on are left out.
class RankWriter {
 public:
  RankWriter(int rank, int ranks, int micro_batches)
      : stages_{rank, 2 * ranks - 1 - rank}, micro_batches_(micro_batches) {}

  void forward(int chunk) { write(ActionKind::kForward, chunk, forwards_); }
  void backward_input(int chunk) { write(ActionKind::kBackwardInput, chunk, backwards_); }
  void weight(int chunk) { write(ActionKind::kBackwardWeight, chunk, weights_); }
  [[nodiscard]] int forwards(int chunk) const { return forwards_[chunk]; }
  [[nodiscard]] int weights(int chunk) const { return weights_[chunk]; }

  std::vector<Action> actions;

 private:
  void write(ActionKind kind, int chunk, int (&count)[2]) {
    const int micro_batch = count[chunk]++;
    if (micro_batch < micro_batches_) actions.push_back({kind, stages_[chunk], micro_batch});
  }
  int stages_[2], micro_batches_;
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0}, weights_[2] = {0, 0};
};

constexpr int kNear = 0, kFar = 1;

std::vector<Action> hand_made_rank(int rank, int ranks, int micro_batches) {
  RankWriter write(rank, ranks, micro_batches);
  const int length = std::max(micro_batches, 2 * ranks - 1), behind = ranks - rank;
  const auto backward = [&](int chunk) {
    write.backward_input(chunk);
    write.weight(chunk);
  };
  for (int i = 0; i < 2 * behind - 1; ++i) write.forward(kNear);
  for (int i = 0; i < rank; ++i) {
    write.forward(kFar);
    write.forward(kNear);
  }
  for (int i = 0; i < behind; ++i) {
    write.forward(kFar);
    backward(kFar);
  }
  while (write.forwards(kNear) < length || write.forwards(kFar) < length) {
    if (write.forwards(kNear) < length) write.forward(kNear);
    backward(kNear);
    write.forward(kFar);
    backward(kFar);
  }
  for (int i = 0; i < rank; ++i) {
    write.backward_input(kNear);
    write.backward_input(kFar);
  }
  for (int i = 0; i < behind; ++i) backward(kNear);
  while (write.weights(kFar) < length) write.weight(kFar);
  while (write.weights(kNear) < length) write.weight(kNear);
  return write.actions;
}

}  // namespace

Schedule make_zb_v(const ScheduleRequest& request) {
  const int p = request.stages;
  Schedule hand_made;
  hand_made.placement = v_placement(p);
  for (int rank = 0; rank < p; ++rank)
    hand_made.ranks.push_back(hand_made_rank(rank, p, request.micro_batches));
  GreedyTask task{p,
                  request.micro_batches,
                  v_placement(p),
                  request.times,
                  request.memory_limit.value_or(p),
                  request.w_memory,
                  request.stage_sizes};
  std::vector<Schedule> known = round_plans(task);
  known.push_back(std::move(hand_made));
  known.push_back(make_v_half(request));  // on few ranks it may leave room for what W keeps
  return shortest_schedule(task, std::move(known));
}

}  // namespace trireme
