#include "checkpoint/adapter_config.h"

#include <gtest/gtest.h>

#include "adapter_fixture.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

constexpr const char* kPlain =
    R"({"peft_type":"LORA","r":4,"lora_alpha":8.0,"target_modules":["q_proj","mlp.up_proj"],)"
    R"("bias":"none","rank_pattern":{},"modules_to_save":null,"loftq_config":{},"of_2030":[1])";

AdapterFacts read(const std::string& members) {
  const TemporaryDirectory folder;
  folder.write("adapter_config.json", kPlain + members + "}");
  return read_adapter_config(folder.path());
}

/// What is said of a config with these members; "" where it is read.
std::string fault(const std::string& text) {
  const TemporaryDirectory folder;
  folder.write("adapter_config.json", text);
  try {
    (void)read_adapter_config(folder.path());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    return error.what();
  }
  return "";
}

TEST(AdapterConfig, what_peft_writes_is_read) {
  const AdapterFacts facts =
      read(R"(,"use_rslora":true,"use_dora":true,"base_model_name_or_path":"a/b")");
  EXPECT_EQ(facts.lora.rank, 4);
  EXPECT_EQ(facts.lora.scale(), 4);  // 8 / sqrt(4)
  EXPECT_TRUE(facts.lora.dora);
  EXPECT_EQ(facts.lora.targets, (std::vector<std::string>{"q_proj", "mlp.up_proj"}));
  EXPECT_EQ(facts.base, "a/b");
  const AdapterFacts all = [] {
    const TemporaryDirectory folder;
    folder.write("adapter_config.json",
                 R"({"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":"all-linear"})");
    return read_adapter_config(folder.path());
  }();
  EXPECT_TRUE(all.lora.targets.empty());
  EXPECT_EQ(all.lora.scale(), 2);
}

TEST(AdapterConfig, what_would_mean_other_adapters_is_refused_by_its_key) {
  for (const char* member : {R"("rank_pattern":{"q_proj":8})",
                             R"("alpha_pattern":{"q_proj":8})",
                             R"("layers_to_transform":[0])",
                             R"("layers_to_transform":0)",
                             R"("layer_replication":[[0,1]])",
                             R"("modules_to_save":["lm_head"])",
                             R"("bias":"all")",
                             R"("trainable_token_indices":[1])",
                             R"("exclude_modules":"k_proj")",
                             R"("target_parameters":["w"])",
                             R"("lora_bias":true)",
                             R"("loftq_config":{"bits":4})",
                             R"("init_lora_weights":"pissa_niter_4")",
                             R"("peft_type":"IA3")",
                             R"("r":0)",
                             R"("r":"4")",
                             R"("lora_alpha":0)",
                             R"("lora_alpha":"8")",
                             R"("use_dora":1)",
                             R"("target_modules":".*q_proj")",
                             R"("target_modules":[])",
                             R"("target_modules":[1])"}) {
    const std::string text = member;
    const std::string key = text.substr(1, text.find('"', 1) - 1);
    std::string members;
    for (const char* other :
         {R"("peft_type":"LORA")", R"("r":4)", R"("lora_alpha":8)", R"("target_modules":["a"])"}) {
      if (!std::string_view(other).starts_with("\"" + key + "\""))
        members += std::string(other) + ",";
    }
    const std::string said = fault("{" + members + text + "}");
    EXPECT_NE(said.find("adapter_config.json: " + key + ": found "), std::string::npos)
        << member << ": " << said;
  }
  EXPECT_NE(fault("[]"), "");
  EXPECT_NE(fault("{"), "");
}

TEST(AdapterConfig, products_of_experts_are_parameters) {
  const auto targets = [](const std::string& members) {
    const TemporaryDirectory folder;
    folder.write("adapter_config.json",
                 R"({"peft_type":"LORA","r":4,"lora_alpha":8,)" + members + "}");
    return read_adapter_config(folder.path()).lora.targets;
  };
  const std::string parameters = R"("target_parameters":["gate_up_proj","mlp.experts.down_proj"])";
  const std::vector<std::string> experts = {"experts.gate_up_proj", "mlp.experts.down_proj"};
  EXPECT_EQ(targets(parameters), experts);
  EXPECT_EQ(targets(R"("target_modules":[],)" + parameters), experts);
  EXPECT_EQ(targets(R"("target_modules":["q_proj"],)" + parameters).front(), "q_proj");
  for (const std::string& members :
       {R"("target_modules":"all-linear",)" + parameters,
        std::string(R"("target_modules":["experts.down_proj"])"),
        std::string(R"("target_modules":["q_proj"],"target_parameters":["mlp.gate.weight"])")})
    EXPECT_THROW((void)targets(members), DataError) << members;

  const AdapterGolden golden("mixtral_experts");
  const TemporaryDirectory folder;
  const Json json = adapter_config_json(golden.facts, golden.model);
  folder.write("adapter_config.json", json.dump());
  EXPECT_EQ(json.find("target_modules")->dump(), R"(["self_attn.q_proj"])");
  EXPECT_EQ(json.find("target_parameters")->dump(),
            R"(["experts.gate_up_proj","experts.down_proj"])");
  EXPECT_EQ(adapter_difference(read_adapter_config(folder.path()).lora, golden.facts.lora,
                               golden.model, "peft's"),
            "");
  RunConfig::Lora dora = golden.facts.lora;
  dora.dora = true;
  EXPECT_THROW((void)with_adapters(golden.model, dora, "somewhere"), DataError);
}

TEST(AdapterConfig, what_is_written_means_the_same_when_read) {
  for (const std::string& name : adapter_cases()) {
    const AdapterGolden golden(name);
    const TemporaryDirectory folder;
    const Json json = adapter_config_json(golden.facts, golden.model);
    folder.write("adapter_config.json", json.dump());
    const AdapterFacts again = read_adapter_config(folder.path());
    EXPECT_EQ(adapter_difference(again.lora, golden.facts.lora, golden.model, "peft's"), "");
    EXPECT_EQ(again.base, golden.facts.base);
    EXPECT_EQ(json.find("fan_in_fan_out")->as_bool(), name.starts_with("gpt2"));
  }
}

TEST(AdapterConfig, a_difference_is_named_where_the_same_products_are_not) {
  const AdapterGolden golden("llama_lora");
  const RunConfig::Lora& peft = golden.facts.lora;  // names every product in full
  const auto difference = [&](const auto& change) {
    RunConfig::Lora lora = peft;
    change(lora);
    return adapter_difference(lora, peft, golden.model, "the other");
  };
  EXPECT_EQ(difference([](auto& lora) { lora.targets.clear(); }), "");
  EXPECT_EQ(difference([](auto& lora) { lora.rank = 5; }), "rank 5, the other has 3");
  EXPECT_EQ(difference([](auto& lora) { lora.dora = true; }), "dora true, the other has false");
  EXPECT_NE(difference([](auto& lora) { lora.alpha = 9; }).find("scale 3 (alpha 9)"),
            std::string::npos);
  EXPECT_EQ(difference([](auto& lora) { lora.targets = {"q_proj"}; }),
            "targets: no adapter beside model.layers.0.mlp.down_proj, the other has one");
}

// peft would take the experts' products for those of the shared one.
TEST(AdapterConfig, targets_beside_experts_name_their_branch) {
  const ModelConfig model = load_model_config(golden_path("model/qwen2_moe") / "config.json");
  AdapterFacts facts;
  facts.lora.rank = 2;
  facts.lora.targets = {"up_proj", "q_proj"};
  const std::string targets = adapter_config_json(facts, model).find("target_modules")->dump();
  EXPECT_EQ(targets, R"(["mlp.shared_expert.up_proj","self_attn.q_proj"])");
}

TEST(AdapterConfig, a_target_that_the_model_has_not_is_a_fault_of_the_file) {
  const AdapterGolden golden("llama_lora");
  RunConfig::Lora lora = golden.facts.lora;
  ModelConfig tied = golden.model;
  tied.tied_embeddings = true;
  for (const auto& [model, target, why] :
       {std::tuple{golden.model, "embed_tokens", "is no linear product of this llama"},
        std::tuple{tied, "lm_head", "this head is the embedding"}}) {
    lora.targets = {"q_proj", target};
    try {
      (void)with_adapters(model, lora, "somewhere");
      ADD_FAILURE();
    } catch (const DataError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(fmt::format("somewhere: the target {}: {}", target, why)),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("self_attn.q_proj"), std::string::npos) << text;
    }
  }
  lora.targets = {"q_proj", "lm_head"};
  EXPECT_EQ(with_adapters(golden.model, lora, "somewhere").head_adapter_rank, *lora.rank);
}

}  // namespace
}  // namespace trireme
