#include "pipeline/executor.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace trireme {

namespace {

using Way = StageLinks::Way;

bool makes_weight_gradients(const Action& action) {
  return action.kind == ActionKind::kBackwardWeight || action.kind == ActionKind::kBackward;
}
bool goes_forward(const Action& action) { return action.kind == ActionKind::kForward; }
/// Takes the gradient of the stage's output and leaves that of its input.
bool goes_back(const Action& action) {
  return action.kind == ActionKind::kBackwardInput || action.kind == ActionKind::kBackward;
}

Phase phase_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return Phase::kForward;
    case ActionKind::kBackwardWeight:
      return Phase::kBackwardWeight;
    default:
      return Phase::kBackwardInput;
  }
}

}  // namespace

/// What is on its way into and out of a chunk's memory for one micro-batch of those that share it.
struct Executor::Traffic {
  Pending input, output_gradient;       // asked for
  Pending output, input_gradient;       // sent
  int input_of = -1, gradient_of = -1;  // the micro-batches that were asked for
};

class Executor::State {
 public:
  /// Without `links` nothing moves between stages.
  State(const Plan& plan, int rank, StageProgram& stage, StageLinks* links)
      : rank_(rank),
        actions_(plan.ranks.at(static_cast<std::size_t>(rank))),
        placement_(shape_of(plan).placement),
        stage_(stage),
        links_(links) {
    for (const std::int32_t holder : placement_)
      chunk_of_.push_back(holder == rank ? chunks_++ : -1);
    finished_.resize(static_cast<std::size_t>(chunks_));
    last_.assign(placement_.size(), -1);
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      if (makes_weight_gradients(actions_[i]))
        last_[static_cast<std::size_t>(actions_[i].virtual_stage)] = static_cast<int>(i);
    }
    for (int chunk = 0; chunk < chunks_; ++chunk)
      traffic_.emplace_back(static_cast<std::size_t>(stage.slots(chunk)));
  }

  void run(Trace& trace) {
    trace_ = &trace;
    finished_.assign(finished_.size(), 0);
    occupation_ = {};
    first_ns_ = 0;
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      if (links_ != nullptr) ask_for(i);
      act(actions_[i], static_cast<int>(i));
    }
    if (links_ == nullptr) return;
    const Span span(trace, Phase::kCommunication);
    for (std::vector<Traffic>& slots : traffic_) {
      for (Traffic& traffic : slots) {
        std::exchange(traffic.output, {}).wait();
        std::exchange(traffic.input_gradient, {}).wait();
        traffic.input_of = traffic.gradient_of = -1;
      }
    }
  }

  [[nodiscard]] Occupation occupation() const { return occupation_; }

 private:
  [[nodiscard]] int chunk_of(int virtual_stage) const {
    return chunk_of_[static_cast<std::size_t>(virtual_stage)];
  }
  Traffic& traffic_of(int chunk, int micro_batch) {
    std::vector<Traffic>& slots = traffic_[static_cast<std::size_t>(chunk)];
    return slots[static_cast<std::size_t>(micro_batch) % slots.size()];
  }
  [[nodiscard]] bool is_stage(int virtual_stage) const {
    return virtual_stage >= 0 && virtual_stage < static_cast<int>(placement_.size());
  }
  [[nodiscard]] bool is_here(int virtual_stage) const {
    return placement_[static_cast<std::size_t>(virtual_stage)] == rank_;
  }

  /// Asks for the inputs of the action at `position` and of the next one that needs any, where
  /// their memory is free: the micro-batch that had it before is done with.
  void ask_for(std::size_t position) {
    int asked = 0;
    for (std::size_t i = position; i < actions_.size() && asked < 2; ++i) {
      const Action& action = actions_[i];
      const int from = goes_forward(action) ? action.virtual_stage - 1
                       : goes_back(action)  ? action.virtual_stage + 1
                                            : -1;
      if (!is_stage(from) || is_here(from)) continue;
      ++asked;
      const int chunk = chunk_of(action.virtual_stage);
      Traffic& traffic = traffic_of(chunk, action.micro_batch);
      int& asked_for = goes_forward(action) ? traffic.input_of : traffic.gradient_of;
      if (asked_for == action.micro_batch) continue;
      if (action.micro_batch >= finished_[static_cast<std::size_t>(chunk)] + stage_.slots(chunk))
        return;
      asked_for = action.micro_batch;
      if (goes_forward(action)) {
        traffic.input =
            links_->receive(action.virtual_stage, Way::kForward,
                            stage_.boundary(chunk, action.micro_batch, Boundary::kInput));
      } else {
        traffic.output_gradient =
            links_->receive(action.virtual_stage, Way::kBackward,
                            stage_.boundary(chunk, action.micro_batch, Boundary::kOutputGradient));
      }
    }
  }

  /// Waits for what `action` takes and for the memory that it writes.
  void prepare(const Action& action, int chunk, Traffic& traffic) {
    const Span span(*trace_, Phase::kCommunication);
    const int stage = action.virtual_stage;
    const auto take_over = [&](int from, Boundary theirs, Boundary ours) {
      if (!is_stage(from) || !is_here(from)) return;
      stage_.copy(stage_.boundary(chunk, action.micro_batch, ours),
                  stage_.boundary(chunk_of(from), action.micro_batch, theirs));
    };
    if (goes_forward(action)) {
      take_over(stage - 1, Boundary::kOutput, Boundary::kInput);
      std::exchange(traffic.input, {}).wait();
      std::exchange(traffic.output, {}).wait();
    } else if (goes_back(action)) {
      take_over(stage + 1, Boundary::kInputGradient, Boundary::kOutputGradient);
      std::exchange(traffic.output_gradient, {}).wait();
      std::exchange(traffic.input_gradient, {}).wait();
    }
  }

  void send(const Action& action, int chunk, Traffic& traffic) {
    const int stage = action.virtual_stage;
    const auto elsewhere = [&](int to) { return is_stage(to) && !is_here(to); };
    if (goes_forward(action) && elsewhere(stage + 1)) {
      traffic.output = links_->send(stage, Way::kForward,
                                    stage_.boundary(chunk, action.micro_batch, Boundary::kOutput));
    } else if (goes_back(action) && elsewhere(stage - 1)) {
      traffic.input_gradient =
          links_->send(stage, Way::kBackward,
                       stage_.boundary(chunk, action.micro_batch, Boundary::kInputGradient));
    }
  }

  void act(const Action& action, int position) {
    const int chunk = chunk_of(action.virtual_stage);
    expect(chunk >= 0, "{} on rank {}, which does not hold that stage", text_of(action), rank_);
    Traffic& traffic = traffic_of(chunk, action.micro_batch);
    if (links_ != nullptr) prepare(action, chunk, traffic);
    const Pass pass = last_[static_cast<std::size_t>(action.virtual_stage)] == position
                          ? Pass::kLast
                          : Pass::kOneOfSeveral;
    const std::int64_t begin_ns = steady_now_ns();
    {
      const Span span(*trace_, phase_of(action.kind), action.micro_batch);
      switch (action.kind) {
        case ActionKind::kForward:
          stage_.forward(chunk, action.micro_batch);
          break;
        case ActionKind::kBackwardInput:
          stage_.backward_input(chunk, action.micro_batch);
          break;
        case ActionKind::kBackwardWeight:
          stage_.backward_weight(chunk, action.micro_batch, pass);
          break;
        case ActionKind::kBackward:
          stage_.backward(chunk, action.micro_batch, pass);
          break;
        case ActionKind::kRecompute:
          throw InternalError("a plan that recomputes; stages do so by themselves");
      }
    }
    const std::int64_t end_ns = steady_now_ns();
    if (first_ns_ == 0) first_ns_ = begin_ns;
    occupation_.busy_ns += end_ns - begin_ns;
    occupation_.span_ns = end_ns - first_ns_;
    if (makes_weight_gradients(action)) ++finished_[static_cast<std::size_t>(chunk)];
    if (links_ != nullptr) send(action, chunk, traffic);
  }

  const int rank_;
  const std::vector<Action>& actions_;
  const std::vector<std::int32_t> placement_;
  StageProgram& stage_;
  StageLinks* const links_;
  Trace* trace_ = nullptr;
  Occupation occupation_;
  std::int64_t first_ns_ = 0;
  int chunks_ = 0;
  std::vector<int> chunk_of_;  // of each virtual stage; -1: another rank's
  std::vector<int> finished_;  // micro-batches of each chunk
  std::vector<int> last_;      // position of each stage's last weight gradient
  std::vector<std::vector<Traffic>> traffic_;
};

int in_flight_of(const std::vector<Action>& actions, int virtual_stage) {
  int now = 0, most = 1;
  for (const Action& action : actions) {
    if (action.virtual_stage != virtual_stage) continue;
    if (goes_forward(action)) most = std::max(most, ++now);
    if (makes_weight_gradients(action)) --now;
  }
  return most;
}

Executor::Executor(const Plan& plan, int rank, StageProgram& stage, StageLinks* links)
    : state_(std::make_unique<State>(plan, rank, stage, links)) {}
Executor::~Executor() = default;

void Executor::run(Trace& trace) { state_->run(trace); }

Executor::Occupation Executor::occupation() const { return state_->occupation(); }

void evaluate(int rank, StageProgram& stage, StageLinks& links) {
  int chunk = 0, before = -1;
  for (int s = 0; s < links.stages(); ++s) {
    if (links.rank_of(s) != rank) continue;
    if (s > 0 && links.rank_of(s - 1) == rank) {
      stage.copy(stage.boundary(chunk, 0, Boundary::kInput),
                 stage.boundary(before, 0, Boundary::kOutput));
    } else if (s > 0) {
      links.receive(s, Way::kForward, stage.boundary(chunk, 0, Boundary::kInput)).wait();
    }
    stage.evaluate(chunk);
    if (s + 1 < links.stages() && links.rank_of(s + 1) != rank)
      links.send(s, Way::kForward, stage.boundary(chunk, 0, Boundary::kOutput)).wait();
    before = chunk++;
  }
}

}  // namespace trireme
