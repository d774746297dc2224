#include <gtest/gtest.h>

#include "generate/generator.h"
#include "support/model_fixture.h"

namespace trireme {
namespace {

std::vector<std::int32_t> narrow_ids(const Json& array) {
  const auto ids = flat_integers(array);
  return {ids.begin(), ids.end()};
}

TEST(Greedy, ids_equal_those_of_transformers_for_every_family) {
  const Json golden = read_golden_json("generation/greedy.json");
  ASSERT_GE(golden.as_array().size(), 4U);
  for (const Json& entry : golden.as_array()) {
    const std::string name = entry.find("model")->as_string();
    SCOPED_TRACE(name);
    const auto directory = golden_path("model/" + name);
    ModelFixture model(load_model_config(directory), {1, 1, 1, StagePurpose::kEvaluation});
    model.load(directory / "model.safetensors");
    const auto prompt = narrow_ids(*entry.find("prompt"));
    SamplingOptions options;
    options.temperature = 0;
    const auto continuation = [&](const std::vector<std::int64_t>& end_tokens) {
      Decoder decoder(model.context, model.config, model.params, model.store,
                      {static_cast<std::int64_t>(prompt.size()) + 24, 1, 0, 4});
      std::vector<std::int32_t> ids;
      GenerationCalls calls;
      calls.added = [&](std::size_t, std::int32_t id) { ids.push_back(id); };
      const SequenceRequest request{prompt, 24};
      generate(decoder, {&request, 1}, options, end_tokens, calls);
      return ids;
    };

    EXPECT_EQ(continuation({}), narrow_ids(*entry.find("ids")));
    const std::int64_t end = entry.find("end_token")->as_integer();
    EXPECT_EQ(continuation({end}), narrow_ids(*entry.find("ids_until_end")));
    EXPECT_EQ(continuation({model.config.vocab_size, end}),
              narrow_ids(*entry.find("ids_until_end")))
        << "any of several ends it";
  }
}

}  // namespace
}  // namespace trireme
