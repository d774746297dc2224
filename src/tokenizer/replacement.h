#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/regex.h"

namespace trireme {

/// Every occurrence of a pattern becomes `content`: Replace of Hugging Face `tokenizers`.
class Replacement {
 public:
  Replacement(std::string literal, std::string content);
  Replacement(Regex pattern, std::string content);

  [[nodiscard]] bool is_literal() const { return !regex_; }
  [[nodiscard]] const std::string& pattern() const { return pattern_; }
  [[nodiscard]] const std::string& content() const { return content_; }

  /// How many bytes one byte may become, on average over a text.
  [[nodiscard]] double growth() const;
  /// Writes the text with its replacements to `out`. False if none. Patterns need UTF-8.
  bool apply(std::string_view text, RegexScratch& scratch, std::string& out) const;

 private:
  std::string pattern_, content_;
  std::optional<Regex> regex_;
};

}  // namespace trireme
