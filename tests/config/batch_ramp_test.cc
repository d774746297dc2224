#include "config/batch_ramp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support.h"

namespace trireme {
namespace {

/// What batch.global says, word for word: the size of a step by the tokens that are consumed
/// before.
std::int64_t size_by_tokens(const GlobalBatch& batch, std::int64_t consumed_tokens) {
  std::int64_t size = 0;
  for (const BatchPhase& phase : batch.phases)
    if (consumed_tokens >= phase.from_token) size = phase.size;
  return size;
}

GlobalBatch drawn(std::mt19937& random) {
  std::vector<BatchPhase> phases{{0, 1 + static_cast<std::int64_t>(random() % 9)}};
  for (std::int64_t more = random() % 4; more > 0; --more) {
    phases.push_back({phases.back().from_token + 1 + static_cast<std::int64_t>(random() % 300),
                      1 + static_cast<std::int64_t>(random() % 9)});
  }
  return GlobalBatch(std::move(phases));
}

TEST(BatchRamp, counts_as_a_walk_over_all_steps_does) {
  std::mt19937 random(11);
  for (int draw = 0; draw < 300; ++draw) {
    const GlobalBatch batch = drawn(random);
    const std::int64_t length = 1 + static_cast<std::int64_t>(random() % 20);
    const BatchRamp ramp(batch, length);
    std::vector<std::int64_t> consumed{0};
    for (std::int64_t step = 0; step < 80; ++step) {
      const std::int64_t size = size_by_tokens(batch, consumed.back() * length);
      ASSERT_EQ(ramp.size_at(consumed.back()), size) << step;
      consumed.push_back(consumed.back() + size);
    }
    for (std::int64_t from = 0; from < 80; from += 7) {
      for (std::int64_t steps = 0; from + steps <= 80; steps += 3)
        ASSERT_EQ(ramp.advance(consumed[from], steps), consumed[from + steps]);
      std::int64_t step = from;
      for (const auto& [count, size] : ramp.stretches(consumed[from], 80 - from)) {
        ASSERT_GT(count, 0);
        for (std::int64_t i = 0; i < count; ++i, ++step)
          ASSERT_EQ(size, consumed[step + 1] - consumed[step]);
      }
      ASSERT_EQ(step, 80);
    }
    for (std::int64_t samples = 0; samples <= consumed.back(); ++samples) {
      const auto least = std::ranges::lower_bound(consumed, samples) - consumed.begin();
      const auto behind_most = std::ranges::upper_bound(consumed, samples) - consumed.begin();
      ASSERT_EQ(ramp.steps_to(samples), least);
      if (samples < consumed.back()) {
        ASSERT_EQ(ramp.steps_within(samples), behind_most - 1);
      }
    }
  }
}

TEST(BatchRamp, a_position_that_no_run_from_the_start_reaches_has_a_size_too) {
  const BatchRamp ramp(GlobalBatch({{0, 4}, {80, 8}}), 10);
  EXPECT_EQ(ramp.size_at(7), 4);
  EXPECT_EQ(ramp.advance(7, 2), 7 + 4 + 8);
  EXPECT_EQ(ramp.stretches(5, 3), (std::vector<BatchRamp::Stretch>{{1, 4}, {2, 8}}));
}

TEST(BatchRamp, a_phase_that_no_step_meets_has_none) {
  // The first step consumes 8 samples, behind both of the next phases' begins.
  const BatchRamp ramp(GlobalBatch({{0, 8}, {30, 2}, {80, 5}}), 10);
  EXPECT_EQ(ramp.stretches(0, 3), (std::vector<BatchRamp::Stretch>{{1, 8}, {2, 5}}));
  EXPECT_EQ(ramp.sizes(), (std::vector<std::int64_t>{8, 5, 2}));
}

TEST(BatchRamp, a_size_that_comes_twice_is_one_and_the_largest_need_not_be_last) {
  const BatchRamp ramp(GlobalBatch({{0, 4}, {100, 12}, {400, 4}}), 10);
  EXPECT_EQ(ramp.sizes(), (std::vector<std::int64_t>{12, 4}));
  EXPECT_EQ(ramp.largest(), 12);
  EXPECT_EQ(BatchRamp(6).sizes(), std::vector<std::int64_t>{6});
  EXPECT_EQ(BatchRamp(6).advance(5, 1'000'000), 6'000'005);
}

TEST(BatchRamp, large_numbers_take_no_time_and_do_not_wrap) {
  constexpr std::int64_t kTokens = 9'007'199'254'740'991;  // 2^53 - 1
  const BatchRamp ramp(GlobalBatch({{0, 1}, {kTokens - 1, 1'000'000'000}, {kTokens, 1}}), 1);
  EXPECT_EQ(ramp.steps_to(kTokens), kTokens);
  EXPECT_EQ(ramp.size_at(kTokens - 1), 1'000'000'000);
  EXPECT_EQ(ramp.advance(0, kTokens), kTokens - 1 + 1'000'000'000);
}

LoadedConfig load_ramp(const std::string& value) { return load_with({"batch.global=" + value}); }

TEST(BatchRamp, is_read_with_units_and_written_as_numbers) {
  const LoadedConfig loaded = load_ramp(R"([[0, 4], ["1.5k", 8], ["2M", "1k"]])");
  ASSERT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.config.batch.global, GlobalBatch({{0, 4}, {1500, 8}, {2'000'000, 1000}}));
  const Json written = resolved_json(loaded.config);
  EXPECT_EQ(written.find("batch")->find("global")->dump(), "[[0,4],[1500,8],[2000000,1000]]");
  EXPECT_EQ(parse_run_config(written).config.batch, loaded.config.batch);
  EXPECT_EQ(load_ramp("[[0, 8]]").config.batch.global, 8) << "one phase is a number";
  EXPECT_EQ(resolved_json(load_ramp("[[0, 8]]").config).find("batch")->find("global")->dump(), "8");
}

TEST(BatchRamp, each_fault_is_told_where_it_stands) {
  struct Case {
    const char *value, *path, *found, *nearest;
  };
  for (const auto& [value, path, found, nearest] : {
           Case{"[]", "batch.global", "[]", ""},
           Case{"[[1,8],[2,16]]", "batch.global[0][0]", "1", "0"},
           Case{"[[0,8],[0,16]]", "batch.global[1][0]", "0", "1"},
           Case{"[[0,8],[100,16],[99,32]]", "batch.global[2][0]", "99", "101"},
           Case{"[[0,8],[-1,16]]", "batch.global[1][0]", "-1", ""},
           Case{"[[0,8],[1.5,16]]", "batch.global[1][0]", "1.5", ""},
           Case{"[[0,8],[100,0]]", "batch.global[1][1]", "0", "1"},
           Case{"[[0,-4],[100,8]]", "batch.global[0][1]", "-4", "1"},
           Case{"[[0,8],[100,2.5]]", "batch.global[1][1]", "2.5", ""},
           Case{"[[0,8],[100,2000000000]]", "batch.global[1][1]", "2000000000", ""},
           Case{"[[0,8],[100]]", "batch.global[1]", "[100]", ""},
           Case{"[[0,8],16]", "batch.global[1]", "16", ""},
           Case{"[0,8]", "batch.global[0]", "0", ""},
       }) {
    const LoadedConfig loaded = load_ramp(value);
    ASSERT_FALSE(loaded.problems.empty()) << value;
    const Problem& problem = loaded.problems.front();
    EXPECT_EQ(problem.path, path) << value;
    EXPECT_EQ(problem.found, found) << value;
    EXPECT_EQ(problem.nearest, nearest) << value;
    EXPECT_FALSE(problem.legal.empty() || problem.message.empty()) << value;
  }
  EXPECT_EQ(load_ramp("[[3,0],[2,0],7]").problems.size(), 5U) << "all are told at once";
}

TEST(BatchRamp, a_number_keeps_its_own_faults) {
  EXPECT_EQ(only_problem(load_ramp("0")).nearest, "1");
  EXPECT_EQ(only_problem(load_ramp("0")).message, "is out of range");
  EXPECT_EQ(only_problem(load_ramp("2.5")).message, "must be a whole number");
}

TEST(BatchRamp, one_accumulation_contradicts_a_ramp) {
  const Problem problem = only_problem(
      load_with({"batch.global=[[0,4],[100,8]]", "batch.micro=1", "batch.accumulation=4"}));
  EXPECT_EQ(problem.path, "batch.accumulation");
  EXPECT_EQ(problem.found, "4");
}

}  // namespace
}  // namespace trireme
