// What people type wrong, and what they are told.
#include <gtest/gtest.h>

#include <algorithm>

#include "support.h"

namespace trireme {
namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

struct Slip {
  const char* override_text;
  const char* path;
  const char* nearest;
};

class OtherWords : public testing::TestWithParam<Slip> {};

TEST_P(OtherWords, are_told_as_what_they_mean_here) {
  const Problem problem = only_problem(load_with({GetParam().override_text}));
  EXPECT_EQ(problem.path, GetParam().path);
  EXPECT_EQ(problem.nearest, GetParam().nearest);
}

INSTANTIATE_TEST_SUITE_P(
    Messages, OtherWords,
    testing::Values(Slip{"run.device=gpu", "run.device", "\"cuda\""},
                    Slip{"precision.compute=fp16", "precision.compute", "\"bf16\""},
                    Slip{"precision.compute=float32", "precision.compute", "\"fp32\""},
                    Slip{"model.hidden_act=swiglu", "model.hidden_act", "silu"},
                    Slip{"model.model_type=Llama", "model.model_type", "llama"},
                    Slip{"model.model_type=LlamaForCausalLM", "model.model_type", "llama"},
                    Slip{"data.train=[\"a\",\"b\"]", "data.train", "[[1.0,\"a\"],[1.0,\"b\"]]"},
                    Slip{"data.train=[0.7,\"a\",0.3,\"b\"]", "data.train",
                         "[[0.7,\"a\"],[0.3,\"b\"]]"},
                    Slip{"parallel.recompute=true", "parallel.recompute", "\"full\""},
                    Slip{"parallel.context_method=p2p", "parallel.context_method", "\"ring\""},
                    Slip{"lr_schedule.kind=warmup_stable_decay", "lr_schedule.kind", "\"wsd\""},
                    Slip{"optimizer.kind=Adam", "optimizer.kind", "\"adamw\""},
                    Slip{"log.tensorboard=\"yes\"", "log.tensorboard", "true"},
                    Slip{"run.steps=\"3\"", "run.steps", "3"}));

TEST(Messages, shares_in_a_list_are_told_as_the_text_that_they_are) {
  const Problem problem = only_problem(load_with({"data.train=toy", "data.split=[90,5,5]"}));
  EXPECT_EQ(problem.path, "data.split");
  EXPECT_EQ(problem.nearest, "\"90,5,5\"");
}

TEST(Messages, numbers_may_have_units) {
  const LoadedConfig loaded = load_with({"run.steps=null", "run.tokens=10B", "batch.global=1k",
                                         "checkpoint.staging_bytes=2GiB", "data.scan_bytes=1.5GB"});
  ASSERT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.config.run.tokens, 10'000'000'000);
  EXPECT_EQ(loaded.config.batch.global, 1000);
  EXPECT_EQ(loaded.config.checkpoint.staging_bytes, std::int64_t{2} << 30);
  EXPECT_EQ(loaded.config.data.scan_bytes, 1'500'000'000);
  const Json resolved = resolved_json(loaded.config);
  EXPECT_EQ(resolved.find("run")->find("tokens")->dump(), "10000000000");
  EXPECT_EQ(resolved.find("checkpoint")->find("staging_bytes")->dump(), "2147483648");
}

TEST(Messages, a_text_without_a_unit_or_with_a_wrong_one_stays_a_wrong_type) {
  for (const char* text :
       {"run.steps=\"10\"", "run.steps=10Q", "run.steps=2GiB", "checkpoint.staging_bytes=4k"}) {
    const Problem problem = only_problem(load_with({text}));
    EXPECT_EQ(problem.message, "is a string where an integer belongs") << text;
    EXPECT_TRUE(has(problem.legal, "or a text with")) << problem.legal;
  }
  EXPECT_EQ(only_problem(load_with({"batch.micro=2T"})).message, "is out of range");
}

TEST(Messages, a_length_with_a_unit_is_refused_and_both_numbers_are_named) {
  const Problem problem = only_problem(load_with({"data.sequence_length=4k"}));
  EXPECT_TRUE(has(problem.message, "4000") && has(problem.message, "4096")) << problem.message;
  EXPECT_TRUE(has(only_problem(load_with({"data.sequence_length=1M"})).message, "1048576"));
}

TEST(Messages, a_config_in_other_names_is_told_once_and_with_its_values) {
  const LoadedConfig loaded = parse_text(R"({
    "micro_batch_size": 2, "global_batch_size": 64, "lr": 0.001, "train_iters": 100, "seq_length": 128,
    "data_path": "corpus", "save": "run", "num_layers": 2, "hidden_size": 64, "bf16": true,
    "adam_beta2": 0.98, "tensor_model_parallel_size": 2, "use_distributed_optimizer": true,
    "lr_decay_style": "WSD", "unheard_of_thing": 1})");
  const std::string text = format_problems(loaded.problems);
  for (const char* part :
       {"nearest: batch.micro = 2", "nearest: batch.global = 64", "nearest: optimizer.lr = 0.001",
        "nearest: run.steps = 100", "nearest: precision.compute = \"bf16\"",
        "nearest: optimizer.betas = [0.9,0.98]", "nearest: parallel.zero_stage = 1",
        "nearest: lr_schedule.kind = \"wsd\"", "nearest: data.sequence_length = 128"}) {
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
  }
  EXPECT_FALSE(has(text, "is required")) << text;
  // The list of sections helps whom nothing else helps, once.
  const auto first = text.find("model, tokenizer, ");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("model, tokenizer, ", first + 1), std::string::npos) << text;
}

TEST(Messages, what_the_contract_has_and_this_version_not_is_told_so) {
  for (const char* text : {"parallel.offload=auto", "model.model_type=gemma2"}) {
    const LoadedConfig loaded = load_with({text});
    const auto later = std::find_if(
        loaded.problems.begin(), loaded.problems.end(),
        [](const Problem& problem) { return problem.message == "not in this version"; });
    EXPECT_NE(later, loaded.problems.end()) << text << format_problems(loaded.problems);
  }
}

TEST(Messages, faults_within_prometheus_name_the_key) {
  const std::string text =
      format_problems(load_with({R"(log.prometheus={"port": 70000, "fil": "x"})"}).problems);
  for (const char* part : {"log.prometheus.port", "an integer from 0 to 65535",
                           "log.prometheus.fil", "nearest: log.prometheus.file"})
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
  const std::string nothing = format_problems(load_with({"log.prometheus={}"}).problems);
  EXPECT_TRUE(has(nothing, "port, file or both")) << nothing;
  for (const char* legal : {R"({"port": 0})", R"({"file": "a.prom"})"}) {
    const LoadedConfig loaded = load_with({std::string("log.prometheus=") + legal});
    EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
    EXPECT_EQ(resolved_json(loaded.config).find("log")->find("prometheus")->dump(),
              parse_json(legal, "").dump());
  }
}

std::string fault_of_file(const char* name, std::string_view text) {
  const TemporaryDirectory folder;
  try {
    (void)read_run_config({{folder.write(name, text)}, {}});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "accepted";
}

TEST(Messages, a_file_that_is_not_json_is_told_as_what_it_is) {
  const std::pair<const char*, const char*> texts[] = {
      {"run:\n  steps: 10\n", "YAML"},
      {"# mine\nrun:\n  steps: 10\n", "YAML"},
      {"---\nrun: 1\n", "YAML"},
      {"[run]\nsteps = 10\n", "TOML"},
      {"learning_rate = 1e-3\n", "Python"},
      {"\x1f\x8b\x08junk", "compressed"},
      {"{\"run\": {\"steps\": 10,}}", "a comma before }"},
      {"{\"a\": [1, 2, // two\n ]}", "a comma before ]"},
      {"{'run': 1}", "single quotes"},
      {"{\"run\": True}", "True is true in JSON"},
      {"{\"run\": None}", "None is null in JSON"},
      {"{\"a\": 1 \"b\": 2}", "a comma is missing"},
      {"{\"a\": 1", "ends too early"},
      {"", "holds nothing"}};
  for (const auto& [text, part] : texts) {
    EXPECT_TRUE(has(fault_of_file("c.json", text), part)) << text << "\n"
                                                          << fault_of_file("c.json", text);
  }
  EXPECT_TRUE(has(fault_of_file("c.yaml", "- a\n- b\n"), "YAML"));
  EXPECT_TRUE(has(fault_of_file("c.json", R"({"model_type":"llama"})"), "--set model="));
}

TEST(Messages, a_run_folder_stands_for_its_config) {
  const TemporaryDirectory folder;
  folder.write("config.json", smallest_config().dump());
  const LoadedConfig loaded = read_run_config({{folder.path()}, {"run.seed=9"}});
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.config.run.seed, 9);
}

}  // namespace
}  // namespace trireme
