#include "tokenizer/replacement.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace trireme {

Replacement::Replacement(std::string literal, std::string content)
    : pattern_(std::move(literal)), content_(std::move(content)) {}

Replacement::Replacement(Regex pattern, std::string content)
    : pattern_(pattern.pattern()), content_(std::move(content)), regex_(std::move(pattern)) {}

double Replacement::growth() const {
  const auto written = static_cast<double>(content_.size());
  if (regex_) return 1 + written;  // what it matches may be empty
  return std::max(1.0, written / static_cast<double>(pattern_.size()));
}

bool Replacement::apply(std::string_view text, RegexScratch& scratch, std::string& out) const {
  std::size_t done = 0, found = 0;
  out.clear();
  const auto replace = [&](std::size_t begin, std::size_t end) {
    out.append(text, done, begin - done).append(content_);
    done = end;
    ++found;
  };
  if (regex_) {
    std::string older;
    const std::string_view classed = replace_young_characters(text, older) ? older : text;
    for_each_match(*regex_, classed, scratch,
                   [&](const Regex::Match& match) { replace(match.begin, match.end); });
  } else {
    for (std::size_t at = 0; (at = text.find(pattern_, at)) != std::string_view::npos;) {
      replace(at, at + pattern_.size());
      at = done;
    }
  }
  if (found == 0) return false;
  out.append(text, done);
  return true;
}

}  // namespace trireme
