#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace trireme {

namespace {

bool is_white_space(std::uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::size_t last_character_begin(std::string_view text) {
  std::size_t i = text.size() - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
  return i;
}

std::size_t white_space_begin(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t begin = last_character_begin(text.substr(0, end));
    if (!is_white_space(utf8_decode(text.substr(begin)))) break;
    end = begin;
  }
  return end;
}

std::size_t white_space_end(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && is_white_space(utf8_decode(text.substr(end)))) {
    end += static_cast<std::size_t>(utf8_length(text.substr(end)));
  }
  return end;
}

/// Alphabetic, mark, decimal digit, connector or joiner: \w of the Rust regex crate.
bool is_word(std::string_view character) {
  static const Regex word(
      R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d})"
      R"(\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}])",
      Regex::Kind::kPattern, "word characters");
  RegexScratch scratch;
  Regex::Match match{};
  std::string older;
  if (replace_young_characters(character, older)) character = older;
  return word.find(character, 0, scratch, match);
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word(text.substr(last_character_begin(text)));
}
bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word(text.substr(0, static_cast<std::size_t>(utf8_length(text))));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), nodes_(1) {
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    std::int32_t node = 0;
    expect(!tokens_[t].content.empty(), "an added token without text");
    first_bytes_[static_cast<unsigned char>(tokens_[t].content[0])] = true;
    for (const char c : tokens_[t].content) {
      const auto byte = static_cast<unsigned char>(c);
      auto& next = nodes_[static_cast<std::size_t>(node)].next;
      const auto found =
          std::find_if(next.begin(), next.end(), [&](const auto& e) { return e.first == byte; });
      if (found != next.end()) {
        node = found->second;
        continue;
      }
      const auto made = static_cast<std::int32_t>(nodes_.size());
      next.emplace_back(byte, made);
      nodes_.emplace_back();
      node = made;
    }
    Node& last = nodes_[static_cast<std::size_t>(node)];
    if (last.token < 0) last.token = static_cast<std::int32_t>(t);
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  std::int32_t at = 0;
  for (const char c : text) {
    const auto& next = nodes_[static_cast<std::size_t>(at)].next;
    const auto found = std::find_if(next.begin(), next.end(), [&](const auto& e) {
      return e.first == static_cast<unsigned char>(c);
    });
    if (found == next.end()) break;
    at = found->second;
    const Node& node = nodes_[static_cast<std::size_t>(at)];
    if (node.token >= 0) longest = &tokens_[static_cast<std::size_t>(node.token)];
  }
  return longest;
}

void AddedTokenFinder::split(std::string_view text, std::vector<Piece>& pieces) const {
  std::size_t done = 0, at = 0;
  while (at < text.size()) {
    if (!first_bytes_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;  // also past an occurrence that the flags reject
    if (token->single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      continue;
    }
    // White space that is taken already is not looked at again: a run of tokens stays linear.
    if (token->strips_left && begin > done)
      begin = done + white_space_begin(text.substr(done, begin - done));
    if (token->strips_right) {
      const std::size_t from = std::max(end, done);
      end = from + white_space_end(text.substr(from));
    }
    if (done < begin) pieces.push_back({text.substr(done, begin - done), -1});
    pieces.push_back({text.substr(begin, std::max(begin, end) - begin), token->id});
    done = std::max(done, end);
  }
  if (done < text.size()) pieces.push_back({text.substr(done), -1});
}

}  // namespace trireme
