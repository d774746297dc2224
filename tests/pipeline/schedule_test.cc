#include "pipeline/schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/schedules/schedules.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

std::string fault_of(const char* text) {
  try {
    parse_schedule(parse_json(text, "p"), "schedule.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no fault";
}

TEST(Schedule, reads_back_what_it_writes) {
  Schedule schedule;
  schedule.ranks = {{{ActionKind::kForward, 0, 0},
                     {ActionKind::kForward, 1, 0, 7},
                     {ActionKind::kBackwardInput, 1, 0, 7},
                     {ActionKind::kBackwardWeight, 1, 0},
                     {ActionKind::kRecompute, 0, 0},
                     {ActionKind::kBackward, 0, 0}}};
  schedule.placement = {0, 0};
  schedule.reproducible = false;
  const std::vector<std::vector<double>> starts = {{0, 1, 1, 3, 4, 5}};
  for (const auto* with :
       {static_cast<const std::vector<std::vector<double>>*>(nullptr), &starts}) {
    const Schedule again =
        parse_schedule(parse_json(schedule_json(schedule, with).dump(), "p"), "p");
    EXPECT_EQ(again.ranks, schedule.ranks);
    EXPECT_EQ(again.placement, schedule.placement);
    EXPECT_EQ(again.reproducible, schedule.reproducible);
  }
}

TEST(Schedule, needs_only_ranks_and_looks_at_no_other_key) {
  const Schedule schedule = parse_schedule(
      parse_json(R"({"cost": "?", "ranks": [[["F", 0, 0], ["BW", 0, 0, 2.5]]]})", "p"), "p");
  EXPECT_EQ(schedule.ranks[0][1], (Action{ActionKind::kBackward, 0, 0}));
  EXPECT_TRUE(schedule.reproducible);
  EXPECT_EQ(shape_of(schedule).placement, std::vector<std::int32_t>{0});
}

TEST(Schedule, says_where_a_file_is_wrong_and_what_would_be_legal) {
  EXPECT_EQ(fault_of("[]"), "schedule.json: is an array. Legal: an object with \"ranks\"");
  EXPECT_EQ(fault_of("{}"),
            "schedule.json: has no \"ranks\". Legal: a list of actions for each rank");
  EXPECT_EQ(fault_of(R"({"ranks": []})"),
            "schedule.json: \"ranks\" has 0 entries. Legal: 1 to 65536");
  EXPECT_EQ(fault_of(R"({"ranks": [[], 3]})"),
            "schedule.json: rank 1: is an integer. Legal: a list of actions");
  EXPECT_EQ(fault_of(R"({"ranks": [[["F", 0, 0], ["G", 0, 0]]]})"),
            "schedule.json: rank 0, position 1: the action is \"G\". Legal: \"F\", \"B\", \"W\", "
            "\"BW\", \"R\"");
  EXPECT_EQ(fault_of(R"({"ranks": [[["F", 0]]]})"),
            "schedule.json: rank 0, position 0: is no action. Legal: [action, virtual stage, "
            "micro-batch], then a start and a group");
  EXPECT_EQ(
      fault_of(R"({"ranks": [[["F", -1, 0]]]})"),
      "schedule.json: rank 0, position 0: the virtual stage is -1. Legal: an integer from 0 to "
      "1048575");
  EXPECT_EQ(
      fault_of(R"({"ranks": [[["F", 0, 1.5]]]})"),
      "schedule.json: rank 0, position 0: the micro-batch is 1.5. Legal: an integer from 0 to "
      "16777215");
  EXPECT_EQ(fault_of(R"({"ranks": [[["F", 0, 0, "now"]]]})"),
            "schedule.json: rank 0, position 0: the start is a string. Legal: a number, or null");
  EXPECT_EQ(fault_of(R"({"ranks": [[["F", 0, 0]]], "placement": [1]})"),
            "schedule.json: a rank in \"placement\" is 1. Legal: an integer from 0 to 0");
  EXPECT_EQ(fault_of(R"({"ranks": [[["F", 0, 0]]], "reproducible": 1})"),
            "schedule.json: \"reproducible\" is an integer. Legal: true or false");
}

TEST(Schedule, a_file_that_is_no_json_is_the_users_fault_and_a_missing_one_the_file_systems) {
  const TemporaryDirectory folder;
  const auto code_of = [](const std::string& path) {
    try {
      read_schedule(path);
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::kOk;
  };
  EXPECT_EQ(code_of(folder.write("schedule", "{\"ranks\": [").string()), ExitCode::kConfig);
  EXPECT_EQ(code_of((folder / "none").string()), ExitCode::kData);
}

TEST(Schedule, placements_of_the_three_shapes) {
  EXPECT_EQ(interleaved_placement(2, 2), (std::vector<std::int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(v_placement(3), (std::vector<std::int32_t>{0, 1, 2, 2, 1, 0}));
}

}  // namespace
}  // namespace trireme
