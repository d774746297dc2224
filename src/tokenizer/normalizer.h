#pragma once
// What a `normalizer` of a `tokenizer.json` does to the text between special tokens.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "tokenizer/replacement.h"

namespace trireme {

/// What stands before a stretch of text: SentencePiece's forms mark the begin of a text, or of each
/// stretch behind a special token, as the begin of a word.
enum class Before {
  kNothing,  ///< the stretch begins the text
  kToken,    ///< a special token
  kText,     ///< text that was encoded apart; nothing is marked
};

class Normalizer {
 public:
  /// One thread's working space.
  struct Scratch {
    RegexScratch regex;
    std::string text, next;
  };

  void add_nfc() { steps_.emplace_back(Nfc{}); }
  /// Text that is not empty gets `prefix` before it, except with Before::kText.
  void add_prepend(std::string prefix) { steps_.emplace_back(Prepend{std::move(prefix)}); }
  void add_replacement(Replacement replacement) { steps_.emplace_back(std::move(replacement)); }
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  /// True where all it does is to write a literal for another, wherever that stands.
  [[nodiscard]] bool only_replaces(std::string_view literal, std::string_view content) const;

  /// `text` (UTF-8) itself, or what became of it, which lives in `scratch`.
  std::string_view apply(std::string_view text, Before before, Scratch& scratch) const;

  /// How many bytes one byte may become.
  [[nodiscard]] double growth() const;
  /// The steps in order: equal where the effects are.
  [[nodiscard]] Json describe() const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string prefix;
  };
  std::vector<std::variant<Nfc, Prepend, Replacement>> steps_;
};

}  // namespace trireme
