#include "config/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/file.h"
#include "config/fields.h"
#include "config/parse.h"
#include "support/golden.h"

namespace trireme {
namespace {

const std::filesystem::path kFolder =
    std::filesystem::path(TRIREME_GOLDEN).parent_path() / "config/convert";

Conversion converted(std::string_view text) {
  return convert_config(text, "arguments", std::nullopt);
}

const Json& at(const Json& config, std::string_view path) {
  static const Json kNothing;
  const Json* json = &config;
  while (json != nullptr && !path.empty()) {
    const auto dot = std::min(path.find('.'), path.size());
    json = json->find(path.substr(0, dot));
    path.remove_prefix(std::min(path.size(), dot + 1));
  }
  return json == nullptr ? kNothing : *json;
}

bool says(const std::vector<std::string>& lines, std::string_view part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

std::string fault_of(std::string_view text, std::optional<ForeignSystem> system = std::nullopt) {
  try {
    convert_config(text, "arguments", system);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

std::string report(const Conversion& result) {
  std::string text;
  const auto add = [&](const char* heading, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) text += fmt::format("{}: {}\n", heading, line);
  };
  add("remark", result.remarks);
  add("nothing", result.nothing);
  add("unknown", result.unknown);
  add("unset", result.unset);
  add("missing", result.missing);
  return text;
}

/// What a person would add to the keys that are missing.
Json completed(Json config) {
  const auto add = [&](const char* section, const char* key, Json value) {
    if (at(config, std::string(section) + "." + key).is_null())
      config[section][key] = std::move(value);
  };
  add("run", "directory", "run");
  add("run", "steps", 10);
  add("data", "train", "prefix");
  add("data", "sequence_length", 64);
  add("optimizer", "lr", 1e-3);
  if (at(config, "batch.global").is_null()) add("batch", "micro", 1);
  if (at(config, "model").is_null()) config["model"]["model_type"] = "llama";
  return config;
}

class ConvertFile : public testing::TestWithParam<const char*> {};

// TRIREME_WRITE_CONVERSIONS=1 writes what is expected anew.
TEST_P(ConvertFile, gives_the_config_and_the_remarks_that_are_committed) {
  const std::string name = GetParam();
  const std::filesystem::path stem = kFolder / std::filesystem::path(name).stem();
  const Conversion result = convert_config(read_file(kFolder / name), name, std::nullopt);
  const std::string config = result.config.dump(2) + "\n", told = report(result);
  if (std::getenv("TRIREME_WRITE_CONVERSIONS") != nullptr) {
    write_file_atomically(stem.string() + ".expected.json", config);
    write_file_atomically(stem.string() + ".expected.report", told);
  }
  EXPECT_EQ(read_file(stem.string() + ".expected.json"), config);
  EXPECT_EQ(read_file(stem.string() + ".expected.report"), told);
  const LoadedConfig loaded = parse_run_config(completed(result.config));
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(result.missing.empty(), parse_run_config(result.config).problems.empty());
}

INSTANTIATE_TEST_SUITE_P(all, ConvertFile,
                         testing::Values("megatron_sc21_39b.sh", "megatron_core_70b.sh",
                                         "megatron_mlperf_405b.txt", "megatron_nanotron_8b.txt",
                                         "megatron_unknown_model.txt", "deepspeed_zero3_auto.json",
                                         "deepspeed_pretraining.json"),
                         [](const auto& one) {
                           return std::filesystem::path(one.param).stem().string();
                         });

TEST(Convert, a_key_keeps_its_value_and_its_type) {
  const Conversion result = converted(
      "python pretrain_gpt.py --lr=3e-4 --train_iters 500 --micro-batch-size 4 --seed 7 "
      "--clip-grad 0 "
      "--eod-mask-loss --adam-eps 1e-5");
  EXPECT_EQ(at(result.config, "optimizer.lr"), Json(3e-4));
  EXPECT_EQ(at(result.config, "run.steps"), Json(500));
  EXPECT_EQ(at(result.config, "run.seed"), Json(7));
  EXPECT_EQ(at(result.config, "optimizer.clip_grad_norm"), Json(0));
  EXPECT_EQ(at(result.config, "optimizer.eps"), Json(1e-5));
  EXPECT_EQ(at(result.config, "data.mask_eod_loss"), Json(true));
}

TEST(Convert, a_default_that_differs_from_ours_is_written_out) {
  const Json config =
      converted("--num-layers 2 --train-iters 5 --tensor-model-parallel-size 2").config;
  EXPECT_EQ(at(config, "optimizer.betas"), Json(Json::Array{Json(0.9), Json(0.999)}));
  EXPECT_EQ(at(config, "optimizer.weight_decay"), Json(0.01));
  EXPECT_EQ(at(config, "lr_schedule.kind"), Json("linear"));
  EXPECT_EQ(at(config, "precision.compute"), Json("fp32"));
  EXPECT_EQ(at(config, "parallel.sequence_parallel"), Json(false));
  EXPECT_EQ(at(config, "log.interval_steps"), Json(100));
  const Json deepspeed =
      converted(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}})").config;
  EXPECT_EQ(at(deepspeed, "optimizer.betas"), Json(Json::Array{Json(0.9), Json(0.999)}));
  EXPECT_EQ(at(deepspeed, "optimizer.weight_decay"), Json(0.0));
  EXPECT_EQ(at(deepspeed, "optimizer.clip_grad_norm"), Json(0.0));
  EXPECT_EQ(at(deepspeed, "lr_schedule.kind"), Json("constant"));
}

const std::string kSizes =
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 ";
const std::string kLlama =
    kSizes + "--swiglu --normalization RMSNorm --position-embedding-type rope ";

TEST(Convert, traits_choose_the_family) {
  const auto model = [](const std::string& text) { return at(converted(text).config, "model"); };
  EXPECT_EQ(at(model(kSizes), "model_type"), Json("gpt2"));
  EXPECT_EQ(at(model(kSizes), "n_embd"), Json(64));
  EXPECT_EQ(at(model(kLlama + "--disable-bias-linear"), "model_type"), Json("llama"));
  EXPECT_EQ(at(model(kLlama), "attention_bias"), Json(true));
  EXPECT_EQ(at(model(kLlama), "mlp_bias"), Json(true));
  EXPECT_EQ(at(model(kLlama + "--disable-bias-linear --add-qkv-bias"), "model_type"),
            Json("qwen2"));
  EXPECT_EQ(
      at(model(kLlama + "--disable-bias-linear --qk-layernorm --kv-channels 32"), "model_type"),
      Json("qwen3"));
  EXPECT_EQ(at(model(kLlama + "--disable-bias-linear --qk-layernorm --kv-channels 32"), "head_dim"),
            Json(32));
  EXPECT_EQ(
      at(model(kLlama + "--group-query-attention --num-query-groups 2"), "num_key_value_heads"),
      Json(2));
  EXPECT_EQ(at(model(kLlama + "--num-query-groups 2"), "num_key_value_heads"), Json(4));
  EXPECT_EQ(at(model(kLlama), "intermediate_size"), Json(128));  // 64 x 8/3 in 64s
  EXPECT_EQ(at(model(kSizes), "n_inner"), Json(256));
  EXPECT_EQ(at(model(kLlama + "--apply-layernorm-1p"), "model_type"), Json("llama"));
  EXPECT_EQ(at(model(kLlama), "tie_word_embeddings"), Json(true));
  EXPECT_EQ(at(model(kLlama + "--untie-embeddings-and-output-weights"), "tie_word_embeddings"),
            Json(false));
}

TEST(Convert, a_model_of_no_family_is_left_out_with_its_reason) {
  for (const char* trait : {"--squared-relu", "--rotary-percent 0.5", "--num-experts 8",
                            "--num-experts 8 --disable-bias-linear --moe-router-pre-softmax",
                            "--num-experts 8 --disable-bias-linear --moe-layer-freq 2",
                            "--num-experts 8 --disable-bias-linear --add-qkv-bias",
                            "--num-experts 8 --disable-bias-linear --moe-router-num-groups 2",
                            "--num-experts 8 --disable-bias-linear --moe-router-score-function "
                            "sigmoid --moe-layer-freq 2",
                            "--num-experts 8 --disable-bias-linear --moe-router-score-function "
                            "sigmoid --moe-router-num-groups 4 --moe-router-topk 3",
                            "--num-experts 8 --disable-bias-linear --moe-router-score-function "
                            "sigmoid --multi-latent-attention",
                            "--num-experts 8 --disable-bias-linear --qk-layernorm "
                            "--multi-latent-attention",
                            "--num-experts 8 --disable-bias-linear --qk-layernorm "
                            "--moe-layer-freq '([0]*1+[1]*2)'",
                            "--num-experts 8 --disable-bias-linear --qk-layernorm "
                            "--moe-layer-freq '[0]*1-[1]*3'",
                            "--num-experts 8 --disable-bias-linear --add-qkv-bias "
                            "--moe-shared-expert-intermediate-size 64",
                            "--qk-layernorm", "--normalization LayerNorm",
                            "--position-embedding-type none", "--multi-latent-attention"}) {
    const Conversion result = converted(kLlama + trait);
    EXPECT_TRUE(at(result.config, "model").is_null()) << trait;
    EXPECT_TRUE(says(result.missing, "model: no family of this version has")) << trait;
  }
  EXPECT_TRUE(says(converted("--num-layers 4 --lr 1").missing,
                   "model: --hidden-size, --num-attention-heads not known"));
}

TEST(Convert, experts_choose_their_family) {
  const std::string experts =
      kLlama + "--disable-bias-linear --num-experts 8 --ffn-hidden-size 96 ";
  const auto model = [&](const std::string& more) {
    return at(converted(experts + more).config, "model");
  };
  const Json mixtral = model("--moe-router-topk 3 --moe-ffn-hidden-size 32");
  EXPECT_EQ(at(mixtral, "model_type"), Json("mixtral"));
  EXPECT_EQ(at(mixtral, "num_local_experts"), Json(8));
  EXPECT_EQ(at(mixtral, "num_experts_per_tok"), Json(3));
  EXPECT_EQ(at(mixtral, "intermediate_size"), Json(32));
  EXPECT_EQ(at(model(""), "num_experts_per_tok"), Json(2));
  EXPECT_EQ(at(model(""), "intermediate_size"), Json(96));
  const Json qwen3 = model("--qk-layernorm --moe-ffn-hidden-size 32 --moe-layer-freq 3");
  EXPECT_EQ(at(qwen3, "model_type"), Json("qwen3_moe"));
  EXPECT_EQ(at(qwen3, "num_experts"), Json(8));
  EXPECT_EQ(at(qwen3, "moe_intermediate_size"), Json(32));
  EXPECT_EQ(at(qwen3, "intermediate_size"), Json(96));
  EXPECT_EQ(at(qwen3, "norm_topk_prob"), Json(true));
  EXPECT_EQ(at(qwen3, "mlp_only_layers").dump(), "[1,2]");
  EXPECT_EQ(at(model("--qk-layernorm --moe-router-pre-softmax"), "norm_topk_prob"), Json(false));
  const Json qwen2 =
      model("--add-qkv-bias --moe-shared-expert-intermediate-size 40 --moe-shared-expert-gate");
  EXPECT_EQ(at(qwen2, "model_type"), Json("qwen2_moe"));
  EXPECT_EQ(at(qwen2, "shared_expert_intermediate_size"), Json(40));
}

TEST(Convert, experts_scored_by_sigmoid_choose_their_family) {
  const std::string experts =
      kLlama +
      "--disable-bias-linear --num-experts 8 --moe-router-score-function sigmoid "
      "--moe-ffn-hidden-size 24 --moe-shared-expert-intermediate-size 48 --moe-router-topk 4 "
      "--moe-router-num-groups 4 --moe-router-group-topk 2 --moe-router-topk-scaling-factor 2.5 ";
  const Json glm = at(converted(experts + "--qk-layernorm --add-qkv-bias --rotary-percent 0.5 "
                                          "--moe-layer-freq '([0]*1+[1]*3)'")
                          .config,
                      "model");
  EXPECT_EQ(at(glm, "model_type"), Json("glm4_moe"));
  EXPECT_EQ(at(glm, "n_routed_experts"), Json(8));
  EXPECT_EQ(at(glm, "n_shared_experts"), Json(2));
  EXPECT_EQ(at(glm, "first_k_dense_replace"), Json(1));
  EXPECT_EQ(at(glm, "n_group"), Json(4));
  EXPECT_EQ(at(glm, "topk_group"), Json(2));
  EXPECT_EQ(at(glm, "routed_scaling_factor"), Json(2.5));
  EXPECT_EQ(at(glm, "partial_rotary_factor"), Json(0.5));
  EXPECT_EQ(at(glm, "use_qk_norm"), Json(true));
  EXPECT_EQ(at(glm, "attention_bias"), Json(true));
  const std::string latents =
      experts +
      "--multi-latent-attention --qk-layernorm --q-lora-rank 12 --kv-lora-rank 10 --qk-head-dim 8 "
      "--qk-pos-emb-head-dim 4 --v-head-dim 6 --rotary-scaling-factor 40 --mscale-all-dim 1 ";
  const Conversion deepseek =
      converted(latents +
                "--moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-3 "
                "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-4");
  const Json model = at(deepseek.config, "model");
  EXPECT_EQ(at(model, "model_type"), Json("deepseek_v3"));
  EXPECT_EQ(at(model, "q_lora_rank"), Json(12));
  EXPECT_EQ(at(model, "kv_lora_rank"), Json(10));
  EXPECT_EQ(at(model, "qk_nope_head_dim"), Json(8));
  EXPECT_EQ(at(model, "qk_rope_head_dim"), Json(4));
  EXPECT_EQ(at(model, "v_head_dim"), Json(6));
  EXPECT_EQ(at(model, "rope_scaling.factor"), Json(40.0));
  EXPECT_EQ(at(model, "rope_scaling.mscale_all_dim"), Json(1.0));
  EXPECT_EQ(at(deepseek.config, "moe.balance"), Json("bias"));
  EXPECT_EQ(at(deepseek.config, "moe.bias_rate"), Json(1e-3));
  EXPECT_TRUE(at(deepseek.config, "moe.aux_coefficient").is_null());
  EXPECT_TRUE(says(deepseek.remarks, "the bias alone balances here"));
  EXPECT_TRUE(at(at(converted(latents).config, "model"), "q_lora_rank") == Json(12));
  const Json qwen3 = at(converted(kLlama + "--disable-bias-linear --num-experts 8 --qk-layernorm "
                                           "--moe-layer-freq '[1,0]*2'")
                            .config,
                        "model");
  EXPECT_EQ(at(qwen3, "mlp_only_layers").dump(), "[1,3]");
}

TEST(Convert, iterations_to_skip_are_the_updates_behind_them) {
  const auto skipped = [](const std::string& more) {
    return at(converted(kLlama + more).config, "stability.skip_steps").dump();
  };
  EXPECT_EQ(skipped("--iterations-to-skip 3 4 5 9"), "[[4,6],[10,10]]");
  EXPECT_EQ(skipped("--iterations-to-skip 0"), "[[1,1]]");
  EXPECT_EQ(skipped(""), "null");
  EXPECT_THROW(skipped("--iterations-to-skip 3 x"), ConfigError);
}

TEST(Convert, experts_are_balanced_and_dealt_out_as_they_were) {
  const std::string experts = kLlama + "--disable-bias-linear --num-experts 8 ";
  const auto config = [&](const std::string& more) { return converted(experts + more).config; };
  const Json given = config(
      "--moe-aux-loss-coeff 1e-2 --moe-z-loss-coeff 1e-3 --moe-token-dispatcher-type flex "
      "--moe-router-load-balancing-type global_aux_loss --expert-model-parallel-size 4 "
      "--expert-tensor-parallel-size 2");
  EXPECT_EQ(at(given, "moe").dump(),
            R"({"balance":"aux","aux_coefficient":0.01,"scope":"global","z_loss":0.001,)"
            R"("dispatch":"alltoall"})");
  EXPECT_EQ(at(given, "parallel.expert"), Json(4));
  EXPECT_EQ(at(given, "parallel.expert_tensor"), Json(2));
  EXPECT_EQ(at(config("--moe-aux-loss-coeff 1e-2"), "moe.balance"), Json("aux"));
  EXPECT_TRUE(at(config("--moe-aux-loss-coeff 0"), "moe").is_null());
  EXPECT_TRUE(
      at(config("--moe-router-load-balancing-type none --moe-aux-loss-coeff 1"), "moe").is_null());
  EXPECT_TRUE(says(converted(experts + "--moe-router-load-balancing-type sinkhorn").remarks,
                   "sinkhorn has no counterpart"));
  EXPECT_TRUE(says(converted(experts + "--moe-aux-loss-coeff 1").remarks,
                   "each sequence is balanced by itself here"));
  EXPECT_TRUE(says(converted(experts + "--moe-aux-loss-coeff 1 --moe-router-load-balancing-type "
                                       "global_aux_loss")
                       .remarks,
                   "weaker by their number"));
  const Conversion dense = converted(kLlama + "--moe-aux-loss-coeff 1e-2");
  EXPECT_TRUE(at(dense.config, "moe").is_null());
}

TEST(Convert, the_vocabulary_is_padded_as_megatron_pads_it) {
  const auto size = [](const std::string& more) {
    return at(converted(kLlama + more).config, "model.vocab_size");
  };
  EXPECT_EQ(size(""), Json(1024));
  EXPECT_EQ(size("--tensor-model-parallel-size 3"), Json(1152));
  EXPECT_EQ(size("--make-vocab-size-divisible-by 1"), Json(1000));
  EXPECT_EQ(size("--tokenizer-type NullTokenizer --make-vocab-size-divisible-by 1"), Json(1001));
  EXPECT_EQ(size("--padded-vocab-size 1003"), Json(1003));
  EXPECT_TRUE(says(converted("--num-layers 1 --hidden-size 8 --num-attention-heads 1").unset,
                   "model.vocab_size"));
}

TEST(Convert, samples_and_fractions_become_steps) {
  const Json config = converted(
                          "--global-batch-size 64 --train-samples 6_400 --lr-warmup-fraction 0.1 "
                          "--lr-decay-samples 3200 --lr-decay-style cosine --lr 1")
                          .config;
  EXPECT_EQ(at(config, "run.steps"), Json(100));
  EXPECT_EQ(at(config, "lr_schedule.decay_end_step"), Json(50));
  EXPECT_EQ(at(config, "lr_schedule.warmup_steps"), Json(5));
  EXPECT_TRUE(says(converted("--train-samples 6400 --lr 1").remarks, "--global-batch-size"));
  for (const char* not_python : {"_6400", "6400_", "6__400"})
    EXPECT_THROW(converted(fmt::format("--train-samples {} --lr 1", not_python)), ConfigError);
}

TEST(Convert, values_that_conflict_are_told) {
  EXPECT_TRUE(says(converted("--lr 1e-3 --lr 2e-3").remarks, "--lr stands twice"));
  EXPECT_EQ(at(converted("--lr 1e-3 --lr 2e-3").config, "optimizer.lr"), Json(2e-3));
  EXPECT_TRUE(says(converted("--lr 1 --bf16 --fp16").remarks, "contradict each other"));
  EXPECT_TRUE(
      says(converted("--lr 1 --global-batch-size 4 --train-iters 5 --train-samples 400").remarks,
           "run.steps: --train-iters gives 5, --train-samples gives 100"));
  EXPECT_TRUE(
      says(converted(R"({"optimizer": {"params": {"lr": 1e-3}}, "scheduler": {"type": "WarmupLR",
                                "params": {"warmup_max_lr": 2e-3}}})")
               .remarks,
           "optimizer.lr: optimizer.params.lr gives"));
  EXPECT_TRUE(says(converted(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})").remarks,
                   "contradict each other"));
}

TEST(Convert, the_decay_of_deepspeed_ends_at_its_least_rate) {
  const auto of = [](const std::string& type) {
    return converted(R"({"scheduler": {"type": ")" + type + R"(", "params": {"total_num_steps": 9,
                         "warmup_min_lr": 1e-5, "warmup_max_lr": 1e-3}}})");
  };
  EXPECT_EQ(at(of("WarmupDecayLR").config, "lr_schedule.min_lr"), Json(1e-5));
  EXPECT_TRUE(says(of("WarmupDecayLR").remarks, "warmup_min_lr 1e-05 is where the decay ends"));
  EXPECT_TRUE(at(of("WarmupLR").config, "lr_schedule.min_lr").is_null());
  EXPECT_TRUE(says(of("WarmupLR").remarks, "warmup_min_lr 1e-05 is left out"));
  for (const char* type : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})
    EXPECT_TRUE(says(of(type).remarks, "warmup_type log (its default)")) << type;
}

TEST(Convert, sequence_parallelism_of_deepspeed_is_ulysses) {
  const Json config = converted(R"({"sequence_parallel_size": 4})").config;
  EXPECT_EQ(at(config, "parallel.context"), Json(4));
  EXPECT_EQ(at(config, "parallel.context_method"), Json("ulysses"));
  EXPECT_TRUE(at(converted(R"({"sequence_parallel_size": 1})").config, "parallel.context_method")
                  .is_null());
}

TEST(Convert, a_ramp_has_phases_of_equal_length) {
  const std::string rest = "--lr 1 --seq-length 64 --train-samples 1000 --lr-warmup-samples 40";
  const Conversion result = converted("--rampup-batch-size 8 8 100 --global-batch-size 32 " + rest);
  // 100 samples in three parts: at 33.3 and 66.7, which samples 34 and 67 are the first behind.
  EXPECT_EQ(at(result.config, "batch.global").dump(), "[[0,8],[2176,16],[4288,24],[6400,32]]");
  // 5 steps of 8 come to 40, 2 of 16 to 72, 2 of 24 to 120, and 880 more are 27 of 32 and a rest.
  EXPECT_EQ(at(result.config, "run.steps"), Json(5 + 2 + 2 + 27));
  EXPECT_TRUE(
      says(result.remarks, "--train-samples 1000 is no sum of whole steps of the ramp: 36"));
  EXPECT_EQ(at(result.config, "lr_schedule.warmup_steps"), Json(5));
  EXPECT_EQ(at(converted("--rampup-batch-size 32 8 100 --global-batch-size 32 " + rest).config,
               "batch.global"),
            Json(32));
  EXPECT_EQ(at(converted("--rampup-batch-size 8 8 0 --global-batch-size 32 " + rest).config,
               "batch.global"),
            Json(32))
      << "a ramp that is over before the first step";
}

TEST(Convert, a_ramp_that_is_none_is_left_out_in_words_that_hold) {
  const std::string ramp = "--lr 1 --rampup-batch-size 8 8 100 ";
  EXPECT_TRUE(says(converted(ramp + "--global-batch-size 64").remarks,
                   "no tokens without --seq-length): the global batch is 64 from the first"));
  EXPECT_TRUE(says(converted(ramp + "--seq-length 64").remarks, "is the same from the first"));
  EXPECT_TRUE(says(converted(ramp + "--seq-length 64 --global-batch-size 60").remarks,
                   "by whole increments): the global batch is 60 from the first"));
}

TEST(Convert, weights_that_are_drawn_otherwise_are_told) {
  const std::string sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 ";
  const std::string llama =
      "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope";
  EXPECT_TRUE(says(converted(sizes + llama).remarks, "the root of 2 x 2 layers"));
  EXPECT_FALSE(says(converted(sizes).remarks, "the root of")) << "GPT-2 draws them so too";
}

TEST(Convert, a_rate_of_dropout_switches_it_on_also_where_it_is_the_default) {
  const std::string sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 ";
  const auto config = [&](const std::string& more) { return converted(sizes + more).config; };
  const Json defaults = config("");
  EXPECT_EQ(at(defaults, "model_backend.dropout"), Json(true));
  EXPECT_EQ(at(defaults, "model.attn_pdrop"), Json(0.1));
  EXPECT_EQ(at(defaults, "model.resid_pdrop"), Json(0.1));
  EXPECT_EQ(at(config("--attention-dropout 0 --hidden-dropout 0.2"), "model_backend.dropout"),
            Json(true));
  EXPECT_TRUE(at(config("--attention-dropout 0.0 --hidden-dropout 0.0"), "model_backend.dropout")
                  .is_null());
  const std::string llama =
      "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope ";
  EXPECT_EQ(at(config(llama + "--hidden-dropout 0"), "model_backend.dropout"), Json(true));
  const Conversion hidden = converted(sizes + llama + "--attention-dropout 0 --hidden-dropout 0.1");
  EXPECT_TRUE(at(hidden.config, "model_backend.dropout").is_null()) << "llama has none";
  EXPECT_TRUE(says(hidden.remarks, "--hidden-dropout 0.1: llama has none"));
}

TEST(Convert, blends_keep_their_weights_or_say_that_they_have_none) {
  const auto train = [](const std::string& path) {
    return at(converted("--lr 1 --data-path " + path).config, "data.train").dump();
  };
  EXPECT_EQ(train("a"), R"("a")");
  EXPECT_EQ(train("0.25 a 3 b"), R"([[0.25,"a"],[3.0,"b"]])");
  EXPECT_EQ(train("a b c"), R"([[1.0,"a"],[1.0,"b"],[1.0,"c"]])");
  EXPECT_TRUE(says(converted("--lr 1 --data-path a b").remarks, "has no weights"));
  EXPECT_EQ(at(converted("--lr 1 --data-path a").config, "data.split"), Json("969,30,1"));
  EXPECT_EQ(at(converted("--lr 1 --data-path a").config, "data.order"), Json("megatron"));
  const Conversion unknown = converted("--lr 1 --data-path 1 a 2 $B");
  EXPECT_TRUE(at(unknown.config, "data.train").is_null());
  EXPECT_TRUE(says(unknown.missing, "data.train: --data-path names $B"));
}

TEST(Convert, what_is_not_known_here_is_listed) {
  const Conversion result =
      converted("--lr 1 --num-workers 4 --overlap-grad-reduce --foo 3 --moe-grouped-gemm");
  EXPECT_TRUE(says(result.nothing, "--num-workers"));
  EXPECT_TRUE(says(result.nothing, "--moe-grouped-gemm"));
  EXPECT_TRUE(says(result.nothing, "--overlap-grad-reduce"));
  EXPECT_EQ(result.unknown, std::vector<std::string>{"--foo"});
  EXPECT_EQ(converted(R"({"train_batch_size": 4, "made_up": {"x": 1}})").unknown,
            std::vector<std::string>{"made_up"});
}

TEST(Convert, the_command_with_the_arguments_is_found) {
  const char* script = R"(
python tools/preprocess_data.py --input x --seed 3
torchrun --nproc_per_node 4 --nnodes=2 pretrain_gpt.py --seed 5 --lr 1e-3 --bf16
)";
  const Conversion result = converted(script);
  EXPECT_EQ(at(result.config, "run.seed"), Json(5));
  EXPECT_TRUE(says(result.remarks, "torchrun starts 8 ranks"));
  EXPECT_EQ(at(converted("A=\"--seed 6\"\nB=(--lr 1e-3)\n").config, "run.seed"), Json(6));
  EXPECT_EQ(at(converted("srun bash -c 'torchrun x.py --seed 7 --lr 1'").config, "run.seed"),
            Json(7));
  EXPECT_EQ(at(converted("python -m torch.distributed.run x.py --seed 8").config, "run.seed"),
            Json(8));
}

TEST(Convert, what_this_version_refuses_is_taken_out_and_told) {
  const Conversion result = converted(
      "--lr 1e-3 --min-lr 1 --expert-model-parallel-size 2 --num-layers 1 --hidden-size 64 "
      "--num-attention-heads 2 --vocab-size 10");
  EXPECT_TRUE(at(result.config, "lr_schedule.min_lr").is_null());
  EXPECT_TRUE(at(result.config, "parallel.expert").is_null());
  EXPECT_TRUE(says(result.remarks, "lr_schedule.min_lr is left out"));
  const Conversion heads = converted(
      "--num-layers 1 --hidden-size 64 --num-attention-heads 3 --swiglu --normalization RMSNorm "
      "--position-embedding-type rope --vocab-size 10 --group-query-attention --num-query-groups "
      "2");
  EXPECT_TRUE(at(heads.config, "model").is_null());
  EXPECT_TRUE(says(heads.missing, "model: see above"));
}

TEST(Convert, what_cannot_be_read_is_refused) {
  EXPECT_NE(fault_of("").find("is empty"), std::string::npos);
  EXPECT_NE(fault_of(" \n").find("is empty"), std::string::npos);
  EXPECT_NE(fault_of("hello world").find("holds no argument of Megatron-LM"), std::string::npos);
  EXPECT_NE(fault_of("a: 1\nb:\n  - 2\n").find("holds no argument"), std::string::npos);
  EXPECT_NE(fault_of("--lr 'x").find("is not closed"), std::string::npos);
  EXPECT_NE(fault_of(std::string_view("--lr \0", 6)).find("is no text"), std::string::npos);
  EXPECT_NE(fault_of("--lr x").find("--lr: \"x\" is not"), std::string::npos);
  EXPECT_NE(fault_of("--lr --bf16").find("--lr: has no value"), std::string::npos);
  EXPECT_NE(fault_of("--num-layers 2.5 --lr 1").find("is no whole number"), std::string::npos);
  EXPECT_NE(fault_of("--num-layers 99999999999999999999 --lr 1").find("is no whole number"),
            std::string::npos);
  EXPECT_NE(
      fault_of("--hidden-size 9223372036854775807 --lr 1 --num-layers 1").find("is not from 1"),
      std::string::npos);
  EXPECT_NE(fault_of("{").find("arguments: line 1"), std::string::npos);
  EXPECT_NE(fault_of("{}").find("holds no key of DeepSpeed"), std::string::npos);
  EXPECT_NE(fault_of("[1]", ForeignSystem::kDeepSpeed).find("an array"), std::string::npos);
  EXPECT_NE(fault_of("3", ForeignSystem::kDeepSpeed).find("an integer"), std::string::npos);
  EXPECT_NE(fault_of(R"({"train_batch_size": "x"})").find("train_batch_size"), std::string::npos);
  EXPECT_NE(fault_of(R"({"optimizer": {"params": {"betas": 3}}})").find("betas"),
            std::string::npos);
  EXPECT_NE(fault_of(R"({"gradient_clipping": 1e999})"), "");
  EXPECT_NE(
      fault_of(R"({"train_batch_size": 8})", ForeignSystem::kMegatron).find("holds no argument"),
      std::string::npos);
}

// Whatever the bytes, it is a config that is taken or a fault; every row with odd values.
TEST(Convert, odd_values_give_a_config_that_is_taken_or_a_fault) {
  const std::string base = kLlama +
                           "--train-iters 100 --lr 1e-3 --global-batch-size 8 --micro-batch-size 1 "
                           "--seq-length 64 --data-path p --save s ";
  std::vector<std::string> names;
  for (const Field& field : fields()) {
    std::istringstream words{std::string(field.row.peers.megatron)};
    for (std::string word; words >> word;) names.push_back(word);
  }
  for (const char* name :
       {"--train-samples", "--lr-decay-samples", "--lr-warmup-samples", "--lr-warmup-fraction",
        "--num-layers-per-virtual-pipeline-stage", "--num-distributed-optimizer-instances",
        "--zero-stage", "--decoder-first-pipeline-num-layers", "--exit-interval", "--rotary-base",
        "--num-query-groups", "--make-vocab-size-divisible-by", "--recompute-num-layers",
        "--distributed-timeout-minutes"})
    names.emplace_back(name);
  for (const std::string& name : names) {
    for (const char* value :
         {"", "0", "-1", "3", "7.5", "1e300", "-9223372036854775808", "9223372036854775807", "nan",
          "x", "$X", "a b", "1 a 2 b", "0 a", "-1 a"}) {
      SCOPED_TRACE(name + " " + value);
      try {
        const Conversion result = converted(base + name + " " + value);
        const LoadedConfig loaded = parse_run_config(completed(result.config));
        EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kConfig) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace trireme
