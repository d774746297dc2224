// What a schedule file may hold, and how every other file is refused: exit 2, the key, the file,
// the place, the rule, what is legal.

#include <gtest/gtest.h>

#include "base/file.h"
#include "plan/resolve.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

/// Of rank 0 and of rank 1: two micro-batches in the order of GPipe and of 1F1B.
const std::string kFirst = R"(["F",0,0],["F",0,1],["BW",0,0],["BW",0,1])";
const std::string kLast = R"(["F",1,0],["BW",1,0],["F",1,1],["BW",1,1])";
std::string plan_of(const std::string& first, const std::string& last,
                    const std::string& more = "") {
  return "{" + more + R"("ranks":[[)" + first + "],[" + last + "]]}";
}

class ScheduleFile : public testing::Test {
 protected:
  ScheduleFile() {
    config_.run.directory = "r";
    config_.run.steps = 1;
    config_.data.train.synthetic = true;
    config_.data.sequence_length = 8;
    config_.batch.micro = 1;
    config_.batch.accumulation = 2;
    config_.optimizer.lr = 1;
    ModelConfig& model = config_.model;
    LayerConfig layer;
    layer.attention.heads = layer.attention.kv_heads = 2;
    layer.attention.head_dim = 8;
    layer.mlp.ffn = 40;
    model.layers.assign(4, layer);
    model.hidden = 16;
    model.vocab_size = 100;
    model.max_positions = 8;
    config_.model_json = Json::object();
    config_.parallel.pipeline = 2;
  }

  /// The run of such a file; "KEY: MESSAGE" of its only fault in `fault_`.
  ResolvedRun resolve(const std::string& text) {
    const std::string path = directory_.write("schedule.json", text).string();
    config_.parallel.pipeline_schedule = path;
    std::vector<Problem> problems;
    notes_.clear();
    ResolvedRun run = resolve_run(config_, {config_.parallel.pipeline}, problems, notes_);
    EXPECT_LE(problems.size(), 1U) << format_problems(problems);
    fault_ = problems.empty() ? "" : problems[0].path + ": " + problems[0].message;
    if (const std::size_t at = fault_.find(path); at != std::string::npos)
      fault_.replace(at, path.size(), "FILE");
    return run;
  }
  std::string fault_of(const std::string& text) {
    (void)resolve(text);
    return fault_;
  }

  const TemporaryDirectory directory_;
  RunConfig config_;
  std::vector<std::string> notes_;
  std::string fault_;
};

TEST_F(ScheduleFile, is_run_as_it_stands) {
  const ResolvedRun run = resolve(plan_of(kFirst, kLast));
  EXPECT_EQ(fault_, "");
  EXPECT_EQ(run.pipeline.schedule().ranks[1][1], (Action{ActionKind::kBackward, 1, 0}));
  EXPECT_TRUE(notes_.empty());
}

TEST_F(ScheduleFile, may_put_stages_elsewhere) {
  EXPECT_EQ(resolve(plan_of(kLast, kFirst, R"("placement":[1,0],)")).pipeline.placement,
            (std::vector<std::int32_t>{1, 0}));
  EXPECT_EQ(fault_, "");
}

TEST_F(ScheduleFile, with_an_order_of_sums_of_its_own_must_say_so_and_the_run_says_it_too) {
  const std::string first = R"(["F",0,1],["F",0,0],["BW",0,1],["BW",0,0])";
  const std::string last = R"(["F",1,1],["BW",1,1],["F",1,0],["BW",1,0])";
  EXPECT_EQ(fault_of(plan_of(first, last)),
            "parallel.pipeline_schedule: FILE: rank 0, position 1 (F0.0), rule reproducible: "
            "micro-batch 1 of this stage came before, so sums differ from other schedules. Legal: "
            "ascending micro-batches, or \"reproducible\": false in the schedule");
  EXPECT_FALSE(
      resolve(plan_of(first, last, R"("reproducible":false,)")).pipeline.schedule().reproducible);
  EXPECT_EQ(fault_, "");
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_NE(notes_[0].find("is not reproducible"), std::string::npos);
}

struct Refused {
  std::string text, fault;  ///< behind "parallel.pipeline_schedule: FILE"
};

TEST_F(ScheduleFile, is_refused_with_its_place_its_rule_and_what_is_legal) {
  const std::string complete =
      "Legal: F and BW, or F, B and W, of every micro-batch from 0 on every stage";
  const std::string order = ". Legal: F, then R where there is one, then B and W, or BW";
  const std::string deep(100'000, '[');
  const Refused files[] = {
      {"", ": line 1, column 1: holds nothing"},
      {deep, ": nested deeper than 64 levels"},
      {"{}", ": has no \"ranks\". Legal: a list of actions for each rank"},
      {"[]", ": is an array. Legal: an object with \"ranks\""},
      {R"({"ranks":[]})", ": \"ranks\" has 0 entries. Legal: 1 to 65536"},
      {R"({"ranks":[],"ranks":[]})", ": the key \"ranks\" stands twice in one object"},
      {plan_of("", ""), ": rule complete: there are no actions. " + complete},
      {plan_of(kFirst, R"(["F",1,0],["BW",1,0],["F",1,1])"),
       ": rank 1, rule complete: B and W, or BW, of 1.1 is missing. " + complete},
      {plan_of(kFirst, R"(["F",1,0],["BW",1,0],["BW",1,1])"),
       ": rank 1, rule complete: F1.1 is missing. " + complete},
      {plan_of(kFirst, kLast + R"(,["F",1,0])"),
       ": rank 1, position 4 (F1.0), rule complete: it stands at position 0 already. Legal: once"},
      {plan_of(kFirst, kLast + R"(,["W",1,0])"),
       ": rank 1, position 4 (W1.0), rule complete: BW1.0 at position 1 does this already. " +
           complete},
      {plan_of(R"(["F",0,16000000])", kLast),
       ": rank 0, position 0 (F0.16000000), rule complete: the schedule's 5 actions are too few "
       "for 2 "
       "virtual stages and 16000001 micro-batches. " +
           complete},
      {plan_of(kLast, kFirst),
       ": rank 0, position 0 (F1.0), rule place: virtual stage 1 is on "
       "rank 1. Legal: there, or another placement"},
      {plan_of(kFirst, kLast, R"("placement":[0,0],)"),
       ": rank 1, rule placement: it holds 0 virtual stages and rank 0 2. Legal: equal numbers, at "
       "least 1"},
      {plan_of(kFirst, kLast, R"("placement":[0,2],)"),
       ": a rank in \"placement\" is 2. Legal: an integer from 0 to 1"},
      {plan_of(kFirst, R"(["F",1,0],["W",1,0],["B",1,0],["F",1,1],["BW",1,1])"),
       ": rank 1, position 1 (W1.0), rule order: B1.0 must stand before it, and stands at "
       "position 2" +
           order},
      {plan_of(kFirst, R"(["BW",1,0],["F",1,0],["F",1,1],["BW",1,1])"),
       ": rank 1, position 0 (BW1.0), rule order: F1.0 must stand before it, and stands at "
       "position 1" +
           order},
      {plan_of(kFirst, R"(["X",1,0])"),
       ": rank 1, position 0: the action is \"X\". Legal: \"F\", \"B\", \"W\", \"BW\", \"R\""},
      {plan_of(kFirst, R"(["F","1",0])"),
       ": rank 1, position 0: the virtual stage is \"1\". Legal: an integer from 0 to 1048575"},
      {plan_of(kFirst, R"(["F",1,0.5])"),
       ": rank 1, position 0: the micro-batch is 0.5. Legal: an integer from 0 to 16777215"},
      {plan_of(kFirst, R"(["F",1])"),
       ": rank 1, position 0: is no action. Legal: [action, virtual "
       "stage, micro-batch], then a start and a group"},
      {plan_of(kFirst, kLast, R"("reproducible":"no",)"),
       ": \"reproducible\" is a string. Legal: true or false"},
      {plan_of(R"(["F",0,0],["BW",0,0],["F",0,1],["BW",0,1])",
               R"(["F",1,0],["F",1,1],["BW",1,0],["BW",1,1])"),
       ": rank 0, position 1 (BW0.0), rule progress: it needs the input gradient of virtual stage "
       "1, micro-batch 0, which stands behind F1.1 (rank 1, position 1), and that waits, over "
       "other ranks or at once, for this action. Legal: an order in which one of the ranks can "
       "always go on"},
      {plan_of(R"(["F",0,0,0,1],["F",0,1,0,1],["BW",0,0],["BW",0,1])", kLast),
       ": rank 0, position 0 (F0.0), rule group: 2 actions with mark 1. Legal: one F and one B or "
       "BW"},
      {plan_of(kFirst, R"(["F",1,0],["R",1,0],["BW",1,0],["F",1,1],["BW",1,1])"),
       ": rank 1, position 1 (R1.0), rule recompute: with parallel.recompute \"none\" F of this "
       "model keeps all that R would make again. Legal: the schedule without R, or "
       "parallel.recompute "
       "\"full\""},
      {plan_of(kFirst, R"(["F",1,0],["BW",1,0],["F",1,1],["BW",1,1],["R",1,1])"),
       ": rank 1, position 3 (BW1.1), rule order: R1.1 must stand before it, and stands at "
       "position 4" +
           order},
      {plan_of(kFirst, R"(["F",1,0],["R",1,0],["R",1,0],["BW",1,0],["F",1,1],["BW",1,1])"),
       ": rank 1, position 2 (R1.0), rule complete: it stands at position 1 already. Legal: once"},
      {plan_of(kFirst, R"(["R",1,0],["F",1,0],["BW",1,0],["F",1,1],["BW",1,1])"),
       ": rank 1, position 0 (R1.0), rule order: F1.0 must stand before it, and stands at position "
       "1" +
           order},
      {plan_of(kFirst, R"(["F",1,0],["R",1,0,0,1],["BW",1,0,0,1],["F",1,1],["BW",1,1])"),
       ": rank 1, position 1 (R1.0), rule group: 2 actions with mark 1. Legal: one F and one B or "
       "BW"},
      {plan_of(kFirst + R"(,["F",0,2],["BW",0,2])", kLast + R"(,["F",1,2],["BW",1,2])"),
       " is a schedule of 2 ranks and 3 micro-batches, the run has pipeline 2 and 2 micro-batches "
       "in a "
       "step. Use another schedule or other extents"},
      {"{\"ranks\":[[" + kFirst + "]]}",
       " is a schedule of 1 rank and 2 micro-batches, the run has pipeline 2 and 2 micro-batches "
       "in a "
       "step. Use another schedule or other extents"},
  };
  for (const Refused& file : files) {
    EXPECT_EQ(fault_of(file.text), "parallel.pipeline_schedule: FILE" + file.fault)
        << file.text.substr(0, 200);
  }
}

TEST_F(ScheduleFile, is_held_to_what_else_the_config_says) {
  config_.parallel.virtual_stages = 2;
  EXPECT_EQ(
      fault_of(plan_of(kFirst, kLast)),
      "parallel.virtual_stages: 2, and the schedule FILE has 1 on each rank. Legal: 1, or leave "
      "it out");
  config_.parallel.virtual_stages = 1;
  config_.parallel.pipeline_memory_limit = 1;
  EXPECT_EQ(fault_of(plan_of(kFirst, kLast)),
            "parallel.pipeline_schedule: FILE: rank 0, rule memory: it holds 2 full-stage "
            "activations and the limit is 1. Legal: a limit of at least 2 for this rank");
  config_.parallel.pipeline_memory_limit = 2;
  EXPECT_EQ(fault_of(plan_of(kFirst, kLast)), "");
  config_.parallel.pipeline_group_size = 2;
  EXPECT_EQ(fault_of(plan_of(kFirst, kLast)),
            "parallel.pipeline_group_size: 2, and the schedule FILE has its order already. Legal: "
            "leave it out; \"interleaved\" alone has groups");
}

TEST_F(ScheduleFile, may_make_activations_again_where_f_does_not_keep_them) {
  const std::string schedule =
      plan_of(kFirst, R"(["F",1,0],["R",1,0],["BW",1,0],["F",1,1],["BW",1,1])");
  config_.parallel.recompute = Recompute::kFull;
  EXPECT_EQ(fault_of(schedule), "");
  config_.parallel.recompute = Recompute::kSelective;
  EXPECT_NE(
      fault_of(schedule).find("with parallel.recompute \"selective\" F of this model keeps all"),
      std::string::npos);
  for (LayerConfig& layer : config_.model.layers) layer.attention.qk_norm = QkNorm::kHeads;
  EXPECT_EQ(fault_of(schedule), "");
  // What R makes counts: two in flight here are not the most.
  config_.parallel.recompute = Recompute::kFull;
  config_.parallel.pipeline_memory_limit = 2;
  EXPECT_NE(fault_of(schedule).find("rank 1, rule memory: it holds "), std::string::npos) << fault_;
}

TEST_F(ScheduleFile, that_cannot_be_read_may_be_a_kind_of_schedule_with_a_slip) {
  config_.parallel.pipeline_schedule = "1f2b";
  std::vector<Problem> problems;
  (void)resolve_run(config_, {2}, problems, notes_);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].path, "parallel.pipeline_schedule");
  EXPECT_EQ(problems[0].nearest, "1f1b");
}

}  // namespace
}  // namespace trireme
