#pragma once
// Regular expressions of `tokenizer.json`: written for Oniguruma, run by PCRE2. Only what means the
// same to both passes; \s and \d are spelled out (U+180E is in PCRE2's \s alone).

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/unique_handle.h"
#include "base/utf8.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace trireme {

struct RegexCodeTraits {
  using Raw = pcre2_real_code_8*;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw raw) noexcept;
};
struct RegexMatchDataTraits {
  using Raw = pcre2_real_match_data_8*;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw raw) noexcept;
};
struct RegexMatchContextTraits {
  using Raw = pcre2_real_match_context_8*;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw raw) noexcept;
};
struct RegexJitStackTraits {
  using Raw = pcre2_real_jit_stack_8*;
  static Raw null() noexcept { return nullptr; }
  static void destroy(Raw raw) noexcept;
};

/// What one thread needs for matching; serves every Regex.
class RegexScratch {
 public:
  RegexScratch();

 private:
  friend class Regex;
  UniqueHandle<RegexJitStackTraits> jit_stack_;
  UniqueHandle<RegexMatchContextTraits> context_;
  UniqueHandle<RegexMatchDataTraits> data_;
};

/// The pattern as PCRE2 writes it. DataError "PLACE: ..." for what the two may read differently.
std::string translate_pattern(std::string_view pattern, std::string_view place);

class Regex {
 public:
  enum class Kind { kPattern, kLiteral };
  /// Throws DataError "PLACE: ...".
  Regex(std::string_view pattern, Kind kind, std::string place);

  struct Match {
    std::size_t begin, end;
  };
  /// The first match at or after `from`. `text` must be UTF-8. Throws DataError where the search
  /// exceeds PCRE2's limit of steps (a pattern made to take exponential time).
  bool find(std::string_view text, std::size_t from, RegexScratch& scratch, Match& match) const;

  [[nodiscard]] const std::string& pattern() const noexcept { return pattern_; }
  [[nodiscard]] Kind kind() const noexcept { return kind_; }

 private:
  std::string pattern_;  // as the file has it
  Kind kind_;
  std::string place_;
  UniqueHandle<RegexCodeTraits> code_;
  bool compiled_to_machine_code_ = false;
};

/// Calls `visit` with each match in `text` (UTF-8) from left to right, as Oniguruma's iterator
/// meets them: an empty match right after a match does not count.
template <class Visit>
void for_each_match(const Regex& regex, std::string_view text, RegexScratch& scratch, Visit visit) {
  constexpr std::size_t kNone = std::string_view::npos;
  std::size_t from = 0, last_end = kNone;
  Regex::Match match{};
  while (from <= text.size() && regex.find(text, from, scratch, match)) {
    if (match.begin == match.end && match.end == last_end) {
      if (from >= text.size()) return;
      from += static_cast<std::size_t>(utf8_length(text.substr(from)));
      continue;
    }
    visit(match);
    from = last_end = match.end;
  }
}

}  // namespace trireme
