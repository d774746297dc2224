#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>

#include "base/file.h"
#include "base/hash.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_reader.h"

namespace trireme {

namespace {

/// A member that must be absent, null or one of two harmless values.
void need_inactive(const JsonReader& reader) {
  const Json& value = reader.value();
  const bool harmless = value.is_null() || (value.is_string() && value.as_string().empty()) ||
                        (value.is_bool() && !value.as_bool()) ||
                        (value.is_number() && value.as_double() == 0.0);
  if (!harmless) reader.refuse(value.dump());
}

Normalization read_normalizer(const JsonReader& reader) {
  if (reader.is_null()) return Normalization::kNone;
  const std::string& type = reader.type();
  if (type == "NFC") return Normalization::kNfc;
  if (type != "Sequence") reader.refuse(fmt::format("normalizer {}", type));
  Normalization found = Normalization::kNone;
  const JsonReader list = reader.member("normalizers");
  for (std::size_t i = 0; i < list.array().size(); ++i) {
    if (read_normalizer(list.element(i)) == Normalization::kNfc) found = Normalization::kNfc;
  }
  return found;
}

void read_split(const JsonReader& reader, PreTokenizer& pre_tokenizer) {
  struct Named {
    std::string_view name;
    SplitBehavior behavior;
  };
  constexpr std::array<Named, 5> kBehaviors = {
      {{"Removed", SplitBehavior::kRemoved},
       {"Isolated", SplitBehavior::kIsolated},
       {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
       {"MergedWithNext", SplitBehavior::kMergedWithNext},
       {"Contiguous", SplitBehavior::kContiguous}}};
  reader.allow({"type", "pattern", "behavior", "invert"});
  const JsonReader behavior = reader.member("behavior");
  const auto found = std::find_if(kBehaviors.begin(), kBehaviors.end(),
                                  [&](const Named& n) { return n.name == behavior.string(); });
  if (found == kBehaviors.end()) behavior.refuse(fmt::format("behavior {}", behavior.string()));
  const auto matches = reader.member("invert").boolean(false) ? SplitMatches::kArePieces
                                                              : SplitMatches::kAreDelimiters;
  const JsonReader pattern = reader.member("pattern");
  const bool literal = !pattern.member("String").is_null();
  const JsonReader text = pattern.member(literal ? "String" : "Regex");
  if (text.string().empty()) text.fail("an empty pattern");
  const auto kind = literal ? Regex::Kind::kLiteral : Regex::Kind::kPattern;
  pre_tokenizer.add_split(Regex(text.string(), kind, text.place()), found->behavior, matches);
}

/// True where this was ByteLevel, after which nothing may follow.
bool read_pre_tokenizer(const JsonReader& reader, PreTokenizer& pre_tokenizer) {
  if (reader.is_null()) reader.refuse("a model without pre-tokenizer");
  const std::string& type = reader.type();
  if (type == "ByteLevel") {
    reader.allow({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (reader.member("add_prefix_space").boolean(true)) pre_tokenizer.add_prefix_space();
    if (reader.member("use_regex").boolean(true)) {
      pre_tokenizer.add_split(Regex(kGpt2Pattern, Regex::Kind::kPattern, reader.place()),
                              SplitBehavior::kIsolated, SplitMatches::kAreDelimiters);
    }
    return true;
  }
  if (type == "Split") {
    read_split(reader, pre_tokenizer);
  } else if (type == "Digits") {
    reader.allow({"type", "individual_digits"});
    const bool individual = reader.member("individual_digits").boolean(false);
    pre_tokenizer.add_split(Regex(R"(\p{N})", Regex::Kind::kPattern, reader.place()),
                            individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                            SplitMatches::kAreDelimiters);
  } else if (type == "Sequence") {
    reader.allow({"type", "pretokenizers"});
    const JsonReader list = reader.member("pretokenizers");
    constexpr std::size_t kStepsMax = 64;  // each is compiled, and each sees the whole text
    if (list.array().size() > kStepsMax) list.fail(fmt::format("more than {} steps", kStepsMax));
    bool done = false;
    for (std::size_t i = 0; i < list.array().size(); ++i) {
      if (done) list.element(i).refuse("a pre-tokenizer after ByteLevel");
      done = read_pre_tokenizer(list.element(i), pre_tokenizer);
    }
    return done;
  } else {
    reader.refuse(fmt::format("pre-tokenizer {}", type));
  }
  return false;
}

/// What adds special tokens or trims offsets changes no ids of encode().
void check_post_processor(const JsonReader& reader) {
  if (reader.is_null()) return;
  const std::string& type = reader.type();
  if (type == "Sequence") {
    const JsonReader list = reader.member("processors");
    for (std::size_t i = 0; i < list.array().size(); ++i) check_post_processor(list.element(i));
    return;
  }
  constexpr std::array<std::string_view, 4> kKnown = {"ByteLevel", "TemplateProcessing",
                                                      "RobertaProcessing", "BertProcessing"};
  if (std::find(kKnown.begin(), kKnown.end(), type) == kKnown.end()) {
    reader.refuse(fmt::format("post-processor {}", type));
  }
}

void check_decoder(const JsonReader& reader) {
  if (reader.is_null()) return;
  if (reader.type() == "Sequence") {
    const JsonReader list = reader.member("decoders");
    for (std::size_t i = 0; i < list.array().size(); ++i) check_decoder(list.element(i));
    return;
  }
  if (reader.type() != "ByteLevel") reader.refuse(fmt::format("decoder {}", reader.type()));
}

void set_text(BpeParts& parts, const JsonReader& reader, std::int32_t id, std::string text) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= parts.texts.size()) parts.texts.resize(at + 1);
  if (!parts.texts[at].empty()) reader.fail(fmt::format("the id {} stands for two tokens", id));
  parts.texts[at] = std::move(text);
}

void read_vocabulary(const JsonReader& reader, BpeParts& parts) {
  const Json::Object& members = reader.object();
  // Ids index tables: a few gaps are usual, an id far beyond the number of tokens is a damaged
  // file.
  const std::size_t id_max = 2 * members.size() + 65536;
  for (const auto& [name, value] : members) {
    const JsonReader entry = reader.member_at(name, value);
    const std::int32_t id = entry.id();
    if (static_cast<std::size_t>(id) > id_max) {
      entry.fail(
          fmt::format("the id {} is far beyond the {} tokens of the file", id, members.size()));
    }
    if (name.empty()) entry.fail("an empty token");
    const std::optional<std::string> bytes = from_byte_level(name);
    if (bytes) parts.vocabulary.ids.emplace(*bytes, id);
    set_text(parts, entry, id, bytes ? *bytes : name);
    parts.names.emplace(name, id);
  }
}

std::pair<std::string_view, std::string_view> sides_of(const JsonReader& merge) {
  if (merge.value().is_array()) {
    if (merge.array().size() != 2) merge.fail("a merge that is no pair");
    return {merge.element(0).string(), merge.element(1).string()};
  }
  const std::string_view text = merge.string();
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    merge.fail(fmt::format("\"{}\" is no pair of tokens", text));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const JsonReader& reader, BpeParts& parts) {
  const std::size_t count = reader.array().size();
  // The old format begins with a line that is no merge.
  for (std::size_t i = 0; i < count; ++i) {
    const JsonReader merge = reader.element(i);
    if (i == 0 && merge.value().is_string() && merge.value().as_string().starts_with("#version"))
      continue;
    const auto [left, right] = sides_of(merge);
    const auto id_of = [&](const std::string& name) {
      const auto found = parts.names.find(name);
      if (found == parts.names.end())
        merge.fail(fmt::format("the vocabulary has no token \"{}\"", name));
      return found->second;
    };
    const std::string left_name(left), right_name(right);
    parts.vocabulary.merges.push_back(
        {id_of(left_name), id_of(right_name), id_of(left_name + right_name)});
  }
}

void read_model(const JsonReader& reader, BpeParts& parts) {
  if (!reader.member("type").is_null() && reader.type() != "BPE") {
    reader.refuse(fmt::format("model {}", reader.type()));
  }
  reader.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const std::string_view key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    need_inactive(reader.member(key));
  }
  read_vocabulary(reader.member("vocab"), parts);
  read_merges(reader.member("merges"), parts);
  parts.vocabulary.fuse_unknown = reader.member("fuse_unk").boolean(false);
  parts.vocabulary.whole_piece_first = reader.member("ignore_merges").boolean(false);
  const JsonReader unknown = reader.member("unk_token");
  if (unknown.is_null()) return;
  const auto found = parts.names.find(unknown.string());
  if (found != parts.names.end()) {
    parts.vocabulary.unknown_id = found->second;
  } else if (!unknown.string().empty()) {
    unknown.fail(fmt::format("the vocabulary has no token \"{}\"", unknown.string()));
  }
}

void read_added_tokens(const JsonReader& reader, BpeParts& parts) {
  if (reader.is_null()) return;
  const std::size_t id_max = 2 * (parts.texts.size() + reader.array().size()) + 65536;
  for (std::size_t i = 0; i < reader.array().size(); ++i) {
    const JsonReader item = reader.element(i);
    item.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = item.member("content").string();
    token.id = item.member("id").id();
    token.special = item.member("special").boolean(false);
    token.single_word = item.member("single_word").boolean(false);
    token.strips_left = item.member("lstrip").boolean(false);
    token.strips_right = item.member("rstrip").boolean(false);
    token.normalized = item.member("normalized").boolean(!token.special);
    if (token.content.empty()) item.fail("an added token without text");
    if (static_cast<std::size_t>(token.id) > id_max) {
      item.member("id").fail(
          fmt::format("the id {} is far beyond the tokens of the file", token.id));
    }
    const auto [place, is_new] = parts.names.emplace(token.content, token.id);
    if (!is_new && place->second != token.id) {
      item.fail(fmt::format("\"{}\" has the id {} here and {} before", token.content, token.id,
                            place->second));
    }
    if (is_new) {
      set_text(parts, item, token.id, token.content);
    } else {
      parts.texts[static_cast<std::size_t>(token.id)] = token.content;
    }
    parts.added_tokens.push_back(std::move(token));
  }
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& path) {
  constexpr std::size_t kBytesMax = std::size_t{128} << 20;  // the largest published have 40 MB
  const std::string content = read_file(path, kBytesMax);
  const Json tree = parse_json(content, path.string());
  const JsonReader root(tree, path.string(), "");
  if (!tree.is_object()) root.wrong_kind("an object");
  root.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"});
  BpeParts parts;
  parts.path = path.string();
  parts.hash = xxh3_128_hex(content);
  for (const std::string_view key : {"truncation", "padding"}) {
    if (!root.member(key).is_null()) root.member(key).refuse(key);
  }
  if (root.member("model").is_null()) root.fail("has no \"model\": this is no tokenizer.json");
  read_model(root.member("model"), parts);
  read_added_tokens(root.member("added_tokens"), parts);
  parts.normalization = read_normalizer(root.member("normalizer"));
  const JsonReader pre_tokenizer = root.member("pre_tokenizer");
  if (!read_pre_tokenizer(pre_tokenizer, parts.pre_tokenizer)) {
    pre_tokenizer.refuse("a model that is not byte-level");
  }
  check_post_processor(root.member("post_processor"));
  check_decoder(root.member("decoder"));
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace trireme
