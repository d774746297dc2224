#include "train/model_source.h"

#include <gtest/gtest.h>

#include "support/temporary_directory.h"

namespace trireme {
namespace {

std::vector<std::int64_t> end_tokens(const std::string& of_config, const std::string& generation) {
  const TemporaryDirectory folder;
  folder.write("config.json", R"({"model_type":"llama","vocab_size":257,"hidden_size":32,)"
                              R"("intermediate_size":64,"num_hidden_layers":1,)"
                              R"("num_attention_heads":2)" +
                                  of_config + "}");
  if (!generation.empty()) folder.write("generation_config.json", generation);
  const auto self = make_self_communicator();
  return ModelSource(folder.path(), *self).end_tokens();
}

using Ids = std::vector<std::int64_t>;

TEST(ModelSource, a_text_ends_at_any_token_that_the_generation_config_names) {
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":5)", R"({"eos_token_id":[7,9]})"), (Ids{7, 9}));
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":5)", R"({"eos_token_id":7})"), Ids{7});
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":5)", R"({"temperature":0.6})"), Ids{5});
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":[5,6])", ""), (Ids{5, 6}));
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":5)", ""), Ids{5});
  EXPECT_EQ(end_tokens(R"(,"eos_token_id":null)", R"({"eos_token_id":null})"), Ids());
}

TEST(ModelSource, end_tokens_that_are_none_are_refused_by_file) {
  for (const char* hostile :
       {R"({"eos_token_id":"7"})", R"({"eos_token_id":[7,true]})", R"({"eos_token_id":-1})",
        R"({"eos_token_id":1e400})", R"({"eos_token_id":4294967296})", "[]", "{", ""}) {
    try {
      end_tokens("", std::string(hostile).empty() ? " " : hostile);
      ADD_FAILURE() << hostile;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
      EXPECT_NE(std::string(error.what()).find("generation_config.json: "), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace trireme
