#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "tokenizer/unicode.h"

namespace trireme {

namespace {

// In each of these no alternative matches a line feed followed by a letter, and a line feed after
// something that is no white space ends its match at the letter whatever follows. So "x\na" always
// divides before the a, and both sides split as they would alone.
constexpr std::array<std::string_view, 3> kLineBreakPatterns = {
    kGpt2Pattern,
    // Llama 3
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // Qwen 2 and 3
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_printable(char c) { return c > ' ' && c < 0x7F; }

using Part = PreTokenizer::Scratch::Part;
using Range = PreTokenizer::Range;

/// All of the range, in matches and what lies between.
void find_parts(const Regex& regex, std::string_view text, RegexScratch& scratch,
                std::vector<Part>& parts) {
  parts.clear();
  std::size_t done = 0;
  for_each_match(regex, text, scratch, [&](const Regex::Match& match) {
    if (done < match.begin) parts.push_back({{done, match.begin}, false});
    parts.push_back({{match.begin, match.end}, true});
    done = match.end;
  });
  if (done < text.size()) parts.push_back({{done, text.size()}, false});
}

void merge_with_previous(std::vector<Part>& parts) {
  std::size_t kept = 0;
  bool previous_match = false;
  for (const Part part : parts) {
    if (part.is_match && !previous_match && kept > 0) {
      parts[kept - 1].range.end = part.range.end;
    } else {
      parts[kept++] = part;
    }
    previous_match = part.is_match;
  }
  parts.resize(kept);
}

void merge_with_next(std::vector<Part>& parts) {
  std::size_t kept = parts.size();
  bool previous_match = false;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const Part part = parts[i];
    if (part.is_match && !previous_match && kept < parts.size()) {
      parts[kept].range.begin = part.range.begin;
    } else {
      parts[--kept] = part;
    }
    previous_match = part.is_match;
  }
  parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(kept));
}

void merge_alike(std::vector<Part>& parts) {
  std::size_t kept = 0;
  for (const Part part : parts) {
    if (kept > 0 && parts[kept - 1].is_match == part.is_match) {
      parts[kept - 1].range.end = part.range.end;
    } else {
      parts[kept++] = part;
    }
  }
  parts.resize(kept);
}

}  // namespace

void PreTokenizer::add_split(Regex regex, SplitBehavior behavior, SplitMatches matches) {
  const bool divides = std::find(kLineBreakPatterns.begin(), kLineBreakPatterns.end(),
                                 regex.pattern()) != kLineBreakPatterns.end();
  const bool every_piece_stays =
      behavior == SplitBehavior::kIsolated ||
      (behavior == SplitBehavior::kRemoved && matches == SplitMatches::kArePieces);
  divides_lines_ |= divides;
  if (!every_piece_stays || (!divides && regex.pattern() != kDigitPattern))
    keeps_lines_apart_ = false;
  steps_.emplace_back(Split{std::move(regex), behavior, matches});
}

void PreTokenizer::add_prefix_space() {
  keeps_lines_apart_ = false;
  steps_.emplace_back(PrefixSpace{});
}

void PreTokenizer::add_metaspace(Metaspace metaspace) {
  keeps_lines_apart_ = false;
  steps_.emplace_back(std::move(metaspace));
}

bool PreTokenizer::rewrites() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const auto& step) { return !std::holds_alternative<Split>(step); });
}

bool PreTokenizer::never_divides(std::string_view without) const {
  return std::all_of(steps_.begin(), steps_.end(), [&](const auto& step) {
    const auto* split = std::get_if<Split>(&step);
    return split != nullptr && split->regex.kind() == Regex::Kind::kLiteral &&
           split->regex.pattern() == without && split->matches == SplitMatches::kAreDelimiters;
  });
}

void PreTokenizer::split_range(const Split& step, std::string_view classed, Range range,
                               Scratch& scratch) {
  std::vector<Part>& parts = scratch.parts;
  find_parts(step.regex, classed.substr(range.begin, range.end - range.begin), scratch.regex,
             parts);
  if (step.matches == SplitMatches::kArePieces) {
    for (Part& part : parts) part.is_match = !part.is_match;
  }
  switch (step.behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.is_match; });
      break;
    case SplitBehavior::kMergedWithPrevious:
      merge_with_previous(parts);
      break;
    case SplitBehavior::kMergedWithNext:
      merge_with_next(parts);
      break;
    case SplitBehavior::kContiguous:
      merge_alike(parts);
      break;
    case SplitBehavior::kIsolated:
      break;
  }
  for (const Part& part : parts) {
    if (part.range.begin == part.range.end) continue;
    scratch.next.push_back({range.begin + part.range.begin, range.begin + part.range.end});
  }
}

void PreTokenizer::prefix_spaces(std::string_view text, std::string_view classed,
                                 Scratch& scratch) {
  std::string spaced, spaced_classed;
  for (const Range& range : scratch.ranges) {
    const std::size_t begin = spaced.size();
    if (text[range.begin] != ' ') {
      spaced += ' ';
      spaced_classed += ' ';
    }
    spaced += text.substr(range.begin, range.end - range.begin);
    spaced_classed += classed.substr(range.begin, range.end - range.begin);
    scratch.next.push_back({begin, spaced.size()});
  }
  scratch.spaced = std::move(spaced);
  scratch.spaced_classed = std::move(spaced_classed);
}

void PreTokenizer::write_marks(const Metaspace& step, std::string_view text,
                               std::string_view classed, Before before, Scratch& scratch) {
  std::string spaced, spaced_classed;
  const std::string& mark = step.mark;
  for (const Range& range : scratch.ranges) {
    const std::size_t begin = spaced.size();
    const std::string_view piece = text.substr(range.begin, range.end - range.begin);
    const bool is_first = &range == scratch.ranges.data() && range.begin == 0;
    const bool is_marked = piece.starts_with(' ') || piece.starts_with(mark);
    const bool may_mark =
        step.prepend == Metaspace::Prepend::kAlways
            ? !is_first || before != Before::kText
            : step.prepend == Metaspace::Prepend::kFirst && is_first && before == Before::kNothing;
    std::vector<Part>& parts = scratch.parts;
    parts.clear();
    const auto add_mark = [&] {
      parts.push_back({{spaced.size(), spaced.size() + mark.size()}, true});
      spaced += mark;
      spaced_classed += mark;
    };
    if (may_mark && !is_marked) add_mark();
    for (std::size_t at = range.begin; at < range.end;) {
      const bool blank = text[at] == ' ';
      if (blank || text.substr(at, range.end - at).starts_with(mark)) {
        add_mark();
        at += blank ? 1 : mark.size();
        continue;
      }
      if (parts.empty() || parts.back().is_match)
        parts.push_back({{spaced.size(), spaced.size()}, false});
      spaced += text[at];
      spaced_classed += classed[at];
      parts.back().range.end = spaced.size();
      ++at;
    }
    if (step.splits) {
      merge_with_next(parts);
      for (const Part& part : parts) scratch.next.push_back(part.range);
    } else {
      scratch.next.push_back({begin, spaced.size()});
    }
  }
  scratch.spaced = std::move(spaced);
  scratch.spaced_classed = std::move(spaced_classed);
}

std::string_view PreTokenizer::split(std::string_view text, Before before, Scratch& scratch) const {
  std::string_view classed = text;
  if (!steps_.empty() && replace_young_characters(text, scratch.classed)) classed = scratch.classed;
  scratch.ranges.clear();
  if (!text.empty()) scratch.ranges.push_back({0, text.size()});
  for (const auto& step : steps_) {
    scratch.next.clear();
    if (const auto* split = std::get_if<Split>(&step)) {
      for (const Range& range : scratch.ranges) split_range(*split, classed, range, scratch);
    } else {
      if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
        write_marks(*metaspace, text, classed, before, scratch);
      } else {
        prefix_spaces(text, classed, scratch);
      }
      text = scratch.spaced;
      classed = scratch.spaced_classed;
    }
    scratch.ranges.swap(scratch.next);
  }
  return text;
}

Json PreTokenizer::describe() const {
  Json steps = Json::array();
  for (const auto& step : steps_) {
    Json::Array parts;
    if (const auto* split = std::get_if<Split>(&step)) {
      const bool literal = split->regex.kind() == Regex::Kind::kLiteral;
      parts = {Json(literal ? "split_literal" : "split"), Json(split->regex.pattern()),
               Json(static_cast<int>(split->behavior)), Json(static_cast<int>(split->matches))};
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      parts = {Json("metaspace"), Json(metaspace->mark), Json(static_cast<int>(metaspace->prepend)),
               Json(metaspace->splits)};
    } else {
      parts = {Json("prefix_space")};
    }
    steps.push_back(Json(std::move(parts)));
  }
  return steps;
}

std::size_t PreTokenizer::split_position(std::string_view text, std::size_t from) const {
  if (!divides_lines_ || !keeps_lines_apart_) return std::string_view::npos;
  while (true) {
    const std::size_t line_feed = text.find('\n', std::max<std::size_t>(from, 1));
    if (line_feed == std::string_view::npos || line_feed + 1 >= text.size())
      return std::string_view::npos;
    if (is_ascii_printable(text[line_feed - 1]) && is_ascii_letter(text[line_feed + 1]))
      return line_feed + 1;
    from = line_feed + 1;
  }
}

}  // namespace trireme
