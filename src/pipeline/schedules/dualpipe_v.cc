#include "pipeline/schedules/schedules.h"

namespace trireme {

namespace {

/// The actions of one rank: `near` is its stage on the way in, `far` the one on the way back.
class RankWriter {
 public:
  RankWriter(int rank, int ranks) : stages_{rank, 2 * ranks - 1 - rank} {}

  void forward(int chunk, int group = 0) {
    actions.push_back({ActionKind::kForward, stages_[chunk], forwards_[chunk]++, group});
  }
  void backward(int chunk, int group = 0) {
    actions.push_back({ActionKind::kBackward, stages_[chunk], backwards_[chunk]++, group});
  }
  void backward_input(int chunk) {
    weights_.push_back({ActionKind::kBackwardWeight, stages_[chunk], backwards_[chunk]});
    actions.push_back({ActionKind::kBackwardInput, stages_[chunk], backwards_[chunk]++});
  }
  /// The oldest W that waits.
  void weight() { actions.push_back(weights_[weights_done_++]); }
  void together(int forward_chunk, int backward_chunk) {
    ++groups_;
    forward(forward_chunk, groups_);
    backward(backward_chunk, groups_);
  }

  std::vector<Action> actions;

 private:
  int stages_[2];
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  std::vector<Action> weights_;
  std::size_t weights_done_ = 0;
  int groups_ = 0;
};

constexpr int kNear = 0, kFar = 1;

std::vector<Action> rank_actions(int rank, int ranks, int micro_batches) {
  RankWriter write(rank, ranks);
  const int behind = ranks - 1 - rank, main = micro_batches - 2 * ranks + rank + 1;
  for (int i = 0; i < 2 * behind; ++i) write.forward(kNear);
  for (int i = 0; i <= rank; ++i) {
    write.forward(kNear);
    write.forward(kFar);
  }
  for (int i = 0; i < behind; ++i) {
    write.backward_input(kFar);
    write.weight();
    write.forward(kFar);
  }
  for (int i = 0; i < main; ++i) {
    if (i == 0 && behind == 0) {
      // The last rank has not yet anything to overlap with: its backward waits for nobody.
      write.forward(kNear);
      write.backward(kFar);
    } else {
      write.together(kNear, kFar);
    }
    write.together(kFar, kNear);
  }
  for (int i = 0; i < behind; ++i) {
    write.backward(kFar);
    write.together(kFar, kNear);
  }
  // From the middle of the drain on, only B: the others wait for it, not for W.
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    const int chunk = i % 2 == 0 ? kFar : kNear;
    if (i <= rank) {
      write.backward(chunk);
    } else {
      write.backward_input(chunk);
    }
  }
  for (int i = 0; i < behind; ++i) {
    write.weight();
    write.backward_input(kNear);
  }
  for (int i = 0; i <= rank; ++i) write.weight();
  return write.actions;
}

}  // namespace

Schedule make_dualpipe_v(int stages, int micro_batches) {
  Schedule schedule;
  schedule.placement = v_placement(stages);
  for (int rank = 0; rank < stages; ++rank)
    schedule.ranks.push_back(rank_actions(rank, stages, micro_batches));
  return schedule;
}

}  // namespace trireme
