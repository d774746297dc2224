#include "pipeline/executor.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/fiber.h"

namespace trireme {

namespace {

/// As the watchdog names it: a B that makes weight gradients too is a B.
char letter_of(ActionKind kind) { return name_of(kind).front(); }

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

bool is_activation(const Action& made) { return made.kind == ActionKind::kForward; }
Boundary left_at(const Action& made) {
  return is_activation(made) ? Boundary::kOutput : Boundary::kInputGradient;
}
Boundary taken_at(const Action& made) {
  return is_activation(made) ? Boundary::kInput : Boundary::kOutputGradient;
}
std::int32_t taker_of(const Action& made) {
  return made.virtual_stage + (is_activation(made) ? 1 : -1);
}

/// The virtual stages of a rank, in order of the model.
std::vector<std::int32_t> stages_of(const std::vector<ProgramStep>& steps) {
  std::vector<std::int32_t> stages;
  for (const ProgramStep& step : steps)
    if (step.kind == StepKind::kAction) stages.push_back(step.action.virtual_stage);
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

}  // namespace

class Executor::State {
 public:
  /// `training` is `stage`, or nothing where it goes forward alone.
  State(const std::vector<ProgramStep>& steps, ForwardProgram& stage, StageProgram* training,
        StageLinks* links)
      : stages_(stages_of(steps)), stage_(stage), training_(training), links_(links) {
    for (const ProgramStep& step : steps)
      expect(training != nullptr || step.action.kind == ActionKind::kForward,
             "{} in a forward pass", name_of(step.action.kind));
    const auto slot_of = [&](std::int32_t held, std::int32_t micro_batch) {
      return stage.slot(chunk_of(held), micro_batch);
    };
    for (const ProgramStep& step : steps) {
      if (step.kind == StepKind::kAction)
        under_way_.resize(
            std::max(under_way_.size(),
                     at(slot_of(step.action.virtual_stage, step.action.micro_batch) + 1)));
    }
    steps_ =
        start_early(steps, slot_of,
                    links != nullptr && links->start_in_one_order() ? TransferOrder::kOfRank
                                                                    : TransferOrder::kOfChannel);
  }

  void run(Trace& trace) {
    trace_ = &trace;
    occupation_ = {};
    first_ns_ = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!begins_group(i)) {
        take(steps_[i]);
        continue;
      }
      act_in_turns(steps_[i], steps_[i + 1]);
      ++i;
    }
    if (links_ == nullptr) return;
    const Span span(trace, Phase::kCommunication);
    for (Boundaries& slot : under_way_) {
      for (Pending& transfer : slot) std::exchange(transfer, {}).wait();
    }
  }

  [[nodiscard]] Occupation occupation() const { return occupation_; }

 private:
  /// What is on its way into and out of the memory of a slot.
  using Boundaries = std::array<Pending, 4>;

  static std::size_t at(std::int32_t number) { return static_cast<std::size_t>(number); }
  [[nodiscard]] int chunk_of(std::int32_t virtual_stage) const {
    const auto found = std::lower_bound(stages_.begin(), stages_.end(), virtual_stage);
    expect(found != stages_.end() && *found == virtual_stage,
           "virtual stage {} is not on this rank", virtual_stage);
    return static_cast<int>(found - stages_.begin());
  }
  Pending& under_way(int chunk, int micro_batch, Boundary boundary) {
    return under_way_[at(stage_.slot(chunk, micro_batch))][static_cast<std::size_t>(boundary)];
  }
  void await(int chunk, int micro_batch, std::initializer_list<Boundary> boundaries) {
    for (const Boundary boundary : boundaries)
      std::exchange(under_way(chunk, micro_batch, boundary), {}).wait();
  }

  void take(const ProgramStep& step) {
    const Action& action = step.action;
    switch (step.kind) {
      case StepKind::kAction:
        return act(action, step.last);
      case StepKind::kCopy:
        return copy(action);
      case StepKind::kSend: {
        const int chunk = chunk_of(action.virtual_stage);
        under_way(chunk, action.micro_batch, left_at(action)) =
            links_->send(action, stage_.boundary(chunk, action.micro_batch, left_at(action)));
        return;
      }
      case StepKind::kReceive: {
        const int chunk = chunk_of(taker_of(action));
        await_room(action, chunk);
        under_way(chunk, action.micro_batch, taken_at(action)) =
            links_->receive(action, stage_.boundary(chunk, action.micro_batch, taken_at(action)));
        return;
      }
    }
  }

  void copy(const Action& made) {
    const Span span(*trace_, Phase::kCommunication);
    const int to = chunk_of(taker_of(made)), from = chunk_of(made.virtual_stage);
    if (links_ != nullptr) await_room(made, to);
    stage_.copy(stage_.boundary(to, made.micro_batch, taken_at(made)),
                stage_.boundary(from, made.micro_batch, left_at(made)));
  }

  /// A gradient comes to where the slot's last has left one, sent long ago.
  void await_room(const Action& made, int chunk) {
    if (!is_activation(made)) await(chunk, made.micro_batch, {Boundary::kInputGradient});
  }

  /// Waits for what `action` takes and for the memory that it writes.
  void prepare(const Action& action, int chunk) {
    const Span span(*trace_, Phase::kCommunication);
    if (action.kind == ActionKind::kForward)
      return await(chunk, action.micro_batch, {Boundary::kInput, Boundary::kOutput});
    if (goes_back(action.kind))
      await(chunk, action.micro_batch, {Boundary::kOutputGradient, Boundary::kInputGradient});
  }

  void compute(const Action& action, LastMicroBatch last) {
    const int chunk = chunk_of(action.virtual_stage);
    switch (action.kind) {
      case ActionKind::kForward:
        return stage_.forward(chunk, action.micro_batch);
      case ActionKind::kBackwardInput:
        return training_->backward_input(chunk, action.micro_batch);
      case ActionKind::kBackwardWeight:
        return training_->backward_weight(chunk, action.micro_batch, last);
      case ActionKind::kBackward:
        return training_->backward(chunk, action.micro_batch, last);
      case ActionKind::kRecompute:
        return training_->recompute(chunk, action.micro_batch);
    }
  }

  void show(const Action& action) {
    trace_->set_action(letter_of(action.kind), action.virtual_stage, action.micro_batch);
  }

  /// `run()` as a part of the action, or all of it.
  template <class Run>
  auto timed(const Action& action, const Run& run) {
    show(action);
    const std::int64_t begin_ns = steady_now_ns();
    const Occupied occupied{*this, begin_ns};
    const Span span(*trace_, phase_of(action.kind), action.micro_batch);
    return run();
  }
  struct Occupied {
    State& state;
    std::int64_t begin_ns;
    ~Occupied() {
      const std::int64_t end_ns = steady_now_ns();
      if (state.first_ns_ == 0) state.first_ns_ = begin_ns;
      state.occupation_.busy_ns += end_ns - begin_ns;
      state.occupation_.span_ns = end_ns - state.first_ns_;
      state.trace_->set_action(0, 0, 0);
    }
  };

  void act(const Action& action, LastMicroBatch last) {
    show(action);
    if (links_ != nullptr) prepare(action, chunk_of(action.virtual_stage));
    timed(action, [&] { compute(action, last); });
  }

  [[nodiscard]] bool begins_group(std::size_t step) const {
    const auto group_of = [&](std::size_t i) {
      return i < steps_.size() && steps_[i].kind == StepKind::kAction ? steps_[i].action.group : 0;
    };
    return stage_.takes_turns() && group_of(step) != 0 && group_of(step) == group_of(step + 1);
  }

  void act_in_turns(const ProgramStep& one, const ProgramStep& other) {
    const std::array<const ProgramStep*, 2> both = {&one, &other};
    for (std::size_t i = 0; i < both.size(); ++i) {
      const ProgramStep& step = *both[i];
      show(step.action);
      if (links_ != nullptr) prepare(step.action, chunk_of(step.action.virtual_stage));
      fibers_[i].begin([this, &step] { compute(step.action, step.last); });
    }
    std::array<bool, 2> more = {true, true};
    while (more[0] || more[1]) {
      for (std::size_t i = 0; i < both.size(); ++i)
        if (more[i]) more[i] = timed(both[i]->action, [&] { return fibers_[i].resume(); });
    }
  }

  const std::vector<std::int32_t> stages_;  // of each chunk the virtual stage
  ForwardProgram& stage_;
  StageProgram* const training_;
  StageLinks* const links_;
  std::vector<ProgramStep> steps_;
  std::vector<Boundaries> under_way_;  // of each slot
  std::array<Fiber, 2> fibers_;        // of the actions of a group
  Trace* trace_ = nullptr;
  Occupation occupation_;
  std::int64_t first_ns_ = 0;
};

Executor::Executor(const std::vector<ProgramStep>& steps, StageProgram& stage, StageLinks* links)
    : state_(std::make_unique<State>(steps, stage, &stage, links)) {}
Executor::Executor(const std::vector<ProgramStep>& steps, ForwardProgram& stage, StageLinks* links)
    : state_(std::make_unique<State>(steps, stage, nullptr, links)) {}
Executor::~Executor() = default;

void Executor::run(Trace& trace) { state_->run(trace); }

Executor::Occupation Executor::occupation() const { return state_->occupation(); }

}  // namespace trireme
