#include "plan/expert_files.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/rank_part.h"
#include "plan/resolve.h"
#include "support/small_config.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

/// A dense layer, then two of four experts, on two expert ranks.
RunConfig config_of_experts() {
  RunConfig config = small_config(parse_json(R"({"model_type":"qwen3_moe","hidden_size":64,
      "num_attention_heads":4,"num_key_value_heads":4,"head_dim":16,"num_hidden_layers":3,
      "mlp_only_layers":[0],"intermediate_size":128,"moe_intermediate_size":32,"num_experts":4,
      "num_experts_per_tok":2,"vocab_size":257,"max_position_embeddings":64})",
                                             "model"));
  config.parallel.expert = 2;
  return config;
}

struct Fault {
  ExitCode code = ExitCode::kOk;
  std::string text;
};
template <class F>
Fault fault_of(const F& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}
Fault fault_of_load(const char* text) {
  return fault_of([&] {
    (void)parse_expert_load(parse_json(text, "f.json"), "f.json", config_of_experts().model);
  });
}
Fault fault_of_placement(const char* text) {
  return fault_of([&] {
    (void)parse_expert_placement(parse_json(text, "f.json"), "f.json", config_of_experts().model,
                                 2);
  });
}

TEST(ExpertFiles, come_back_as_they_were_written) {
  const ModelConfig model = config_of_experts().model;
  const ExpertLoad load = {{}, {5, 0, 1, 2}, {std::int64_t{1} << 53, 1, 1, 1}};
  EXPECT_EQ(expert_load_json(load).dump(), R"({"load":[null,[5,0,1,2],[9007199254740992,1,1,1]]})");
  EXPECT_EQ(parse_expert_load(expert_load_json(load), "load", model), load);
  const ExpertPlacement placement = {{}, {1, 0, 1, 0}, {0, 0, 1, 1}};
  EXPECT_EQ(expert_placement_json(placement).dump(), R"({"placement":[null,[1,0,1,0],[0,0,1,1]]})");
  EXPECT_EQ(parse_expert_placement(expert_placement_json(placement), "p", model, 2), placement);
}

TEST(ExpertFiles, a_load_of_another_model_is_a_fault_of_data) {
  for (const auto& [text, said] : {
           std::pair(R"([])", R"(f.json: has no list "load")"),
           {R"({"load":7})", R"(f.json: has no list "load")"},
           {R"({"load":[null,[1,1,1,1]]})", R"("load" has 2 layers, and the model has 3)"},
           {R"({"load":[[1,1,1,1],null,null]})",
            "f.json: layer 0: is an array, and has no experts"},
           {R"({"load":[null,[1,1,1,1],null]})", "f.json: layer 2: is null. Legal: a list of 4"},
           {R"({"load":[null,[1,1,1],[1,1,1,1]]})", "layer 1: is a list of 3. Legal: a list of 4"},
           {R"({"load":[null,[1,1,-1,1],[1,1,1,1]]})", "layer 1: expert 2 has -1"},
           {R"({"load":[null,[1,1,1,1],[1,2.5,1,1]]})", "layer 2: expert 1 has 2.5"},
       }) {
    const Fault fault = fault_of_load(text);
    EXPECT_EQ(fault.code, ExitCode::kData) << text;
    EXPECT_NE(fault.text.find(said), std::string::npos) << fault.text;
  }
}

TEST(ExpertFiles, a_placement_of_other_ranks_is_a_fault_of_the_config) {
  for (const auto& [text, said] : {
           std::pair(R"({"load":[]})", R"(f.json: has no list "placement")"),
           {R"({"placement":[null,[0,0,1,1],[0,0,1,2]]})",
            "f.json: layer 2: expert 3 has 2. Legal: an integer from 0 to 1"},
           {R"({"placement":[null,[0,0,1,0],[0,0,1,1]]})",
            "f.json: layer 1: rank 0 has 3 experts. Legal: 2 on each of parallel.expert = 2"},
       }) {
    const Fault fault = fault_of_placement(text);
    EXPECT_EQ(fault.code, ExitCode::kConfig) << text;
    EXPECT_NE(fault.text.find(said), std::string::npos) << fault.text;
  }
}

struct Outcome {
  ResolvedRun run;
  std::vector<Problem> problems;
};
Outcome resolve(const RunConfig& config, const ExpertPlacement* sent = nullptr) {
  ResolveInput input;
  input.world = 2;
  input.expert_placement = sent;
  Outcome outcome;
  std::vector<std::string> notes;
  outcome.run = resolve_run(config, input, outcome.problems, notes);
  return outcome;
}

/// Names of the first matrix of each expert of a layer that a rank declares.
std::vector<std::string> gates(const RunConfig& config, const ResolvedRun& run, int rank) {
  const RankPart part = part_of_rank(config, run, rank, StagePurpose::kTraining);
  std::vector<std::string> names;
  for (const ParamMeta& meta : part.declare(config.model).metas) {
    const auto at = meta.name.find(".experts.");
    if (at != std::string::npos && meta.name.find("gate_proj") != std::string::npos)
      names.push_back(meta.name.substr(meta.name.find("layers.") + 7, 1) +
                      meta.name.substr(at + 8, 2));
  }
  return names;
}

TEST(ExpertPlacementFile, decides_which_experts_a_rank_declares) {
  const TemporaryDirectory folder;
  RunConfig config = config_of_experts();
  config.parallel.expert_placement =
      folder.write("p.json", R"({"placement":[null,[1,0,1,0],[0,1,1,0]]})");
  const Outcome read = resolve(config);
  EXPECT_TRUE(read.problems.empty()) << format_problems(read.problems);
  EXPECT_EQ(gates(config, read.run, 0), (std::vector<std::string>{"1.1", "1.3", "2.0", "2.3"}));
  EXPECT_EQ(gates(config, read.run, 1), (std::vector<std::string>{"1.0", "1.2", "2.1", "2.2"}));
  config.parallel.expert_placement = "is read by rank 0 alone";
  const Outcome sent = resolve(config, &read.run.expert_placement);
  EXPECT_TRUE(sent.problems.empty()) << format_problems(sent.problems);
  EXPECT_EQ(sent.run.expert_placement, read.run.expert_placement);
}

TEST(ExpertPlacementFile, is_refused_by_its_key) {
  const TemporaryDirectory folder;
  RunConfig config = config_of_experts();
  const auto problem = [&](std::string path) {
    config.parallel.expert_placement = std::move(path);
    const std::vector<Problem> problems = resolve(config).problems;
    EXPECT_EQ(problems.size(), 1U) << format_problems(problems);
    const Problem first = problems.empty() ? Problem() : problems[0];
    EXPECT_EQ(first.path, "parallel.expert_placement");
    return first.code;
  };
  EXPECT_EQ(problem(folder / "none.json"), ExitCode::kData);
  EXPECT_EQ(problem(folder.write("not.json", "{")), ExitCode::kConfig);
  EXPECT_EQ(problem(folder.write("few.json", R"({"placement":[]})")), ExitCode::kConfig);
}

}  // namespace
}  // namespace trireme
