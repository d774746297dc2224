#include "plan/search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "plan/layout_bounds.h"

namespace trireme {

namespace {

constexpr double kLessMemory = 0.95;               // of a layout of the front beside those before
constexpr double kHorizon = 1.5;                   // times the best's seconds, where the front ends
constexpr std::int64_t kActionsMost = 20'000'000;  // of all schedules played: some seconds
constexpr std::int64_t kOthersMost = 80;           // layouts with other schedules than the usual
constexpr std::int64_t kRefined = 3;               // layouts on which all schedules are tried

enum class Level : std::uint8_t { kTimed, kPlayed, kLayout, kShape };

/// What waits: a shape, a layout, one whose schedule has been played, or one that has been timed
/// with its memory (`index` of it).
struct Node {
  double seconds = 0;  ///< at least; exact where timed
  Level level = Level::kShape;
  std::size_t number = 0;  ///< of equal ones the first comes first
  std::size_t index = 0;
  friend bool operator>(const Node& a, const Node& b) {
    return std::tie(a.seconds, a.level, a.number) > std::tie(b.seconds, b.level, b.number);
  }
};

struct OpenLayout {
  LayoutChoice choice;
  ScheduleChoice schedule;
};

bool same_mesh(const LayoutChoice& a, const LayoutChoice& b) {
  return a.tensor == b.tensor && a.context == b.context && a.pipeline == b.pipeline &&
         a.context_method == b.context_method && a.expert == b.expert &&
         a.expert_tensor == b.expert_tensor;
}

bool faster(const TimedLayout& a, const TimedLayout& b) { return a.step.seconds < b.step.seconds; }

class Search {
 public:
  Search(const LayoutTask& task, std::size_t wanted)
      : task_(task), wanted_(wanted), bounds_(task), shapes_(layout_shapes(task)) {
    result_.shapes = std::ssize(shapes_);
  }

  SearchResult run() {
    for (std::size_t i = 0; i < shapes_.size(); ++i)
      push(bounds_.shape_seconds(shapes_[i]), Level::kShape, i);
    std::int64_t timed_most = kTimedMost;
    while (!queue_.empty() && !complete() && result_.timed < timed_most &&
           actions_ < kActionsMost) {
      visit(next());
      if (result_.best.size() == 1 && timed_most == kTimedMost)
        timed_most = std::min(kTimedMost, result_.timed + kTimedBeside);
    }
    result_.bounded = !result_.best.empty() || queue_.empty();
    // Of what waits, that which has been timed.
    while (!queue_.empty()) {
      if (const Node node = next(); node.level == Level::kTimed) visit(node);
    }
    refine();
    return std::move(result_);
  }

 private:
  void push(double seconds, Level level, std::size_t index) {
    queue_.push({seconds, level, pushed_++, index});
  }

  Node next() {
    const Node node = queue_.top();
    queue_.pop();
    return node;
  }

  [[nodiscard]] bool beyond_front(double seconds) const {
    return result_.front.size() >= wanted_ ||
           (!result_.best.empty() && seconds > kHorizon * result_.best.front().step.seconds);
  }
  [[nodiscard]] bool complete() const {
    return result_.best.size() >= wanted_ && beyond_front(queue_.top().seconds);
  }
  [[nodiscard]] bool new_mesh(const LayoutChoice& choice) const {
    return result_.best.size() < wanted_ &&
           std::none_of(result_.best.begin(), result_.best.end(),
                        [&](const TimedLayout& found) { return same_mesh(found.choice, choice); });
  }
  /// The most that a layout may hold which is still looked for; 0: none is.
  [[nodiscard]] std::int64_t bytes_wanted(double seconds, const LayoutChoice& choice) const {
    constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
    const std::int64_t limit = task_.memory > 0 ? task_.memory : kAny;
    if (new_mesh(choice) || result_.front.empty()) return limit;
    if (beyond_front(seconds)) return 0;
    const double less = kLessMemory * static_cast<double>(front_bytes_);
    return std::min(limit, static_cast<std::int64_t>(less));
  }

  void visit(const Node& node) {
    switch (node.level) {
      case Level::kShape:
        return open_shape(node.seconds, shapes_[node.index]);
      case Level::kLayout:
        return play(node);
      case Level::kPlayed:
        return time(node.seconds, layouts_[node.index].choice);
      case Level::kTimed:
        return take(timed_[node.index]);
    }
  }

  void open_shape(double seconds, const LayoutChoice& shape) {
    const std::int64_t wanted = bytes_wanted(seconds, shape);
    const std::int64_t data = task_.input.world / shape.tensor / shape.context / shape.pipeline;
    const std::int64_t passes = task_.config.batch.global->largest() / data / shape.micro;
    for (const std::int64_t zero_stage : zero_stages_of(shape, task_.input.world)) {
      if (bounds_.shape_bytes(shape, zero_stage) > wanted) continue;
      for (const ScheduleChoice& schedule :
           schedules_of(shape.pipeline, task_.config.model.layer_count())) {
        if (!schedule.usual && shape.pipeline * passes > kSmallStep) {
          leave_out_schedules();
          continue;
        }
        open_layout(shape, zero_stage, schedule);
      }
    }
  }

  /// Once the best is known, others are behind it by their bounds.
  void leave_out_schedules() {
    if (result_.best.empty()) result_.all_schedules = false;
  }

  void open_layout(LayoutChoice choice, std::int64_t zero_stage, const ScheduleChoice& schedule) {
    choice.zero_stage = zero_stage;
    choice.schedule = schedule.name;
    choice.virtual_stages = schedule.virtual_stages;
    const std::optional<double> seconds = bounds_.seconds(choice, schedule.may_split);
    if (!seconds) return;
    layouts_.push_back({std::move(choice), schedule});
    push(*seconds, Level::kLayout, layouts_.size() - 1);
  }

  void play(const Node& node) {
    const auto& [choice, schedule] = layouts_[node.index];
    const std::int64_t wanted = bytes_wanted(node.seconds, choice);
    if (wanted == 0 || bounds_.bytes(choice, schedule.may_split) > wanted) return;
    if (!schedule.usual) {
      if (others_timed_ == kOthersMost) {
        leave_out_schedules();
        return;
      }
      ++others_timed_;
      return time(node.seconds, choice);
    }
    actions_ += bounds_.actions_of(choice);
    push(bounds_.played_seconds(choice), Level::kPlayed, node.index);
  }

  void time(double seconds, const LayoutChoice& choice) {
    const std::int64_t wanted = bytes_wanted(seconds, choice);
    if (wanted == 0) return;
    std::optional<TimedLayout> found = measure(choice, wanted);
    if (!found) return;
    timed_.push_back(*std::move(found));
    push(timed_.back().step.seconds, Level::kTimed, timed_.size() - 1);
  }

  std::optional<TimedLayout> measure(const LayoutChoice& choice, std::int64_t bytes_max) {
    LayoutTask task = task_;
    task.memory = bytes_max;
    std::vector<Problem> problems;
    std::int64_t needed = 0;
    ++result_.timed;
    return time_if_it_fits(task, bounds_.config_of(choice), problems, needed);
  }

  void take(const TimedLayout& layout) {
    if (new_mesh(layout.choice)) result_.best.push_back(layout);
    if (beyond_front(layout.step.seconds)) return;
    const bool less =
        static_cast<double>(layout.bytes()) < kLessMemory * static_cast<double>(front_bytes_);
    const bool cheaper = layout.cost && *layout.cost < front_cost_ * (1 - 1e-3);
    if (!result_.front.empty() && !less && !cheaper) return;
    result_.front.push_back(layout);
    front_bytes_ = std::min(front_bytes_, layout.bytes());
    front_cost_ = std::min(front_cost_, layout.cost.value_or(front_cost_));
  }

  /// Other schedules on the best.
  void refine() {
    if (result_.all_schedules || result_.best.empty()) return;
    const auto count = std::min<std::int64_t>(kRefined, std::ssize(result_.best));
    for (std::int64_t i = 0; i < count; ++i) {
      TimedLayout& best = result_.best[static_cast<std::size_t>(i)];
      const LayoutChoice base = best.choice;
      for (const ScheduleChoice& schedule :
           schedules_of(base.pipeline, task_.config.model.layer_count())) {
        if (schedule.usual) continue;
        if (schedule.searches && base.pipeline * best.batch.accumulation > kLongStep) {
          result_.long_step = true;
          continue;
        }
        LayoutChoice other = base;
        other.schedule = schedule.name;
        other.virtual_stages = schedule.virtual_stages;
        const std::optional<double> seconds = bounds_.seconds(other, schedule.may_split);
        if (!seconds || *seconds >= best.step.seconds) continue;
        const auto found = measure(
            other, task_.memory > 0 ? task_.memory : std::numeric_limits<std::int64_t>::max());
        if (found && faster(*found, best)) best = *found;
      }
    }
    std::stable_sort(result_.best.begin(), result_.best.end(), faster);
    if (faster(result_.best.front(), result_.front.front()))
      result_.front.insert(result_.front.begin(), result_.best.front());
  }

  const LayoutTask& task_;
  const std::size_t wanted_;
  LayoutBounds bounds_;
  const std::vector<LayoutChoice> shapes_;
  std::vector<OpenLayout> layouts_;
  std::vector<TimedLayout> timed_;
  std::priority_queue<Node, std::vector<Node>, std::greater<>> queue_;
  std::size_t pushed_ = 0;
  std::int64_t actions_ = 0;       ///< of schedules that have been played
  std::int64_t others_timed_ = 0;  ///< whose bounds say little
  SearchResult result_;
  std::int64_t front_bytes_ = std::numeric_limits<std::int64_t>::max();
  double front_cost_ = std::numeric_limits<double>::infinity();
};

}  // namespace

SearchResult search_layouts(const LayoutTask& task, std::size_t wanted) {
  return Search(task, wanted).run();
}

}  // namespace trireme
