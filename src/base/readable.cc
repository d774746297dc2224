#include "base/readable.h"

#include <fmt/core.h>

#include "base/utf8.h"

namespace trireme {

namespace {

bool is_control(std::uint32_t character) {
  return character < 0x20 || (character >= 0x7F && character < 0xA0);
}

void append_readable(std::string& out, std::string_view text, LineFeeds line_feeds) {
  while (!text.empty()) {
    const int length = utf8_length(text);
    const bool kept = text[0] == '\n' && line_feeds == LineFeeds::kKept;
    if (length > 0 && (kept || !is_control(utf8_decode(text)))) {
      out += text.substr(0, static_cast<std::size_t>(length));
      text.remove_prefix(static_cast<std::size_t>(length));
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    }
  }
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string readable(std::string_view text, LineFeeds line_feeds, std::size_t bytes_max) {
  std::string out;
  if (text.size() <= bytes_max) {
    append_readable(out, text, line_feeds);
    return out;
  }
  std::size_t begin = bytes_max - bytes_max / 3, end = text.size() - bytes_max / 3;
  while (begin > 0 && continues_character(text[begin])) --begin;  // whole characters
  while (end < text.size() && continues_character(text[end])) ++end;
  append_readable(out, text.substr(0, begin), line_feeds);
  out += fmt::format(" [{} bytes] ", end - begin);
  append_readable(out, text.substr(end), line_feeds);
  return out;
}

}  // namespace trireme
