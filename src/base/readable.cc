#include "base/readable.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"

namespace trireme {

namespace {

bool is_control(std::uint32_t character) {
  return character < 0x20 || (character >= 0x7F && character < 0xA0);
}

/// Characters of a text as they may be shown, one after another.
class Characters {
 public:
  Characters(std::string_view text, LineFeeds line_feeds) : text_(text), line_feeds_(line_feeds) {}
  [[nodiscard]] bool done() const { return text_.empty(); }
  std::string next() {
    const int length = utf8_length(text_);
    const bool kept = text_[0] == '\n' && line_feeds_ == LineFeeds::kKept;
    if (length > 0 && (kept || !is_control(utf8_decode(text_))))
      return std::string(take(static_cast<std::size_t>(length)));
    return fmt::format("\\x{:02x}", static_cast<unsigned char>(take(1)[0]));
  }

 private:
  std::string_view take(std::size_t bytes) {
    const std::string_view taken = text_.substr(0, bytes);
    text_.remove_prefix(bytes);
    return taken;
  }
  std::string_view text_;
  LineFeeds line_feeds_;
};

/// As much of the text's begin as bytes_max bytes can show.
std::string begin_of(std::string_view text, LineFeeds line_feeds, std::size_t bytes_max) {
  std::string out;
  for (Characters characters(text, line_feeds); !characters.done();) {
    const std::string shown = characters.next();
    if (out.size() + shown.size() > bytes_max) break;
    out += shown;
  }
  return out;
}

/// As much of its end.
std::string end_of(std::string_view text, LineFeeds line_feeds, std::size_t bytes_max) {
  std::string out;
  std::vector<std::size_t> starts;  // of characters in `out`
  for (Characters characters(text, line_feeds); !characters.done();) {
    starts.push_back(out.size());
    out += characters.next();
  }
  const std::size_t surplus = out.size() > bytes_max ? out.size() - bytes_max : 0;
  const auto first = std::lower_bound(starts.begin(), starts.end(), surplus);
  return first == starts.end() ? "" : out.substr(*first);
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string readable(std::string_view text, LineFeeds line_feeds, std::size_t bytes_max) {
  if (text.size() <= bytes_max) {
    // Bytes that are named take four for one.
    std::string out = begin_of(text, line_feeds, 4 * text.size());
    if (out.size() <= bytes_max) return out;
  }
  const std::size_t end_max = bytes_max / 3, begin_max = bytes_max - end_max;
  std::size_t begin = std::min(begin_max, text.size()),
              end = text.size() - std::min(end_max, text.size());
  while (begin > 0 && begin < text.size() && continues_character(text[begin])) --begin;
  while (end < text.size() && continues_character(text[end])) ++end;  // whole characters
  const std::string first = begin_of(text.substr(0, begin), line_feeds, begin_max),
                    last = end_of(text.substr(std::max(begin, end)), line_feeds, end_max);
  return fmt::format("{} [of {} bytes] {}", first, text.size(), last);
}

}  // namespace trireme
