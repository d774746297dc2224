#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "commands/commands.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

using Words = std::vector<std::string>;

/// What the command prints; its exceptions go through.
std::string printed(const Words& words) {
  testing::internal::CaptureStdout();
  try {
    EXPECT_EQ(schedule_command(words), 0);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

Json json_of(Words words) {
  words.emplace_back("--json");
  return parse_json(printed(words), "stdout");
}

std::string fault_of(const Words& words) {
  try {
    printed(words);
  } catch (const ConfigError& error) {
    return error.what();
  } catch (const Error& error) {
    return std::string("code ") + std::to_string(static_cast<int>(error.code()));
  }
  return "none";
}

TEST(ScheduleCommand, prints_an_object_that_is_a_schedule_file) {
  const Words words = {"--kind",          "dualpipe-v", "--stages", "2",
                       "--micro-batches", "6",          "--times",  "2,3,1,0.5"};
  const Json json = json_of(words);
  EXPECT_EQ(json.find("peak")->dump(), "[2.5,2.5]");
  EXPECT_EQ(json.find("placement")->dump(), "[0,1,1,0]");
  const double cost = json.find("cost")->as_double();
  EXPECT_DOUBLE_EQ(json.find("bubble_rate")->as_double(), (cost - 6 * 2 * 6) / cost);
  EXPECT_GE(json.find("makespan")->as_double(), cost);
  EXPECT_EQ(json.find("step_span")->as_double(), json.find("makespan")->as_double());
  const TemporaryDirectory folder;
  const std::string file = folder.write("plan.json", json.dump()).string();
  Json again = json_of({"--kind", file, "--times", "2,3,1,0.5"});
  again["kind"] = "dualpipe-v";
  EXPECT_EQ(again, json);
}

TEST(ScheduleCommand, draws_in_the_terminal_and_as_svg) {
  const Words words = {"--kind", "1f1b", "--stages", "2", "--micro-batches", "2"};
  EXPECT_EQ(printed(words),
            "1f1b: 2 ranks, 1 virtual stage each, 2 micro-batches\n"
            "rank 0 F0-F1-......B0-W0-...B1-W1-\n"
            "rank 1 ...F0-B0-W0-F1-B1-W1-......\n"
            "F forward, B gradient of the input, W gradient of the weights, R recompute\n"
            "Longest rank 9, all ranks 9, bubble 33.33 %\n"
            "Activations held at once: 1 to 2 full stages; sent by a rank: up to 2 tensors\n");
  const TemporaryDirectory folder;
  Words svg = words;
  svg.insert(svg.end(), {"--svg", (folder / "plan.svg").string()});
  EXPECT_EQ(printed(svg), "");
  const std::string picture = read_file(folder / "plan.svg");
  EXPECT_TRUE(picture.starts_with("<svg "));
  EXPECT_TRUE(picture.ends_with("</svg>\n"));
  EXPECT_NE(picture.find("<title>BW1.1 at 5, 2 long</title>"), std::string::npos) << picture;
}

TEST(ScheduleCommand, takes_the_schedule_of_a_config) {
  const auto with_limit = [](const char* limit) {
    return json_of({TRIREME_CONFIGS "/tiny_llama.json", "--set", "parallel.pipeline=3", "--set",
                    "model.num_hidden_layers=6", "--set", "parallel.pipeline_schedule=zb-v",
                    "--set", "batch.micro=1", "--set", "batch.global=6", "--set",
                    "parallel.pipeline_times=[1.0,1.0,1.0,0.0]", "--set",
                    std::string("parallel.pipeline_memory_limit=") + limit});
  };
  // What this model keeps from B to W is more than an activation.
  const Json json = with_limit("6");
  EXPECT_EQ(json.find("kind")->as_string(), "zb-v");
  EXPECT_EQ(json.find("ranks")->as_array().size(), 3u);
  EXPECT_EQ(json.find("bubble_rate")->as_double(), 0);
  EXPECT_EQ(json.find("makespan")->as_double(), 38);
  for (const Json& peak : with_limit("3").find("peak")->as_array())
    EXPECT_LE(peak.as_double(), 3 + 1e-9);
}

TEST(ScheduleCommand, a_step_that_runs_ahead_spans_what_its_longest_rank_takes) {
  const auto of = [](const char* ahead) {
    return json_of({TRIREME_CONFIGS "/tiny_llama.json", "--set", "parallel.pipeline=2", "--set",
                    "parallel.pipeline_schedule=zb-h2", "--set", "batch.micro=1", "--set",
                    "batch.global=8", "--set", "parallel.pipeline_memory_limit=6", "--set",
                    "parallel.pipeline_times=[1.0,1.0,1.0,0.0]", "--set",
                    std::string("parallel.speculative_step=") + ahead});
  };
  EXPECT_EQ(of("false").find("step_span")->as_double(), 25);
  EXPECT_EQ(of("true").find("step_span")->as_double(), 24);
}

TEST(ScheduleCommand, every_bad_input_is_reported_with_its_rule_and_what_is_legal) {
  const auto of = [](const char* kind, Words more) {
    Words words = {"--kind", kind};
    words.insert(words.end(), more.begin(), more.end());
    return fault_of(words);
  };
  EXPECT_EQ(of("interleaved", {"--stages", "4", "--micro-batches", "6"}),
            "interleaved on 4 stages with 6 micro-batches: after groups of 4 micro-batches 2 are "
            "left, fewer than the stages. Legal: 4 or 8 micro-batches, or another group size");
  EXPECT_EQ(of("zb-h2", {"--stages", "4", "--micro-batches", "6"}),
            "zb-h2 on 4 stages with 6 micro-batches: too few micro-batches to fill the pipeline. "
            "Legal: 7 or more (2·stages - 1), or zb-auto, which takes any number");
  EXPECT_EQ(of("zb-h1", {"--stages", "4", "--micro-batches", "8", "--virtual-stages", "2"}),
            "zb-h1 on 4 stages with 8 micro-batches: 2 virtual stages of a rank. Legal: 1; "
            "interleaved takes more");
  EXPECT_EQ(of("v-half", {"--stages", "4", "--micro-batches", "8", "--memory-limit", "2"}),
            "v-half on 4 stages with 8 micro-batches: a memory limit of 2 full-stage activations "
            "is too small. Legal: 3 or more, or zb-auto or zb-v, which take any from 1");
  EXPECT_EQ(of("zb-auto", {"--stages", "4", "--micro-batches", "8", "--memory-limit", "0.5"}),
            "zb-auto: a memory limit of 0.5 full-stage activations. Legal: 1 or more");
  for (const char* times : {"1,2", "1,2,3,4,5", "1,x,1", "1,,1", "1,1,1,"}) {
    EXPECT_EQ(of("1f1b", {"--stages", "2", "--micro-batches", "2", "--times", times}),
              std::string("--times: ") + times + ". Legal: three numbers F,B,W or four F,B,W,C");
  }
  EXPECT_NE(of("1f1b", {"--stages", "2", "--micro-batches", "2", "--times", "1,nan,1"})
                .find("Legal: numbers above 0"),
            std::string::npos);
  EXPECT_NE(of("gpipe", {"--stages", "2", "--micro-batches", "2", "--times", "1e300,1e300,1e300"})
                .find("1e-100 to 1e100"),
            std::string::npos);
  EXPECT_EQ(of("1f1b", {"--stages", "2", "--micro-batches", "4", "--group-size", "4"}),
            "1f1b on 2 stages with 4 micro-batches: a group of 4 micro-batches. Legal: none; "
            "interleaved alone has groups");
  EXPECT_NE(of("zb-h2", {"--stages", "2000000000", "--micro-batches", "1"})
                .find("more than 100000000 actions"),
            std::string::npos);
  EXPECT_NE(of("1f2b", {}).find("nearest: 1f1b"), std::string::npos);
  EXPECT_EQ(of("1f1b", {"--stages", "4"}),
            "train schedule: --kind 1f1b needs --stages and --micro-batches");
  EXPECT_EQ(of("/nowhere/plan.json", {}), "code 74");
}

TEST(ScheduleCommand, a_wrong_schedule_file_is_refused_with_its_place) {
  const TemporaryDirectory folder;
  const auto of = [&](const char* text) {
    const std::string path = folder.write("plan.json", text).string();
    std::string fault = fault_of({"--kind", path});
    if (const std::size_t at = fault.find(path); at != std::string::npos)
      fault.replace(at, path.size(), "FILE");
    return fault;
  };
  EXPECT_EQ(of(R"({"ranks": [[["BW", 0, 0], ["F", 0, 0]]]})"),
            "FILE: rank 0, position 0 (BW0.0), rule order: F0.0 must stand before it, and stands "
            "at position 1. Legal: F, then R where there is one, then B and W, or BW");
  EXPECT_EQ(of(R"({"ranks": [[["X", 0, 0]]]})"),
            "FILE: rank 0, position 0: the action is \"X\". Legal: \"F\", \"B\", \"W\", \"BW\", "
            "\"R\"");
  EXPECT_EQ(of("{"), "code 2");
}

}  // namespace
}  // namespace trireme
