#include "config/dropout.h"

#include "config/support.h"

namespace trireme {
namespace {

const std::string kGpt2 = R"(model={"model_type":"gpt2","n_embd":64,"n_head":4,"n_layer":2)";

TEST(DropoutConfig, is_told_in_one_line_where_it_is_not_applied) {
  const LoadedConfig loaded =
      load_with({kGpt2 + R"(,"attn_pdrop":0.1,"resid_pdrop":0.2,"embd_pdrop":0.0})"});
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.notes, std::vector<std::string>{
                              "model: dropout is not applied (attn_pdrop 0.1, resid_pdrop 0.2); "
                              "model_backend.dropout applies it"});
  EXPECT_FALSE(loaded.config.model.has_dropout());
  EXPECT_FALSE(loaded.config.model.numbers_tokens());
  EXPECT_TRUE(load_with({kGpt2 + "}"}).notes.empty()) << "what no file asks for is not told";
}

TEST(DropoutConfig, gives_each_layer_its_rates_and_the_run_a_choice) {
  const auto load = [](const std::string& keys, const char* seed = "run.seed=7") {
    const LoadedConfig loaded = load_with({keys, "model_backend.dropout=true", seed});
    EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
    EXPECT_TRUE(loaded.notes.empty());
    return loaded.config.model;
  };
  const ModelConfig gpt2 = load(kGpt2 + R"(,"attn_pdrop":0.3,"resid_pdrop":0.2,"embd_pdrop":0.0})");
  EXPECT_EQ(gpt2.layer(1).attention_dropout, 0.3);
  EXPECT_EQ(gpt2.layer(1).residual_dropout, 0.2);
  EXPECT_EQ(gpt2.embedding_dropout, 0);
  EXPECT_TRUE(gpt2.numbers_tokens());
  const ModelConfig defaults = load(kGpt2 + R"(,"attn_pdrop":null})", "run.seed=8");
  EXPECT_EQ(defaults.layer(0).attention_dropout, 0.1) << "transformers'";
  EXPECT_EQ(defaults.layer(0).residual_dropout, 0.1);
  EXPECT_EQ(defaults.embedding_dropout, 0.1);
  EXPECT_NE(defaults.dropout_key, gpt2.dropout_key) << "another seed, another choice";

  const ModelConfig llama = load("model.attention_dropout=0.25");
  EXPECT_EQ(llama.layer(0).attention_dropout, 0.25);
  EXPECT_EQ(llama.layer(0).residual_dropout, 0);
  EXPECT_FALSE(load("model.rms_norm_eps=1e-5").has_dropout()) << "theirs is 0";
}

TEST(DropoutConfig, survives_its_own_config_json) {
  const LoadedConfig loaded =
      load_with({kGpt2 + R"(,"attn_pdrop":0.3})", "model_backend.dropout=true"});
  const Json json = resolved_json(loaded.config);
  EXPECT_EQ(*json.find("model_backend")->find("dropout"), Json(true));
  const LoadedConfig again = parse_run_config(json);
  EXPECT_EQ(again.config.model, loaded.config.model);
}

TEST(DropoutConfig, noise_of_a_router_is_refused) {
  const LoadedConfig loaded =
      load_with({R"(model={"model_type":"mixtral","hidden_size":64,"num_attention_heads":4,)"
                 R"("num_hidden_layers":2,"intermediate_size":64,"router_jitter_noise":0.01})",
                 "model_backend.dropout=true"});
  EXPECT_EQ(only_problem(loaded).path, "model.router_jitter_noise");
}

}  // namespace
}  // namespace trireme
