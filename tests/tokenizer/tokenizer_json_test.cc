#include "tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
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
  EXPECT_NAMES(fault_with({"normalizer"}, R"({"type": "Precompiled", "precompiled_charsmap": ""})"),
               "normalizer: normalizer Precompiled");
  EXPECT_NAMES(fault_with({"pre_tokenizer"}, R"({"type": "Whitespace"})"),
               "pre_tokenizer: pre-tokenizer Whitespace");
  EXPECT_NAMES(fault_with({"pre_tokenizer"}, R"({"type": "Metaspace", "replacement": "ab"})"),
               "pre_tokenizer.replacement: is not one character");
  EXPECT_NAMES(fault_with({"pre_tokenizer"},
                          R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"),
               "pre_tokenizer.prepend_scheme: prepend_scheme last");
  EXPECT_NAMES(fault_with({"pre_tokenizer"},
                          R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false,)"
                          R"( "prepend_scheme": "first"})"),
               "pre_tokenizer.add_prefix_space: false contradicts");
  EXPECT_NAMES(fault_with({"pre_tokenizer"},
                          R"({"type": "Sequence", "pretokenizers": [{"type": "Metaspace",)"
                          R"( "replacement": "_"}, {"type": "Metaspace", "replacement": "-"}]})"),
               "pre_tokenizer.pretokenizers[1]: Metaspace after a step that writes text");
  // Without ByteLevel the vocabulary is over characters, and so must the decoder be.
  EXPECT_NAMES(fault_with({"pre_tokenizer"}, R"({"type": "Digits"})"),
               "decoder: decoder ByteLevel");
  EXPECT_NAMES(fault_with({"pre_tokenizer"}, "null"), "decoder: decoder ByteLevel");
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
  EXPECT_EQ(fault_with({"model", "byte_fallback"}, "true"), "accepted") << "every byte has a token";
  EXPECT_NAMES(fault_with({"model", "byte_fallback"}, "1"), "model.byte_fallback: an integer");
  EXPECT_NAMES(fault_with({"model", "dropout"}, "0.1"), "model.dropout: 0.1");
  EXPECT_NAMES(fault_with({"model", "continuing_subword_prefix"}, R"("##")"),
               "model.continuing_subword_prefix:");
  EXPECT_NAMES(fault_with({"decoder"}, R"({"type": "Metaspace"})"), "decoder: decoder Metaspace");
  EXPECT_NAMES(fault_with({"post_processor"}, R"({"type": "Odd"})"),
               "post_processor: post-processor Odd");
  EXPECT_NAMES(fault_with({"truncation"}, R"({"max_length": 8})"), "truncation:");
  EXPECT_NAMES(fault_with({"padding"}, R"({"length": 8})"), "padding:");
}

TEST(TokenizerJson, steps_over_characters_are_refused_with_their_path) {
  const auto fault = [](const char* key, const char* value) {
    Json root = parse_json(read_file(TRIREME_GOLDEN "/tokenizer/llama2.tokenizer.json"), "golden");
    root[key] = parse_json(value, "value");
    return fault_of(root.dump());
  };
  EXPECT_EQ(fault("version", R"("1.0")"), "accepted");
  EXPECT_EQ(fault("decoder", "null"), "accepted");
  EXPECT_NAMES(fault("decoder", R"({"type": "WordPiece"})"), "decoder: decoder WordPiece");
  EXPECT_NAMES(
      fault("decoder",
            R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "BPEDecoder"}]})"),
      "decoder.decoders[1]: decoder BPEDecoder");
  EXPECT_NAMES(
      fault("decoder", R"({"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""})"),
      "decoder.pattern: a regular expression in a decoder");
  EXPECT_NAMES(fault("decoder", R"({"type": "Strip", "content": "  ", "start": 1, "stop": 0})"),
               "decoder.content: is not one character");
  EXPECT_NAMES(fault("decoder", R"({"type": "Strip", "content": " ", "start": -1, "stop": 0})"),
               "decoder.start: -1");
  EXPECT_NAMES(fault("normalizer", R"({"type": "Prepend"})"), "normalizer.prepend: null");
  // Seven steps that double.
  const std::string step = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  std::string steps = step;
  for (int i = 0; i < 6; ++i) steps += "," + step;
  EXPECT_NAMES(
      fault("normalizer", (R"({"type": "Sequence", "normalizers": [)" + steps + "]}").c_str()),
      "normalizer.normalizers[6]: its steps make more than 64 bytes of one");
  EXPECT_NAMES(fault("decoder", (R"({"type": "Sequence", "decoders": [)" + steps + "]}").c_str()),
               "decoder.decoders[6]: its steps make more than 64 bytes of one");
  EXPECT_NAMES(fault("normalizer", R"({"type": "Prepend", "prepend": "_", "odd": 1})"),
               "normalizer.odd:");
  EXPECT_NAMES(
      fault("normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": "x"})"),
      "normalizer.pattern.String: an empty pattern");
  EXPECT_NAMES(fault("normalizer", R"({"type": "Replace", "pattern": {}, "content": "x"})"),
               "normalizer.pattern.Regex: null");
}

TEST(TokenizerJson, byte_fallback_of_a_byte_level_vocabulary_needs_every_byte) {
  Json root = valid();
  (*root.find("model"))["byte_fallback"] = true;
  (*root.find("model"))["merges"] = Json::array();
  Json::Object& words = root.find("model")->find("vocab")->as_object();
  std::erase_if(words, [](const auto& word) { return word.first == "a"; });
  EXPECT_NAMES(fault_of(root.dump()), "model.byte_fallback: byte_fallback beside ByteLevel");
}

/// The same tokenizer as another program may write it: a Sequence around one step, members in
/// another order, merges as text, defaults left out, what is not about ids changed.
Json written_otherwise(Json root) {
  Json::Object& members = root.as_object();
  std::reverse(members.begin(), members.end());
  Json steps = Json::array();
  steps.push_back(*root.find("pre_tokenizer"));
  Json sequence = Json::object();
  sequence["type"] = "Sequence";
  sequence["pretokenizers"] = std::move(steps);
  root["pre_tokenizer"] = std::move(sequence);
  root["post_processor"] = Json();
  root["version"] = "2.0";
  Json& model = *root.find("model");
  std::reverse(model.find("vocab")->as_object().begin(), model.find("vocab")->as_object().end());
  for (Json& merge : model["merges"].as_array()) {
    if (merge.is_array())
      merge = Json(merge.as_array()[0].as_string() + " " + merge.as_array()[1].as_string());
  }
  std::erase_if(model.as_object(), [](const auto& member) {
    return member.first == "fuse_unk" || member.first == "dropout";
  });
  return root;
}

TEST(TokenizerJson, the_hash_is_of_what_decides_about_ids_and_not_of_the_bytes) {
  const TemporaryDirectory folder;
  const auto load = [&](const Json& root) {
    return load_tokenizer(folder.write("one.json", root.dump()).string());
  };
  const auto original = load(valid());
  const auto again = load(written_otherwise(valid()));
  EXPECT_EQ(again->hash(), original->hash());
  EXPECT_EQ(original->hash().size(), 32u);
  EXPECT_NE(again->file_hash(), original->file_hash());
  EXPECT_EQ(original->file_hash(), xxh3_128_hex(valid().dump()));

  const auto changed = [&](auto&& change) {
    Json root = valid();
    change(root);
    EXPECT_NE(load(root)->hash(), original->hash()) << root.dump().substr(0, 300);
  };
  changed([](Json& r) { r["normalizer"] = parse_json(R"({"type": "NFC"})", "nfc"); });
  changed([](Json& r) { (*r.find("pre_tokenizer"))["add_prefix_space"] = false; });
  changed([](Json& r) { (*r.find("model"))["merges"].as_array().pop_back(); });
  changed([](Json& r) {
    Json::Array& merges = (*r.find("model"))["merges"].as_array();
    std::swap(merges[0], merges[1]);
  });
  changed([](Json& r) { (*r.find("model"))["ignore_merges"] = true; });
  changed([](Json& r) { (*r.find("model"))["unk_token"] = Json(); });
  changed([](Json& r) { r.find("model")->find("vocab")->as_object().back().second = Json(900); });
  changed([](Json& r) { r["added_tokens"].as_array().pop_back(); });
  changed([](Json& r) { r["added_tokens"].as_array().back()["lstrip"] = false; });
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

TEST(TokenizerJson, sentencepieces_own_form_is_told_apart_with_the_way_out) {
  const TemporaryDirectory folder;
  const std::string model = folder.write("tokenizer.model", "\n\x0e\n\x05<unk>").string();
  for (const std::string& name : {model, folder.path().string()}) {
    try {
      (void)load_tokenizer(name);
      ADD_FAILURE() << name;
    } catch (const DataError& error) {
      EXPECT_NAMES(std::string(error.what()), model + ": is SentencePiece's own form");
    }
  }
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
