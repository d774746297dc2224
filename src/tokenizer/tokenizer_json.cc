#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>

#include "base/file.h"
#include "base/hash.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/tokenizer_steps.h"

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

void set_text(BpeParts& parts, const JsonReader& reader, std::int32_t id, std::string text) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= parts.texts.size()) parts.texts.resize(at + 1);
  if (!parts.texts[at].empty()) reader.fail(fmt::format("the id {} stands for two tokens", id));
  parts.texts[at] = std::move(text);
}

void read_vocabulary(const JsonReader& reader, BpeParts& parts) {
  const Json::Object& members = reader.object();
  // Ids index tables: a few gaps are usual, an id far beyond the tokens is a damaged file.
  const std::size_t id_max = 2 * members.size() + 65536;
  for (const auto& [name, value] : members) {
    const JsonReader entry = reader.member_at(name, value);
    const std::int32_t id = entry.id();
    if (static_cast<std::size_t>(id) > id_max) {
      entry.fail(
          fmt::format("the id {} is far beyond the {} tokens of the file", id, members.size()));
    }
    if (name.empty()) entry.fail("an empty token");
    std::optional<std::string> text = name;
    if (parts.vocabulary.symbols == BpeSymbols::kBytes) text = from_byte_level(name);
    if (text) parts.vocabulary.ids.emplace(*text, id);
    set_text(parts, entry, id, text ? *text : name);
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

/// Over bytes it would speak of a byte that has no token, as the character that stands for it.
void read_byte_fallback(const JsonReader& reader, BpeVocabulary& vocabulary) {
  const bool active = reader.boolean(false);
  vocabulary.byte_fallback = active && vocabulary.symbols == BpeSymbols::kCharacters;
  if (!active || vocabulary.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    if (!vocabulary.ids.contains(std::string(1, static_cast<char>(byte))))
      reader.refuse("byte_fallback beside ByteLevel, in a vocabulary without all bytes,");
  }
}

void read_model(const JsonReader& reader, BpeParts& parts) {
  if (!reader.member("type").is_null() && reader.type() != "BPE") {
    reader.refuse(fmt::format("model {}", reader.type()));
  }
  reader.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const std::string_view key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    need_inactive(reader.member(key));
  }
  read_vocabulary(reader.member("vocab"), parts);
  read_merges(reader.member("merges"), parts);
  read_byte_fallback(reader.member("byte_fallback"), parts.vocabulary);
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

/// All that decides about ids, in one order and spelling.
std::string identity_of(const BpeParts& parts) {
  const BpeVocabulary& vocabulary = parts.vocabulary;
  std::vector<std::pair<std::int32_t, std::string_view>> tokens;
  for (const auto& [token, id] : vocabulary.ids) tokens.emplace_back(id, token);
  std::sort(tokens.begin(), tokens.end());
  Json merges = Json::array();
  for (const BpeMerge& merge : vocabulary.merges) {
    merges.push_back(merge.left);
    merges.push_back(merge.right);
  }
  std::vector<AddedToken> added = parts.added_tokens;
  std::stable_sort(added.begin(), added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  Json added_json = Json::array();
  for (const AddedToken& token : added) {
    added_json.push_back(
        Json(Json::Array{token.id, token.content, token.single_word, token.strips_left,
                         token.strips_right, token.normalized}));
  }
  Json root = Json::array();
  root.push_back(static_cast<int>(vocabulary.symbols));
  root.push_back(vocabulary.unknown_id);
  root.push_back(vocabulary.fuse_unknown);
  root.push_back(vocabulary.byte_fallback);
  root.push_back(vocabulary.whole_piece_first);
  root.push_back(parts.normalizer.describe());
  root.push_back(parts.pre_tokenizer.describe());
  root.push_back(std::move(added_json));
  root.push_back(std::move(merges));
  // Tokens over bytes may be no UTF-8, which JSON is.
  std::string text = root.dump();
  for (const auto& [id, token] : tokens) text += fmt::format("\n{} {} {}", id, token.size(), token);
  return xxh3_128_hex(text);
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
  parts.file_hash = xxh3_128_hex(content);
  for (const std::string_view key : {"truncation", "padding"}) {
    if (!root.member(key).is_null()) root.member(key).refuse(key);
  }
  if (root.member("model").is_null()) root.fail("has no \"model\": this is no tokenizer.json");
  const bool byte_level = read_pre_tokenizer(root.member("pre_tokenizer"), parts.pre_tokenizer);
  parts.vocabulary.symbols = byte_level ? BpeSymbols::kBytes : BpeSymbols::kCharacters;
  read_model(root.member("model"), parts);
  read_added_tokens(root.member("added_tokens"), parts);
  read_normalizer(root.member("normalizer"), parts.normalizer);
  check_post_processor(root.member("post_processor"));
  if (byte_level) {
    check_byte_level_decoder(root.member("decoder"));
  } else {
    read_decoder(root.member("decoder"), parts.decoder);
  }
  parts.hash = identity_of(parts);
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace trireme
