#pragma once
// JSON lines: an object a line, its text under one key.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "tokenizer/corpus_reader.h"

namespace trireme {

/// Each line of a block as an object, and "FILE: line N"; blank lines are passed over. Throws
/// DataError naming file and line: no JSON, no object.
void for_each_object(
    const CorpusBlock& block,
    const std::function<void(const Json& object, const std::string& place)>& visit);

/// The member `key` of a line's object. Throws DataError naming other members, and the option that
/// names the right one, where it has none.
const Json& member_of_line(const Json& object, const std::string& key, std::string_view option,
                           const std::string& place);

/// The text under `key` of each line of a block; blank lines are passed over. Throws DataError
/// naming file and line: no JSON, no object, no such member (naming others), no string.
void for_each_text(const CorpusBlock& block, const std::string& key,
                   const std::function<void(std::string_view text)>& visit);

/// Of a text that begins with a JSON object on a line of its own: the key that holds its text most
/// likely; "" where none holds a string. nullopt for any other text.
std::optional<std::string> likely_text_key(std::string_view text);

/// Warned of once in plain text: JSON read with its syntax, bytes that are no UTF-8, zeros.
class PlainTextCheck {
 public:
  void look_at(const CorpusBlock& block);

 private:
  bool told_json_ = false, told_bytes_ = false;
  std::string source_;
};

}  // namespace trireme
