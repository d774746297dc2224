// Against Hugging Face `tokenizers`: the ids it gave to 10,000 hostile lines
// (tests/golden/make_tokenizer_golden.py).

#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "tokenizer/bpe_trainer.h"
#include "tokenizer/tokenizer.h"

namespace trireme {
namespace {

const std::string kGolden = TRIREME_GOLDEN "/tokenizer/";

const std::vector<std::string>& hostile_lines() {
  static const std::vector<std::string> lines = [] {
    std::vector<std::string> read;
    std::ifstream file(kGolden + "hostile.jsonl", std::ios::binary);
    for (std::string line; std::getline(file, line);)
      read.push_back(parse_json(line, "hostile.jsonl").as_string());
    return read;
  }();
  return lines;
}

/// FNV-1a, 32 bits.
constexpr std::uint32_t kHashBegin = 0x811C9DC5u;
void hash_byte(std::uint32_t& hash, std::uint32_t byte) {
  hash = (hash ^ (byte & 0xFF)) * 0x01000193u;
}
/// Over the id as little-endian int32.
void hash_id(std::uint32_t& hash, std::int32_t id) {
  for (int shift = 0; shift < 32; shift += 8)
    hash_byte(hash, static_cast<std::uint32_t>(id) >> shift);
}

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer(kGolden + GetParam() + ".tokenizer.json");
};

TEST_P(TokenizerGolden, ids_are_the_peers_on_hostile_lines) {
  const Json expected = parse_json(read_file(kGolden + GetParam() + ".expected.json"), "expected");
  const Json::Array& full = expected.find("ids")->as_array();
  const std::string& hashes = expected.find("hashes")->as_string();
  const auto block = static_cast<std::size_t>(expected.find("block")->as_integer());
  ASSERT_EQ(hostile_lines().size(), 10000u);
  ASSERT_EQ(hashes.size(), 8 * hostile_lines().size() / block);
  ASSERT_GE(full.size(), 200u);
  std::uint32_t hash = kHashBegin;
  for (std::size_t i = 0; i < hostile_lines().size(); ++i) {
    const std::vector<std::int32_t> ids = tokenizer_->encode(hostile_lines()[i]);
    if (i < full.size()) {
      std::vector<std::int32_t> wanted;
      for (const Json& id : full[i].as_array())
        wanted.push_back(static_cast<std::int32_t>(id.as_integer()));
      ASSERT_EQ(ids, wanted) << Json(hostile_lines()[i]).dump();
    }
    for (const std::int32_t id : ids) hash_id(hash, id);
    hash_id(hash, -1);
    if ((i + 1) % block != 0) continue;
    ASSERT_EQ(fmt::format("{:08x}", hash), hashes.substr(i / block * 8, 8))
        << "lines " << i + 1 - block << " to " << i;
    hash = kHashBegin;
  }
}

TEST_P(TokenizerGolden, ids_do_not_depend_on_what_was_encoded_before) {
  const auto fresh = load_tokenizer(kGolden + GetParam() + ".tokenizer.json");
  for (std::size_t i = hostile_lines().size(); i-- > 0;) (void)fresh->encode(hostile_lines()[i]);
  for (std::size_t i = 0; i < 500; ++i)
    ASSERT_EQ(fresh->encode(hostile_lines()[i]), tokenizer_->encode(hostile_lines()[i]));
}

constexpr const char* kOverCharacters[] = {"llama2", "llama2_normalized", "mistral",
                                           "gemma",  "metaspace",         "crossing"};

INSTANTIATE_TEST_SUITE_P(Files, TokenizerGolden,
                         testing::Values("gpt2", "llama3", "qwen", "roberta", "digits", "o200k",
                                         "deepseek", "merged"),
                         [](const auto& test) { return std::string(test.param); });
INSTANTIATE_TEST_SUITE_P(OverCharacters, TokenizerGolden, testing::ValuesIn(kOverCharacters),
                         [](const auto& test) { return std::string(test.param); });

TEST(Tokenizer, over_characters_ids_decode_to_the_peers_text) {
  for (const char* name : kOverCharacters) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".tokenizer.json");
    const Json expected = parse_json(read_file(kGolden + name + ".expected.json"), "expected");
    const std::string& hashes = expected.find("texts")->as_string();
    const auto block = static_cast<std::size_t>(expected.find("block")->as_integer());
    ASSERT_EQ(hashes.size(), 8 * hostile_lines().size() / block);
    std::uint32_t hash = kHashBegin;
    for (std::size_t i = 0; i < hostile_lines().size(); ++i) {
      const std::string text = tokenizer->decode(tokenizer->encode(hostile_lines()[i])) + "\n";
      for (const char c : text) hash_byte(hash, static_cast<unsigned char>(c));
      if ((i + 1) % block != 0) continue;
      ASSERT_EQ(fmt::format("{:08x}", hash), hashes.substr(i / block * 8, 8))
          << name << ", lines " << i + 1 - block << " to " << i;
      hash = kHashBegin;
    }
  }
}

TEST(Tokenizer, over_characters_the_text_of_tokens_is_that_of_the_whole_but_for_the_first_blank) {
  for (const char* name : {"llama2", "mistral", "gemma"}) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".tokenizer.json");
    for (const std::string& line : hostile_lines()) {
      const std::vector<std::int32_t> ids = tokenizer->encode(line);
      std::string joined;
      for (const std::int32_t id : ids) joined += tokenizer->token_text(id);
      const std::string whole = tokenizer->decode(ids);
      ASSERT_TRUE(joined == whole || joined == " " + whole) << name << ' ' << Json(line).dump();
    }
  }
}

TEST(Tokenizer, over_characters_bytes_that_are_not_utf8_are_kept_and_mark_no_word) {
  for (const char* name : {"llama2", "mistral", "gemma"}) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".tokenizer.json");
    for (const std::string text : {"the \xff\xfe the\xE2\x82 lord\xC3", "\xffthe", "a\xff"})
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name;
  }
}

TEST(Tokenizer, decode_gives_the_text_back_where_nothing_is_normalized) {
  for (const char* name : {"gpt2", "llama3", "digits", "o200k", "deepseek"}) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".tokenizer.json");
    for (const std::string& line : hostile_lines())
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(line)), line) << name;
  }
}

TEST(Tokenizer, bytes_that_are_not_utf8_are_kept_one_by_one) {
  const auto tokenizer = load_tokenizer(kGolden + "gpt2.tokenizer.json");
  const std::string text = "the \xff\xfe the\xE2\x82 lord\xC3";
  const auto ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids), text);
  std::vector<std::int32_t> parts;
  for (const char* part : {"the ", "\xff", "\xfe", " the", "\xE2", "\x82", " lord", "\xC3"})
    tokenizer->encode(part, parts);
  EXPECT_EQ(ids, parts);
}

TEST(Tokenizer, every_byte_string_is_kept) {
  const auto tokenizer = load_tokenizer(kGolden + "llama3.tokenizer.json");
  std::string noise;
  std::uint32_t state = 1;
  for (int i = 0; i < 20000; ++i)
    noise += static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(noise)), noise);
}

TEST(Tokenizer, a_cut_at_a_split_position_changes_no_id) {
  std::string text;
  for (const std::string& line : hostile_lines()) text += line + "\nAnd";
  for (const char* name : {"gpt2", "llama3", "qwen", "digits", "gemma"}) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".tokenizer.json");
    std::vector<std::int32_t> parts;
    std::size_t begin = 0, cuts = 0;
    for (std::size_t at = 0; (at = tokenizer->split_position(text, at)) != std::string::npos;
         ++cuts) {
      tokenizer->encode(std::string_view(text).substr(begin, at - begin), parts);
      begin = at;
    }
    tokenizer->encode(std::string_view(text).substr(begin), parts);
    EXPECT_GT(cuts, 1000u) << name;
    EXPECT_EQ(parts, tokenizer->encode(text)) << name;
  }
  for (const char* name :
       {"roberta", "merged", "o200k", "deepseek", "llama2", "mistral", "metaspace", "crossing"}) {
    EXPECT_EQ(load_tokenizer(kGolden + name + ".tokenizer.json")->split_position(text, 0),
              std::string::npos)
        << name;
  }
}

TEST(Tokenizer, end_tokens_special_tokens_and_names_are_known) {
  const auto llama = load_tokenizer(kGolden + "llama3.tokenizer.json");
  EXPECT_EQ(llama->end_token(), llama->token_id("<|end_of_text|>"));
  ASSERT_TRUE(llama->end_token());
  EXPECT_TRUE(llama->is_special(*llama->end_token()));
  EXPECT_EQ(llama->decode(llama->encode("a<|eot_id|>b"), SpecialTokens::kSkip), "ab");
  EXPECT_EQ(llama->hash().size(), 32u);
  const auto roberta = load_tokenizer(kGolden + "roberta.tokenizer.json");
  EXPECT_EQ(roberta->end_token(), roberta->token_id("</s>"));
  EXPECT_EQ(roberta->token_id("no such token"), std::nullopt);
  EXPECT_NE(roberta->hash(), llama->hash());
  // Gemma's vocabulary has </s> as a tag of HTML.
  const auto gemma = load_tokenizer(kGolden + "gemma.tokenizer.json");
  ASSERT_TRUE(gemma->token_id("</s>"));
  EXPECT_EQ(gemma->end_token(), gemma->token_id("<eos>"));
}

// Quadratic merging of a megabyte would take hours.
TEST(Tokenizer, a_long_run_takes_time_in_proportion) {
  for (const char* name : {"gpt2", "llama2", "mistral", "gemma"}) {
    const auto tokenizer = load_tokenizer(kGolden + name + ".tokenizer.json");
    for (const char* unit : {"a", " ", "the", "!", "\n", "\u4e2d"}) {
      std::string text = "x";
      while (text.size() < (unit[0] == 't' ? 1000000 : 300000)) text += unit;
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name;
    }
  }
}

TEST(BpeTrainer, learns_what_the_peers_trainer_learns) {
  BpeTrainer trainer;
  std::string text;
  for (const std::string& line : hostile_lines()) text += line;
  trainer.add(text);
  const Json wanted = parse_json(read_file(kGolden + "trained.tokenizer.json"), "trained");
  const Json::Object& vocabulary = wanted.find("model")->find("vocab")->as_object();
  const Json made = parse_json(trainer.train(static_cast<std::int32_t>(vocabulary.size())), "made");
  Json::Array merges;
  for (const Json& merge : wanted.find("model")->find("merges")->as_array()) {
    merges.emplace_back(merge.as_array()[0].as_string() + " " + merge.as_array()[1].as_string());
  }
  EXPECT_EQ(*made.find("model")->find("merges"), Json(merges));
  ASSERT_EQ(made.find("model")->find("vocab")->as_object().size(), vocabulary.size());
  for (const auto& [token, id] : vocabulary) {
    ASSERT_NE(made.find("model")->find("vocab")->find(token), nullptr) << token;
    EXPECT_EQ(*made.find("model")->find("vocab")->find(token), id) << token;
  }
}

}  // namespace
}  // namespace trireme
