#include "tokenizer/token_decoder.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace trireme {

namespace {

void replace_all(std::string_view literal, std::string_view content, std::string& token) {
  for (std::size_t at = 0; (at = token.find(literal, at)) != std::string::npos;
       at += content.size())
    token.replace(at, literal.size(), content);
}

void fall_back_to_byte(std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return;
  unsigned value = 0;
  const char* digits = token.data() + 3;
  const auto [end, fault] = std::from_chars(digits, digits + 2, value, 16);
  if (fault == std::errc() && end == digits + 2) token.assign(1, static_cast<char>(value));
}

void strip(std::string_view content, std::size_t start, std::size_t stop, std::string& token) {
  std::string_view kept = token;
  for (std::size_t i = 0; i < start && kept.starts_with(content); ++i)
    kept.remove_prefix(content.size());
  for (std::size_t i = 0; i < stop && kept.ends_with(content); ++i)
    kept.remove_suffix(content.size());
  token = std::string(kept);
}

}  // namespace

std::string byte_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

double TokenDecoder::growth() const {
  double growth = 1;
  for (const auto& step : steps_) {
    const auto* replace = std::get_if<Replace>(&step);
    if (replace == nullptr) continue;
    growth *= std::max(1.0, static_cast<double>(replace->content.size()) /
                                static_cast<double>(replace->literal.size()));
  }
  return growth;
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) {
    if (std::holds_alternative<Fuse>(step)) {
      std::string all;
      for (const std::string& token : tokens) all += token;
      tokens.assign(1, std::move(all));
      continue;
    }
    bool first = true;
    for (std::string& token : tokens) {
      if (const auto* replacement = std::get_if<Replace>(&step)) {
        replace_all(replacement->literal, replacement->content, token);
      } else if (const auto* cut = std::get_if<Strip>(&step)) {
        strip(cut->content, cut->start, cut->stop, token);
      } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
        replace_all(metaspace->mark, first && metaspace->drops_first ? "" : " ", token);
      } else {
        fall_back_to_byte(token);
      }
      first = false;
    }
  }
  std::string text;
  for (const std::string& token : tokens) {
    if (steps_.empty() && !text.empty()) text += ' ';
    text += token;
  }
  return text;
}

std::string TokenDecoder::text_of(std::string token) const {
  for (const auto& step : steps_) {
    if (std::holds_alternative<Fuse>(step)) break;
    if (const auto* replacement = std::get_if<Replace>(&step)) {
      replace_all(replacement->literal, replacement->content, token);
    } else if (const auto* cut = std::get_if<Strip>(&step)) {
      strip(cut->content, cut->start, cut->stop, token);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      replace_all(metaspace->mark, " ", token);
    } else {
      fall_back_to_byte(token);
    }
  }
  return token;
}

}  // namespace trireme
