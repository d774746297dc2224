#include "tokenizer/bpe_trainer.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "support/temporary_directory.h"
#include "tokenizer/tokenizer.h"

namespace trireme {
namespace {

Json::Array merges_of(const std::string& file) {
  return parse_json(file, "trained").find("model")->find("merges")->as_array();
}

TEST(BpeTrainer, merges_the_most_frequent_pair_first_and_smaller_ids_among_equals) {
  BpeTrainer trainer;
  trainer.add("hug pug pun bun hugs");
  // "ug" stands three times; of the pairs that then stand twice, (h, ug), (u, n), ( , p), the
  // smallest ids come first.
  const Json::Array merges = merges_of(trainer.train(260));
  ASSERT_EQ(merges.size(), 3u);
  EXPECT_EQ(merges[0].as_string(), "u g");
  EXPECT_EQ(merges[1].as_string(), "h ug");
  EXPECT_EQ(merges[2].as_string(), "u n");
}

TEST(BpeTrainer, its_file_is_read_back_and_encodes) {
  BpeTrainer trainer;
  const std::string text = "the cat sat on the mat; the cat\xff sat\n\n\xE4\xB8\xAD";
  trainer.add(text);
  const TemporaryDirectory folder;
  const auto tokenizer =
      load_tokenizer(folder.write("tokenizer.json", trainer.train(265)).string());
  EXPECT_EQ(tokenizer->vocab_size(), 265);
  EXPECT_EQ(tokenizer->end_token(), 0);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_LT(tokenizer->encode(text).size(), text.size());
  EXPECT_EQ(tokenizer->encode("<|endoftext|>"), std::vector<std::int32_t>{0});
}

TEST(BpeTrainer, order_of_the_text_does_not_matter) {
  BpeTrainer forward, backward;
  forward.add("one two");
  forward.add(" three four");
  backward.add(" three four");
  backward.add("one two");
  EXPECT_EQ(forward.train(262), backward.train(262));
}

TEST(BpeTrainer, runs_of_one_symbol_are_counted_once_a_pair) {
  BpeTrainer trainer;
  trainer.add("aaaaaaa bababab");
  const Json::Array merges = merges_of(trainer.train(259));
  EXPECT_EQ(merges[0].as_string(), "a a");
  EXPECT_EQ(merges[1].as_string(), "a b");
}

TEST(BpeTrainer, sizes_that_cannot_be_are_refused) {
  BpeTrainer trainer;
  EXPECT_TRUE(trainer.empty());
  trainer.add("ab ab");
  EXPECT_EQ(merges_of(trainer.train(257)).size(), 0u);
  EXPECT_THROW((void)trainer.train(256), ConfigError);
  EXPECT_THROW((void)trainer.train(-5), ConfigError);
  try {
    (void)trainer.train(1000);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("at most 259"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trireme
