#include "config/parse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/file.h"
#include "config/aliases.h"
#include "config/fields.h"
#include "config/unbuilt.h"
#include "support.h"

namespace trireme {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

TEST(Parse, the_smallest_config_has_every_default_of_the_contract) {
  const LoadedConfig loaded = load_with({});
  ASSERT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  const RunConfig& c = loaded.config;
  EXPECT_EQ(c.run.seed, 1234);
  EXPECT_EQ(c.data_seed(), 1234);
  EXPECT_EQ(c.run.device, DeviceChoice::kAuto);
  EXPECT_TRUE(c.run.deterministic);
  EXPECT_EQ(c.run.resume, ResumeChoice{});
  EXPECT_EQ(c.init.weights, "random");
  EXPECT_EQ(c.tokenizer, "byte");
  EXPECT_EQ(c.data.order, SampleOrderKind::kShuffled);
  EXPECT_EQ(c.optimizer.betas, (std::array<double, 2>{0.9, 0.95}));
  EXPECT_EQ(c.optimizer.eps, 1e-8);
  EXPECT_EQ(c.optimizer.weight_decay, 0.1);
  EXPECT_EQ(c.optimizer.clip_grad_norm, 1.0);
  EXPECT_EQ(c.lr_schedule.kind, LrScheduleKind::kCosine);
  EXPECT_EQ(c.checkpoint.interval_steps, 1000);
  EXPECT_EQ(c.checkpoint.keep_last, 3);
  EXPECT_EQ(c.checkpoint_directory(), "r/checkpoints");
  EXPECT_EQ(c.evaluation.batches, 20);
  EXPECT_EQ(c.log.interval_steps, 10);
  EXPECT_TRUE(c.log.tensorboard);
  EXPECT_FALSE(c.batch.global || c.batch.accumulation || c.parallel.data || c.precision.compute);
  EXPECT_EQ(c.model.layer(0).attention.kv_heads, 4);
}

TEST(Parse, what_is_required_is_named_all_at_once) {
  const auto paths = paths_of(parse_text("{}").problems);
  for (const char* path : {"run.directory", "data.train", "data.sequence_length", "optimizer.lr",
                           "run.steps", "batch.micro", "model"}) {
    EXPECT_NE(std::find(paths.begin(), paths.end(), path), paths.end()) << path;
  }
  EXPECT_EQ(paths.size(), 7U);
}

TEST(Parse, faults_of_every_kind_are_reported_at_once) {
  const LoadedConfig loaded = load_with(
      {"run.steps=3.7", "run.seed=\"3\"", "data.sequence_length=true", "optimizer.learning_rate=1",
       "run.device=gpu", "parallel.zero_stage=9", "model.hidden_size=1.5", "model.num_layer=3"});
  const auto paths = paths_of(loaded.problems);
  EXPECT_EQ(paths.size(), 8U) << format_problems(loaded.problems);
  EXPECT_THROW(throw_problems(loaded.problems), ConfigError);
  const std::string text = format_problems(loaded.problems);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8);
}

struct Wrong {
  const char* override_text;
  const char* path;
  const char* found;
  const char* legal_part;
  const char* nearest;
};

class WrongValue : public testing::TestWithParam<Wrong> {};

TEST_P(WrongValue, is_refused_with_path_found_legal_and_nearest) {
  const Problem problem = only_problem(load_with({GetParam().override_text}));
  EXPECT_EQ(problem.path, GetParam().path);
  EXPECT_EQ(problem.found, GetParam().found);
  EXPECT_TRUE(contains(problem.legal, GetParam().legal_part)) << problem.legal;
  EXPECT_EQ(problem.nearest, GetParam().nearest);
}

INSTANTIATE_TEST_SUITE_P(
    Parse, WrongValue,
    testing::Values(
        Wrong{"run.steps=3.7", "run.steps", "3.7", "an integer of at least 1", "4"},
        Wrong{"run.steps=\"3\"", "run.steps", "\"3\"", "an integer of at least 1", "3"},
        Wrong{"run.steps=true", "run.steps", "true", "an integer", ""},
        Wrong{"run.steps=1e400", "run.steps", "\"1e400\"", "an integer", ""},
        Wrong{"run.steps=1e300", "run.steps", "1e+300", "an integer", "9007199254740991"},
        Wrong{"run.steps=-4", "run.steps", "-4", "an integer", "1"},
        Wrong{"run.steps=0", "run.steps", "0", "an integer", "1"},
        Wrong{"run.steps=99999999999999999999", "run.steps", "1e+20", "an integer",
              "9007199254740991"},
        Wrong{"run.steps=[1]", "run.steps", "[1]", "an integer", ""},
        Wrong{"run.steps={\"a\": 1}", "run.steps", "{\"a\":1}", "an integer", ""},
        Wrong{"run.directory=3", "run.directory", "3", "a string", ""},
        Wrong{"run.directory=", "run.directory", "\"\"", "not empty", ""},
        Wrong{"run.deterministic=1", "run.deterministic", "1", "true or false", "true"},
        Wrong{"run.device=gpu", "run.device", "\"gpu\"", "\"cpu\"", "\"cuda\""},
        Wrong{"run.resume=-1", "run.resume", "-1", "\"never\"", ""},
        Wrong{"data.order=shufled", "data.order", "\"shufled\"", "\"megatron\"", "\"shuffled\""},
        Wrong{"data.train=[]", "data.train", "[]", "[[weight above 0, PREFIX], ...]", ""},
        Wrong{"data.train=[[0, \"a\"]]", "data.train", "[[0,\"a\"]]", "above 0", ""},
        Wrong{"data.train=[[1, \"synthetic\"]]", "data.train", "[[1,\"synthetic\"]]", "PREFIX", ""},
        Wrong{"data.train=[[1, \"a\", 2]]", "data.train", "[[1,\"a\",2]]", "PREFIX", ""},
        Wrong{"optimizer.lr=-1", "optimizer.lr", "-1", "a number of at least 0", "0.0"},
        Wrong{"optimizer.lr=fast", "optimizer.lr", "\"fast\"", "a number", ""},
        Wrong{"optimizer.betas=[0.9]", "optimizer.betas", "[0.9]", "a list of 2", ""},
        Wrong{"optimizer.betas=[0.9, 1]", "optimizer.betas", "[0.9,1]", "below 1", ""},
        Wrong{"optimizer.kind=adam", "optimizer.kind", "\"adam\"", "\"adamw\"", "\"adamw\""},
        Wrong{"precision.master=bf16", "precision.master", "\"bf16\"", "\"fp32\"", ""},
        Wrong{"parallel.zero_stage=4", "parallel.zero_stage", "4", "an integer from 0 to 3", "3"},
        Wrong{"log.trace_steps=[5, 2]", "log.trace_steps", "[5,2]", "first <= last", ""},
        Wrong{"stability.skip_steps=[[5, 2]]", "stability.skip_steps", "[[5,2]]", "first <= last",
              ""},
        Wrong{"stability.skip_steps=[3]", "stability.skip_steps", "[3]", "[first, last]", ""},
        Wrong{"stability.skip_steps=[[0, 2]]", "stability.skip_steps", "[[0,2]]", "from 1 to", ""},
        Wrong{"stability.skip_spikes=true", "stability.skip_spikes", "true", "false or", ""},
        Wrong{"stability.z_loss=-1", "stability.z_loss", "-1", "a number from 0", "0.0"},
        Wrong{"stability.noise_scale=1", "stability.noise_scale", "1", "true or false", "true"},
        Wrong{"log=3", "log", "3", "an object", ""}, Wrong{"model=3", "model", "3", "path", ""}),
    [](const auto& value) { return std::to_string(value.index); });

TEST(Parse, a_number_beyond_a_double_in_a_file_is_reported_with_its_path) {
  const TemporaryDirectory folder;
  Json json = smallest_config();
  json["run"]["steps"] = "MARK";
  json["tokenizer"] = "MARK";
  json["optimizer"]["betas"] = "x";
  std::string text = json.dump();
  for (std::size_t at; (at = text.find("\"MARK\"")) != std::string::npos;)
    text.replace(at, 6, "-1e400");
  const LoadedConfig loaded = read_run_config({{folder.write("c.json", text)}, {}});
  ASSERT_EQ(paths_of(loaded.problems),
            (std::vector<std::string>{"run.steps", "tokenizer", "optimizer.betas"}))
      << format_problems(loaded.problems);
  EXPECT_EQ(loaded.problems[0].found, "-1e400");
  EXPECT_EQ(loaded.problems[1].found, "-1e400");
}

TEST(Parse, a_whole_number_may_be_written_as_a_real) {
  EXPECT_EQ(load_with({"run.steps=1e3"}).config.run.steps, 1000);
  EXPECT_EQ(load_with({"run.steps=3.0"}).config.run.steps, 3);
}

struct Meant {
  const char* written;
  const char* nearest;
};

class UnknownKey : public testing::TestWithParam<Meant> {};

TEST_P(UnknownKey, is_answered_with_the_key_that_was_meant) {
  const Problem problem = only_problem(load_with({std::string(GetParam().written) + "=1"}));
  EXPECT_EQ(problem.path, GetParam().written);
  EXPECT_EQ(problem.nearest, GetParam().nearest);
  EXPECT_EQ(problem.message, "unknown key");
  EXPECT_FALSE(problem.legal.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Parse, UnknownKey,
    testing::Values(
        Meant{"train_micro_batch_size_per_gpu", "batch.micro"},
        Meant{"batch.train_micro_batch_size_per_gpu", "batch.micro"},
        Meant{"gradient_accumulation_steps", "batch.accumulation"},
        Meant{"learning_rate", "optimizer.lr"}, Meant{"optimizer.learning_rate", "optimizer.lr"},
        Meant{"tensor_model_parallel_size", "parallel.tensor"},
        Meant{"parallel.tensor_model_parallel_size", "parallel.tensor"},
        Meant{"parallel.tensor_parallel_degree", "parallel.tensor"},
        Meant{"zero_optimization", "parallel.zero_stage"}, Meant{"run.max_steps", "run.steps"},
        Meant{"run.step", "run.steps"}, Meant{"run.sed", "run.seed"},
        Meant{"optimiser", "optimizer"}, Meant{"data.seq_length", "data.sequence_length"},
        Meant{"batch.mirco", "batch.micro"}, Meant{"run.lr", "optimizer.lr"},
        Meant{"sequence_length", "data.sequence_length"},
        Meant{"model.num_layers", "num_hidden_layers"}, Meant{"model.n_embd", "hidden_size"},
        Meant{"model.hiden_size", "hidden_size"}, Meant{"run.qqqqqqq", ""}),
    [](const auto& value) { return std::to_string(value.index); });

TEST(Aliases, command_line_spellings_are_understood) {
  EXPECT_EQ(nearest_key("--lr"), "optimizer.lr");
  EXPECT_EQ(nearest_key("--micro-batch-size"), "batch.micro");
  EXPECT_EQ(nearest_key("--per_device_train_batch_size"), "batch.micro");
  EXPECT_EQ(nearest_key("optimizer.learning_rat"), "optimizer.lr");
  EXPECT_EQ(nearest_key("optimizer.weight_decai"), "optimizer.weight_decay");
}

TEST(Aliases, every_alias_leads_to_a_key_that_exists) {
  for (const auto& [name, path] : key_aliases()) {
    const bool section = std::find(sections().begin(), sections().end(), path) != sections().end();
    EXPECT_TRUE(section || path.starts_with("model.") || find_field(path) != nullptr)
        << name << " -> " << path;
  }
}

TEST(Parse, a_duplicate_key_is_reported_beside_other_faults) {
  const TemporaryDirectory folder;
  const auto file =
      folder.write("c.json", R"({"run": {"steps": 1, "steps": 2}, "run": {"seed": 1.5}})");
  const LoadedConfig loaded = read_run_config({{file}, {}});
  const auto paths = paths_of(loaded.problems);
  EXPECT_EQ(paths[0], "run.steps");
  EXPECT_EQ(paths[1], "run");
  EXPECT_NE(std::find(paths.begin(), paths.end(), "run.seed"), paths.end());
}

TEST(Parse, a_syntax_error_names_file_line_and_column) {
  const TemporaryDirectory folder;
  const auto file = folder.write("broken.json", "{\n  \"run\": {\"steps\": 1,}\n}");
  try {
    read_run_config({{file}, {}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_TRUE(contains(error.what(), "broken.json: line 2, column 22")) << error.what();
  }
}

TEST(Parse, a_missing_file_is_a_fault_of_the_file_system) {
  const TemporaryDirectory folder;
  EXPECT_THROW(read_run_config({{folder / "none.json"}, {}}), DataError);
  EXPECT_THROW(read_run_config({{folder.path()}, {}}), DataError);
}

TEST(Parse, a_file_that_holds_no_object_is_refused) {
  const TemporaryDirectory folder;
  EXPECT_EQ(read_run_config({{folder.write("a.json", "[1]")}, {}})
                .problems[0]
                .message.ends_with("holds no object"),
            true);
  for (const std::string& text :
       {std::string(), std::string(100000, '['), std::string("{\"a\": \"\xff\"}")}) {
    try {
      read_run_config({{folder.write("b.json", text)}, {}});
      ADD_FAILURE() << text.substr(0, 10);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
    }
  }
}

TEST(Parse, later_files_win_objects_merge_arrays_replace_and_null_removes) {
  const TemporaryDirectory folder;
  const auto a = folder.write("a.json", smallest_config().dump());
  const auto b = folder.write("b.json", R"({
    // comment
    "$schema": "x.json",
    "run": {"seed": 7, "steps": null, "tokens": 1000},
    "data": {"train": [[1, "p"], [2, "q"]]}})");
  const auto c = folder.write("c.json", R"({"data": {"train": [[3, "s"]]}, "tokenizer": null})");
  const LoadedConfig loaded = read_run_config({{a, b, c}, {"run.seed=8"}});
  ASSERT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.config.run.seed, 8);
  EXPECT_FALSE(loaded.config.run.steps);
  EXPECT_EQ(loaded.config.run.tokens, 1000);
  ASSERT_EQ(loaded.config.data.train.blend.size(), 1U);
  EXPECT_EQ(loaded.config.data.train.blend[0].second, "s");
}

TEST(Parse, an_override_is_json_where_it_parses_and_text_otherwise) {
  EXPECT_EQ(load_with({"run.directory=a=b c"}).config.run.directory, "a=b c");
  EXPECT_EQ(load_with({"run.directory=\"7\""}).config.run.directory, "7");
  EXPECT_EQ(load_with({"data.validation=[[1, \"x\"]]"})
                .config.data.validation->sets[0]
                .second.blend[0]
                .second,
            "x");
  EXPECT_EQ(load_with({"run={\"seed\": 3}"}).config.run.seed, 3);
  EXPECT_EQ(load_with({"run.seed=null"}).config.run.seed, 1234);
  EXPECT_EQ(load_with({"model.num_hidden_layers=3"}).config.model.layer_count(), 3);
  for (const char* bad : {"seed", "=3", ".run=3", "run..seed=3", "run.=3", ""}) {
    EXPECT_EQ(only_problem(load_with({bad})).path, "--set") << bad;
  }
  EXPECT_EQ(only_problem(load_with({"run={\"seed\": 3, \"seed\": 4}"})).path, "run.seed");
}

TEST(Parse, lists_of_words_and_named_sets_are_told_apart_from_what_is_none) {
  RunConfig config;
  const auto takes = [&config](std::string_view path, const char* text) {
    return find_field(path)->assign(parse_json(text, "value"), config);
  };
  ASSERT_TRUE(takes("data.validation", R"({"web": "a", "code": [[0.5, "b"], [2.5, "c"]]})"));
  ASSERT_EQ(config.data.validation->sets.size(), 2U);
  EXPECT_EQ(config.data.validation->sets[1].first, "code");
  EXPECT_EQ(config.data.validation->sets[1].second.blend[1].second, "c");
  EXPECT_EQ(find_field("data.validation")->read(config).dump(),
            parse_json(R"({"web": "a", "code": [[0.5, "b"], [2.5, "c"]]})", "value").dump());
  for (const char* bad :
       {"{}", R"({"": "a"})", R"({"a\nb": "a"})", R"({"a": {"b": "c"}})", R"({"a": 3})"})
    EXPECT_FALSE(takes("data.validation", bad)) << bad;
  ASSERT_TRUE(takes("evaluation.samples", R"(["Once", "two\nlines"])"));
  EXPECT_EQ(config.evaluation.samples[1], "two\nlines");
  EXPECT_TRUE(takes("evaluation.samples", "[]"));
  ASSERT_TRUE(takes("log.command", R"(["sh", "-c", ""])"));
  EXPECT_EQ(config.log.command->size(), 3U);
  for (const char* bad : {"[]", "\"sh\"", "[3]", "[null]", "true"})
    EXPECT_FALSE(takes("log.command", bad)) << bad;
  EXPECT_EQ(only_problem(load_with({"log.command=[]"})).message, "is empty");
}

TEST(Parse, contradictions_are_refused) {
  EXPECT_EQ(only_problem(load_with({"run.tokens=5"})).path, "run.tokens");
  EXPECT_EQ(only_problem(load_with({"run.steps=null", "run.epochs=1"})).path, "run.epochs");
  EXPECT_TRUE(load_with({"run.steps=null", "run.epochs=1", "data.train=p"}).problems.empty());
  EXPECT_EQ(only_problem(load_with({"data.train=p", "data.validation=q", "data.split=9,1"})).path,
            "data.split");
  EXPECT_EQ(only_problem(load_with({"data.split=9,1"})).path, "data.split");
  EXPECT_EQ(only_problem(load_with({"batch.micro=null"})).path, "batch.micro");
  EXPECT_EQ(only_problem(load_with({"lr_schedule.min_lr=1"})).path, "lr_schedule.min_lr");
  EXPECT_EQ(only_problem(load_with({"lr_schedule.decay_steps=1"})).path, "lr_schedule.decay_steps");
  EXPECT_EQ(only_problem(load_with({"lr_schedule.kind=wsd", "lr_schedule.decay_end_step=1"})).path,
            "lr_schedule.decay_end_step");
  EXPECT_EQ(only_problem(load_with({"lr_schedule.decay_shape=sqrt"})).path,
            "lr_schedule.decay_shape");
  EXPECT_TRUE(load_with({"lr_schedule.kind=wsd", "lr_schedule.decay_shape=sqrt",
                         "lr_schedule.decay_steps=3"})
                  .problems.empty());
}

TEST(Parse, a_split_is_up_to_three_shares) {
  for (const char* good : {"969,30,1", "1", "0.9,0.1", "99,1,0"}) {
    EXPECT_TRUE(
        load_with({"data.train=p", std::string("data.split=\"") + good + '"'}).problems.empty())
        << good;
  }
  for (const char* bad :
       {"0,1", "1,2,3,4", "1,,2", "-1,2", "a", "1;2", ",", "1,", "1e3", ".5,.5", "1.2.3"}) {
    EXPECT_EQ(
        only_problem(load_with({"data.train=p", std::string("data.split=\"") + bad + '"'})).path,
        "data.split")
        << bad;
  }
}

TEST(Parse, resume_takes_a_word_a_step_or_a_directory) {
  EXPECT_EQ(load_with({"run.resume=must"}).config.run.resume.kind, ResumeKind::kMust);
  EXPECT_EQ(load_with({"run.resume=12"}).config.run.resume,
            (ResumeChoice{ResumeKind::kStep, 12, ""}));
  EXPECT_EQ(load_with({"run.resume=old/run"}).config.run.resume,
            (ResumeChoice{ResumeKind::kDirectory, 0, "old/run"}));
}

LoadedConfig load_of_experts(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(),
                   R"(model={"model_type":"olmoe","num_hidden_layers":2,"num_experts":16})");
  return load_with(overrides);
}

TEST(Experts, defaults_are_those_of_the_model) {
  const RunConfig config = load_of_experts({}).config;
  EXPECT_EQ(config.moe, RunConfig::Moe());
  EXPECT_EQ(config.balance(), MoeBalance::kNone);
  EXPECT_EQ(config.aux_coefficient(), 0.01);
  const RunConfig aux = load_of_experts({"model.output_router_logits=true"}).config;
  EXPECT_EQ(aux.balance(), MoeBalance::kAux);
  EXPECT_EQ(
      load_of_experts({"moe.balance=none", "model.output_router_logits=true"}).config.balance(),
      MoeBalance::kNone);
  EXPECT_EQ(load_with({}).config.balance(), MoeBalance::kNone);
  RunConfig biased = config;
  for (LayerConfig& layer : biased.model.layers) layer.experts->has_bias = true;
  EXPECT_EQ(biased.balance(), MoeBalance::kBias);
}

TEST(Experts, their_keys_are_read_and_written_out) {
  const LoadedConfig loaded = load_of_experts(
      {"moe.balance=aux", "moe.aux_coefficient=0.5", "moe.scope=global", "moe.z_loss=1e-3",
       "moe.dispatch=allgather", "parallel.expert=4", "parallel.expert_tensor=2"});
  ASSERT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  const RunConfig& config = loaded.config;
  EXPECT_EQ(config.moe.balance, MoeBalance::kAux);
  EXPECT_EQ(config.aux_coefficient(), 0.5);
  EXPECT_EQ(config.moe.scope, BalanceScope::kGlobal);
  EXPECT_EQ(config.moe.z_loss, 1e-3);
  EXPECT_EQ(config.moe.dispatch, DispatchMethod::kAllGather);
  EXPECT_EQ(config.parallel.expert, 4);
  EXPECT_EQ(config.parallel.expert_tensor, 2);
  EXPECT_EQ(parse_run_config(resolved_json(config)).config, config);
  EXPECT_EQ(resolved_json(config).find("moe")->dump(),
            R"({"balance":"aux","aux_coefficient":0.5,"scope":"global","z_loss":0.001,)"
            R"("bias_rate":0.001,"dispatch":"allgather"})");
  EXPECT_EQ(resolved_json(load_with({}).config).find("moe")->find("aux_coefficient"), nullptr);
}

TEST(Experts, what_a_model_without_them_cannot_mean_is_refused) {
  for (const char* text : {"moe.balance=aux", "moe.aux_coefficient=0.01", "moe.scope=global",
                           "moe.z_loss=1e-4", "moe.bias_rate=0", "moe.dispatch=allgather",
                           "parallel.expert=2", "parallel.expert_tensor=2"}) {
    const Problem problem = only_problem(load_with({text}));
    EXPECT_EQ(problem.path, std::string(text).substr(0, std::string(text).find('=')));
    EXPECT_EQ(problem.message, "is of experts, and this llama has none");
  }
  // As its own config.json says them.
  EXPECT_TRUE(
      load_with({"moe.balance=auto", "moe.bias_rate=1e-3", "parallel.expert=1"}).problems.empty());
}

TEST(Experts, a_balance_takes_what_it_has_alone) {
  const Problem bias = only_problem(load_of_experts({"moe.balance=bias", "moe.bias_rate=0.1"}));
  EXPECT_EQ(bias.path, "moe.balance");
  EXPECT_EQ(bias.message,
            "moves a bias of the router's choice, which the model_type olmoe does not have");
  for (const char* text : {"moe.aux_coefficient=0.01", "moe.scope=global", "moe.bias_rate=0.1"}) {
    const std::string path = std::string(text).substr(0, std::string(text).find('='));
    EXPECT_EQ(only_problem(load_of_experts({text})).path, path);
    EXPECT_EQ(only_problem(load_of_experts({text, "moe.balance=none"})).path, path);
  }
  EXPECT_TRUE(
      load_of_experts({"model.output_router_logits=true", "moe.scope=global"}).problems.empty());
  EXPECT_EQ(only_problem(load_of_experts({"moe.balance=aux", "moe.bias_rate=0.1"})).path,
            "moe.bias_rate");
}

TEST(Parse, fp8_says_what_it_is_of_as_far_as_it_is_said) {
  EXPECT_EQ(load_with({"precision.compute=fp8"}).config.precision.fp8, std::nullopt);
  EXPECT_EQ(load_with({"precision.compute=fp8", "precision.fp8={}"}).config.precision.fp8,
            Fp8Precision());
  const LoadedConfig loaded =
      load_with({"precision.compute=fp8",
                 R"(precision.fp8={"recipe":"block","gradients":"e4m3","bf16_layers":[1,2]})"});
  EXPECT_TRUE(loaded.problems.empty());
  EXPECT_EQ(loaded.config.precision.fp8, (Fp8Precision{Fp8Recipe::kBlock, DType::kF8E4M3, {1, 2}}));
  for (const char* bad : {R"({"recipe":"row"})", R"({"gradients":"e4m2"})", R"({"bf16_layers":1})",
                          R"({"bf16_layers":[1]})", R"({"bf16_layers":[-1,0]})",
                          R"({"granularity":"block"})", R"("block")"}) {
    const Problem problem =
        only_problem(load_with({"precision.compute=fp8", std::string("precision.fp8=") + bad}));
    EXPECT_TRUE(problem.path.starts_with("precision.fp8")) << bad << " " << problem.path;
  }
}

TEST(Parse, spikes_are_skipped_by_a_rule_or_not_at_all) {
  EXPECT_EQ(load_with({"stability.skip_spikes=false"}).config.stability.skip_spikes, std::nullopt);
  EXPECT_EQ(load_with({"stability.skip_spikes={}"}).config.stability.skip_spikes,
            (SpikeRule{6, 128}));
  const LoadedConfig loaded =
      load_with({"stability.skip_spikes=false", "stability.skip_spikes.sigma=4.5",
                 "stability.skip_steps=[[7, 7], [20, 30]]"});
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.config.stability.skip_spikes, (SpikeRule{4.5, 128}));
  for (const std::int64_t step : {7, 20, 25, 30})
    EXPECT_TRUE(contains_step(loaded.config.stability.skip_steps, step)) << step;
  for (const std::int64_t step : {1, 6, 8, 19, 31})
    EXPECT_FALSE(contains_step(loaded.config.stability.skip_steps, step)) << step;
  for (const char* bad : {R"({"sigma":0})", R"({"window":1})", R"({"window":"128"})",
                          R"({"sigmas":6})", R"({"window":10001})", R"(6)"}) {
    const Problem problem = only_problem(load_with({std::string("stability.skip_spikes=") + bad}));
    EXPECT_TRUE(problem.path.starts_with("stability.skip_spikes")) << bad << " " << problem.path;
  }
}

TEST(Unbuilt, an_inactive_value_may_be_written) {
  for (const char* text : {"parallel.tensor=1", "parallel.zero_stage=0", "precision.compute=bf16",
                           "parallel.sequence_parallel=true", "parallel.pipeline_schedule=1f1b",
                           "checkpoint.async=true", "parallel.data=1"}) {
    EXPECT_TRUE(load_with({text}).problems.empty()) << text;
  }
}

TEST(Unbuilt, every_default_works) {
  const LoadedConfig loaded = load_with({});
  EXPECT_TRUE(loaded.notes.empty());
  EXPECT_TRUE(loaded.config.checkpoint.async);
}

TEST(Parse, staging_memory_is_chosen_or_enough_for_two_shards) {
  EXPECT_TRUE(load_with({"checkpoint.staging_bytes=0"}).problems.empty());
  EXPECT_TRUE(load_with({"checkpoint.staging_bytes=1048576"}).problems.empty());
  const Problem problem = only_problem(load_with({"checkpoint.staging_bytes=1048575"}));
  EXPECT_EQ(problem.path, "checkpoint.staging_bytes");
  EXPECT_EQ(problem.legal, "0, or at least 1048576");
}

TEST(Unbuilt, the_device_is_a_matter_of_the_machine) {
  EXPECT_TRUE(load_with({"run.device=cuda"}).problems.empty());
}

void expect_round_trip(const LoadedConfig& loaded, std::string_view name) {
  ASSERT_TRUE(loaded.problems.empty()) << name << ": " << format_problems(loaded.problems);
  const Json resolved = resolved_json(loaded.config);
  const LoadedConfig again = parse_run_config(parse_json(resolved.dump(2), "resolved"));
  ASSERT_TRUE(again.problems.empty()) << name << ": " << format_problems(again.problems);
  EXPECT_EQ(again.config, loaded.config) << name;
  EXPECT_EQ(resolved_json(again.config), resolved) << name;
}

TEST(Resolved, training_it_again_gives_itself_for_every_example_config) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(TRIREME_CONFIGS)) {
    const std::filesystem::path& path = entry.path();
    const bool cluster = path.parent_path().filename() == "clusters";
    if (path.extension() != ".json" || path.filename() == "config.schema.json" || cluster) continue;
    expect_round_trip(read_run_config({{path}, {}}), path.string());
    ++count;
  }
  EXPECT_GE(count, 60);
}

TEST(Resolved, every_field_with_a_constant_default_is_written_out) {
  const Json resolved = resolved_json(load_with({}).config);
  for (const Field& field : fields()) {
    if (!field.row.default_text.empty()) continue;
    const Json* section = field.section().empty() ? &resolved : resolved.find(field.section());
    ASSERT_NE(section, nullptr) << field.path;
    EXPECT_NE(section->find(field.key()), nullptr) << field.path;
  }
  EXPECT_NE(resolved.find("model")->find("rope_theta"), nullptr);
}

/// A legal value of the field, drawn.
Json random_value(const Field& field, std::mt19937& random) {
  const auto real = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  if (const Json* words = field.schema.find("enum"))
    return words->as_array()[random() % words->as_array().size()];
  if (field.path == "data.split") return "98,2";
  if (field.path == "data.train" || field.path == "data.validation") {
    return Json::Array{Json::Array{real() + 0.1, "a"}, Json::Array{3, "b"}};
  }
  if (field.path == "optimizer.betas") return Json::Array{real(), real()};
  if (field.path == "batch.global" && random() % 2 == 0)
    return Json::Array{Json::Array{0, 4}, Json::Array{"1.5k", 2}};
  if (field.path == "log.trace_steps") return Json::Array{3, 9};
  if (field.path == "stability.skip_steps") return Json::Array{Json::Array{3, 9}};
  if (field.path == "stability.skip_spikes") return Json::Object{{"window", 64}};
  if (field.path == "run.resume") return Json::Array{"auto", 4, "dir"}.at(random() % 3);
  const std::string type = field.json_type();
  if (type.empty() || type == "array") return {};
  if (type == "boolean") return random() % 2 == 0;
  if (type == "integer") {
    const auto value = static_cast<std::int64_t>(1 + random() % 1000);
    if (field.row.plain || random() % 4 != 0) return value;
    return fmt::format("{}{}", value, field.row.unit == "bytes" ? "MiB" : "k");
  }
  if (type == "number") return real();
  return "text/" + std::to_string(random() % 10);
}

TEST(Resolved, training_it_again_gives_itself_for_random_configs) {
  std::mt19937 random(7);
  int valid = 0;
  for (int i = 0; i < 600; ++i) {
    Json json = smallest_config();
    for (int k = 0; k < 6; ++k) {
      const Field& field = fields()[random() % fields().size()];
      const Json value = random_value(field, random);
      Json& place =
          field.section().empty() ? json[field.key()] : json[field.section()][field.key()];
      if (!value.is_null())
        place = value;
      else if (place.is_null() && !field.section().empty())
        json[field.section()].erase(field.key());
    }
    const LoadedConfig loaded = parse_run_config(json);
    if (!loaded.problems.empty()) continue;  // a contradiction or a feature that is not built
    expect_round_trip(loaded, json.dump());
    ++valid;
  }
  EXPECT_GT(valid, 50);
}

TEST(Parse, hostile_values_of_every_field_are_problems_and_never_exceptions) {
  const char* hostile[] = {"null",
                           "true",
                           "-1",
                           "3.7",
                           "1e308",
                           "\"\"",
                           "\"x\"",
                           "[]",
                           "[[]]",
                           "{}",
                           "[null]",
                           "{\"a\":{\"b\":[]}}",
                           "9223372036854775807",
                           "\"\\u0000\"",
                           "[[1,2],[3]]"};
  for (const Field& field : fields()) {
    for (const char* text : hostile) {
      Json json = smallest_config();
      (field.section().empty() ? json[field.key()] : json[field.section()][field.key()]) =
          parse_json(text, "hostile");
      const LoadedConfig loaded = parse_run_config(json);
      for (const Problem& problem : loaded.problems) {
        EXPECT_FALSE(problem.path.empty() || problem.legal.empty() || problem.message.empty())
            << field.path << text;
        EXPECT_EQ(format_problem(problem).find('\n'), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace trireme
