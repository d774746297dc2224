// Random single edits of valid schedules and programs: what the checkers take must run, and give
// the bits of the schedule that was edited; what the schedule's checker refuses must not.

#include <gtest/gtest.h>

#include <random>

#include "early_run.h"
#include "naive_run.h"
#include "pipeline/checker.h"
#include "pipeline/schedules/schedules.h"
#include "support/recompute_schedule.h"

namespace trireme {
namespace {

std::vector<Schedule> valid_plans() {
  std::vector<Schedule> schedules;
  std::mt19937_64 random{7};
  for (std::size_t kind = 0; kind < schedule_names().size(); ++kind) {
    for (const int stages : {1, 2, 3, 4}) {
      ScheduleRequest request;
      request.kind = static_cast<ScheduleKind>(kind);
      request.stages = stages;
      request.micro_batches = 2 * stages;
      schedules.push_back(make_schedule(request));
      schedules.push_back(with_recompute(schedules.back(), random));
    }
  }
  return schedules;
}

class Editor {
 public:
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }

  /// One swap, drop, duplicate or move, within a rank or between two.
  template <class Element>
  void edit(std::vector<std::vector<Element>>& ranks) {
    const auto full = [&] {
      std::size_t rank = below(ranks.size());
      while (ranks[rank].empty()) rank = below(ranks.size());
      return rank;
    };
    std::vector<Element>& from = ranks[full()];
    std::vector<Element>& to = below(3) == 0 ? ranks[full()] : from;
    const std::size_t i = below(from.size());
    // Near edits are the ones that may be harmless.
    const std::size_t near = std::min(to.size() - 1, below(2) == 0 ? i + 1 : below(to.size()));
    const Element element = from[i];
    const auto insert = [&] {
      to.insert(to.begin() + static_cast<std::ptrdiff_t>(std::min(near, to.size())), element);
    };
    switch (below(4)) {
      case 0:
        std::swap(from[i], to[near]);
        break;
      case 1:
        from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      case 2:
        insert();
        break;
      default:
        from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
        insert();
    }
  }

 private:
  std::mt19937_64 random_{20231130};
};

TEST(Mutation, a_plan_is_taken_just_where_it_runs_to_the_same_bits) {
  const std::vector<Schedule> schedules = valid_plans();
  Editor editor;
  int taken = 0, refused = 0;
  for (int round = 0; round < 10'000; ++round) {
    const Schedule& schedule = schedules[editor.below(schedules.size())];
    const ScheduleShape shape = shape_of(schedule);
    const NaiveResult right = naive_run(schedule, shape);
    ASSERT_EQ(right.fault, "");
    Schedule edited = schedule;
    editor.edit(edited.ranks);
    const double limit = static_cast<double>(right.held_max) * shape.ranks / shape.virtual_stages;
    const std::optional<ScheduleFault> fault = check_schedule(edited, {limit, 1});
    NaiveResult result = naive_run(edited, shape);
    const bool fits = result.held_max <= right.held_max;
    if (!fault) {
      ++taken;
      ASSERT_EQ(result.fault, "") << schedule_json(edited).dump();
      ASSERT_EQ(result.sums, right.sums) << schedule_json(edited).dump();
      ASSERT_TRUE(fits);
      const Program program = lower(edited, ActionTimes{});
      const std::optional<ProgramFault> left = check_program(edited, program);
      ASSERT_FALSE(left) << left->message;
      const NaiveResult blocking = naive_run(program, shape);
      ASSERT_EQ(blocking.fault, "");
      ASSERT_EQ(blocking.sums, right.sums);
      const NaiveResult early = EarlyRun(edited, program).run();
      ASSERT_EQ(early.fault, "") << schedule_json(edited).dump();
      ASSERT_EQ(early.sums, right.sums) << schedule_json(edited).dump();
    } else {
      ++refused;
      // These two rules are promises beyond this run: order of sums, form of groups.
      if (fault->rule == "reproducible" || fault->rule == "group") continue;
      const bool harmless = result.fault.empty() && result.sums == right.sums && fits;
      ASSERT_FALSE(harmless) << fault->text(edited) << "\n" << schedule_json(edited).dump();
    }
  }
  EXPECT_GT(taken, 300);
  EXPECT_GT(refused, 5000);
}

TEST(Mutation, a_program_is_taken_only_where_blocking_ranks_run_it_to_the_same_bits) {
  const std::vector<Schedule> schedules = valid_plans();
  Editor editor;
  int taken = 0, refused = 0;
  for (int round = 0; round < 10'000; ++round) {
    const Schedule& schedule = schedules[editor.below(schedules.size())];
    const ScheduleShape shape = shape_of(schedule);
    Program program = lower(schedule, {1, 1, 1, 0.1});
    editor.edit(program.ranks);
    const std::optional<ProgramFault> fault = check_program(schedule, program);
    fault ? ++refused : ++taken;
    if (fault) continue;
    const NaiveResult result = naive_run(program, shape);
    ASSERT_EQ(result.fault, "");
    ASSERT_EQ(result.sums, naive_run(schedule, shape).sums);
    const NaiveResult early = EarlyRun(schedule, program).run();
    ASSERT_EQ(early.fault, "");
    ASSERT_EQ(early.sums, result.sums);
  }
  EXPECT_GT(taken, 300);
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace trireme
