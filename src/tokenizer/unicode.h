#pragma once
// What the tokenizers need beyond UTF-8, with the peer's view of Unicode (unicode_tables.h).

#include <string>
#include <string_view>

namespace trireme {

/// Writes to `out` a text of the same length in which characters younger than Unicode 13 are
/// replaced by older ones of the same general category, so that any PCRE2 classes them alike. False
/// where nothing needs replacing
/// (`out` is then left alone). `text` must be UTF-8.
bool replace_young_characters(std::string_view text, std::string& out);

/// Normalization form C as Hugging Face's. False where `text` (UTF-8) is so; `out` then stays.
bool normalize_nfc(std::string_view text, std::string& out);

}  // namespace trireme
