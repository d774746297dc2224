#include "tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

Json valid() {
  return parse_json(read_file(TRIREME_GOLDEN "/tokenizer/roberta.tokenizer.json"), "golden");
}

std::string fault_of(const std::string& content) {
  const TemporaryDirectory folder;
  const auto path = folder.write("tokenizer.json", content);
  try {
    (void)load_tokenizer(path.string());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with(path.string() + ":")) << what;
    return what.substr(std::min(path.string().size(), what.size()));
  }
  return "accepted";
}

/// Changes the member at a dotted path.
std::string fault_with(std::initializer_list<const char*> path, const char* value) {
  Json root = valid();
  Json* at = &root;
  for (const char* key : path) {
    at = at->is_array() ? &at->as_array()[static_cast<std::size_t>(std::stoi(key))] : &(*at)[key];
  }
  *at = parse_json(value, "value");
  return fault_of(root.dump());
}

#define EXPECT_NAMES(fault, place)                            \
  do {                                                        \
    const std::string found = fault;                          \
    EXPECT_NE(found.find(place), std::string::npos) << found; \
  } while (false)

TEST(TokenizerJson, the_untouched_file_is_accepted) {
  EXPECT_EQ(fault_of(valid().dump()), "accepted");
}

TEST(TokenizerJson, what_is_not_understood_is_refused_with_its_path) {
  EXPECT_NAMES(fault_with({"normalizer"}, R"({"type": "Lowercase"})"),
               "normalizer: normalizer Lowercase is not understood");
  EXPECT_NAMES(
      fault_with({"normalizer"},
                 R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]})"),
      "normalizer.normalizers[1]: normalizer NFKC");
  EXPECT_NAMES(fault_with({"pre_tokenizer"}, R"({"type": "Metaspace"})"),
               "pre_tokenizer: pre-tokenizer Metaspace");
  EXPECT_NAMES(fault_with({"pre_tokenizer"}, R"({"type": "Digits"})"), "not byte-level");
  EXPECT_NAMES(fault_with({"pre_tokenizer"}, "null"), "pre_tokenizer:");
  EXPECT_NAMES(
      fault_with(
          {"pre_tokenizer"},
          R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})"),
      "pre_tokenizer.pretokenizers[1]: a pre-tokenizer after ByteLevel");
  EXPECT_NAMES(
      fault_with({"pre_tokenizer"},
                 R"({"type": "Split", "pattern": {"Regex": "\\w"}, "behavior": "Isolated"})"),
      "pre_tokenizer.pattern.Regex: the regular expression");
  EXPECT_NAMES(fault_with({"pre_tokenizer"},
                          R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Odd"})"),
               "pre_tokenizer.behavior: behavior Odd");
  EXPECT_NAMES(fault_with({"pre_tokenizer", "new_option"}, "true"), "pre_tokenizer.new_option:");
  EXPECT_NAMES(fault_with({"model", "type"}, R"("WordPiece")"), "model: model WordPiece");
  EXPECT_NAMES(fault_with({"model", "byte_fallback"}, "true"), "model.byte_fallback: true");
  EXPECT_NAMES(fault_with({"model", "dropout"}, "0.1"), "model.dropout: 0.1");
  EXPECT_NAMES(fault_with({"model", "continuing_subword_prefix"}, R"("##")"),
               "model.continuing_subword_prefix:");
  EXPECT_NAMES(fault_with({"decoder"}, R"({"type": "Metaspace"})"), "decoder: decoder Metaspace");
  EXPECT_NAMES(fault_with({"post_processor"}, R"({"type": "Odd"})"),
               "post_processor: post-processor Odd");
  EXPECT_NAMES(fault_with({"truncation"}, R"({"max_length": 8})"), "truncation:");
  EXPECT_NAMES(fault_with({"padding"}, R"({"length": 8})"), "padding:");
}

TEST(TokenizerJson, wrong_kinds_are_refused_with_their_path) {
  EXPECT_NAMES(fault_of("[]"), "an array stands where an object is needed");
  EXPECT_NAMES(fault_of("{}"), "no \"model\"");
  EXPECT_NAMES(fault_with({"model"}, "3"), "model: an integer stands where an object is needed");
  EXPECT_NAMES(fault_with({"model", "vocab"}, "[]"), "model.vocab: an array");
  EXPECT_NAMES(fault_with({"model", "merges"}, "{}"), "model.merges: an object");
  EXPECT_NAMES(fault_with({"model", "merges"}, "[7]"), "model.merges[0]: an integer");
  EXPECT_NAMES(fault_with({"model", "merges"}, R"([["a"]])"),
               "model.merges[0]: a merge that is no pair");
  EXPECT_NAMES(fault_with({"model", "merges"}, R"(["a"])"), "model.merges[0]: \"a\" is no pair");
  EXPECT_NAMES(fault_with({"model", "merges"}, R"(["a b c"])"), "model.merges[0]:");
  EXPECT_NAMES(fault_with({"model", "merges"}, R"([["a", 1]])"), "model.merges[0][1]: an integer");
  EXPECT_NAMES(fault_with({"model", "merges"}, R"([["a", "nowhere"]])"),
               "model.merges[0]: the vocabulary has no token \"nowhere\"");
  EXPECT_NAMES(fault_with({"model", "fuse_unk"}, R"("yes")"), "model.fuse_unk: a string");
  EXPECT_NAMES(fault_with({"model", "unk_token"}, R"("<nowhere>")"),
               "model.unk_token: the vocabulary has no token");
  EXPECT_NAMES(fault_with({"added_tokens"}, R"([{"content": "x"}])"), "added_tokens[0].id: null");
  EXPECT_NAMES(fault_with({"added_tokens"}, R"([{"content": "", "id": 3}])"),
               "added_tokens[0]: an added token without text");
}

TEST(TokenizerJson, impossible_ids_are_refused_before_anything_is_allocated) {
  EXPECT_NAMES(fault_with({"model", "vocab", "a"}, "-1"), "model.vocab.a: -1 is no token id");
  EXPECT_NAMES(fault_with({"model", "vocab", "a"}, "1e3"), "model.vocab.a: a number");
  EXPECT_NAMES(fault_with({"model", "vocab", "a"}, "4294967296"), "model.vocab.a:");
  EXPECT_NAMES(fault_with({"model", "vocab", "a"}, "2147483647"), "far beyond");
  EXPECT_NAMES(fault_with({"model", "vocab", "a"}, "5"), "the id 5 stands for two tokens");
  EXPECT_NAMES(fault_with({"added_tokens"}, R"([{"content": "x!x", "id": 2147483647}])"),
               "far beyond");
  EXPECT_NAMES(fault_with({"added_tokens"}, R"([{"content": "x!x", "id": 5}])"),
               "the id 5 stands for two tokens");
  EXPECT_NAMES(fault_with({"added_tokens"}, R"([{"content": "a", "id": 5}])"),
               "\"a\" has the id 5 here");
}

TEST(TokenizerJson, damaged_text_is_an_error_with_its_place) {
  const std::string whole = valid().dump();
  EXPECT_NAMES(fault_of(""), "line 1");
  EXPECT_NAMES(fault_of(whole.substr(0, whole.size() / 2)), "line 1, column");
  EXPECT_NAMES(fault_of(whole + "x"), "line 1, column");
  EXPECT_NAMES(fault_of(std::string(5000, '[')), "nested deeper");
  EXPECT_NAMES(fault_of("{\"a\xff\": 1}"), "line 1");
  EXPECT_NAMES(fault_of(R"({"model": 1, "model": 2})"), "stands twice");
}

TEST(TokenizerJson, every_cut_of_a_file_is_an_error_and_no_crash) {
  const std::string whole = valid().dump();
  for (std::size_t size = 0; size < whole.size(); size += 97)
    EXPECT_NE(fault_of(whole.substr(0, size)), "accepted") << size;
}

TEST(TokenizerJson, a_missing_file_and_a_folder_without_one_are_data_errors) {
  const TemporaryDirectory folder;
  EXPECT_THROW((void)load_tokenizer((folder / "absent.json").string()), DataError);
  EXPECT_THROW((void)load_tokenizer(folder.path().string()), DataError);
  folder.write("tokenizer.json", valid().dump());
  EXPECT_GT(load_tokenizer(folder.path().string())->vocab_size(), 256);
}

TEST(TokenizerJson, merges_as_pairs_and_as_text_mean_the_same) {
  Json root = valid();
  for (Json& merge : (*root.find("model"))["merges"].as_array()) {
    if (merge.is_array())
      merge = Json(merge.as_array()[0].as_string() + " " + merge.as_array()[1].as_string());
  }
  const TemporaryDirectory folder;
  const auto text = load_tokenizer(folder.write("text.json", root.dump()).string());
  const auto pairs = load_tokenizer(TRIREME_GOLDEN "/tokenizer/roberta.tokenizer.json");
  EXPECT_EQ(text->encode("in the beginning, God's"), pairs->encode("in the beginning, God's"));
}

}  // namespace
}  // namespace trireme
