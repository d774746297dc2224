#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "config/model_parse.h"
#include "config/run_config.h"

namespace trireme {

/// The model of a config.json, which must be legal.
inline ModelConfig accepted_model(const Json& keys) {
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  ModelConfig model = read_model(keys, problems, notes);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  return model;
}
inline ModelConfig model_of(std::string_view keys) {
  return accepted_model(parse_json(keys, "model"));
}

/// A whole config of synthetic data, as parsing would leave it: 32 tokens, micro-batches of 2, the
/// model of this config.json.
inline RunConfig small_config(const Json& model) {
  RunConfig config;
  config.run.directory = "r";
  config.run.steps = 10;
  config.data.train.synthetic = true;
  config.data.sequence_length = 32;
  config.batch.micro = 2;
  config.optimizer.lr = 1e-3;
  config.model = accepted_model(model);
  config.model_json = config.model.source;
  return config;
}

/// A Llama of so many layers.
inline RunConfig small_config(std::int64_t layers = 2) {
  Json model = parse_json(R"({"model_type":"llama","hidden_size":64,"num_attention_heads":4,
      "intermediate_size":128,"vocab_size":257,"max_position_embeddings":64})",
                          "model");
  model["num_hidden_layers"] = layers;
  return small_config(model);
}

}  // namespace trireme
