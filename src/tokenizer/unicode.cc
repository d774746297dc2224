#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizer/unicode_tables.h"

namespace trireme {

namespace {

/// One bit for each 256 characters that a table touches: most text never reaches the search.
template <class Range>
std::vector<bool> blocks_of(std::span<const Range> ranges) {
  std::vector<bool> blocks(0x110000 >> 8);
  for (const Range& range : ranges) {
    for (std::uint32_t block = range.first >> 8; block <= range.last >> 8; ++block)
      blocks[block] = true;
  }
  return blocks;
}

template <class Range>
const Range* find_range(std::span<const Range> ranges, std::uint32_t point) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), point,
                       [](std::uint32_t value, const Range& r) { return value < r.first; });
  if (after == ranges.begin()) return nullptr;
  const Range& range = *(after - 1);
  return point <= range.last ? &range : nullptr;
}

/// The first place from `from` on whose character `visit` answers true for; else npos.
template <class Visit>
std::size_t find_character(std::string_view text, std::size_t from, Visit visit) {
  std::size_t i = from;
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      i += ascii_prefix(text.substr(i));
      continue;
    }
    const std::string_view rest = text.substr(i);
    if (visit(utf8_decode(rest))) return i;
    i += static_cast<std::size_t>(utf8_length(rest));
  }
  return std::string_view::npos;
}

/// Characters that NFC leaves alone beside others of this set; most text, not the whole set.
bool never_changes(std::uint32_t c) {
  return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) ||
         (c >= 0x2030 && c <= 0x205E) || (c >= 0x3000 && c <= 0x3020) ||
         (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
         (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3);
}

void append_nfc(std::string_view text, std::string& out) {
  if (text.empty()) return;
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &raw, kOptions);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(raw, &std::free);
  expect(length >= 0, "NFC of {} bytes failed: {}", text.size(), utf8proc_errmsg(length));
  out.append(reinterpret_cast<const char*>(raw), static_cast<std::size_t>(length));
}

}  // namespace

bool replace_young_characters(std::string_view text, std::string& out) {
  static const std::vector<bool> blocks = blocks_of(stand_in_ranges());
  bool replaced = false;
  std::size_t i = 0;
  while (true) {
    const StandInRange* range = nullptr;
    i = find_character(text, i, [&](std::uint32_t c) {
      if (blocks[c >> 8]) range = find_range(stand_in_ranges(), c);
      return range != nullptr;
    });
    if (i == std::string_view::npos) return replaced;
    if (!replaced) out.assign(text);
    replaced = true;
    std::string stand_in;
    utf8_append(stand_in, range->stand_in);
    out.replace(i, stand_in.size(), stand_in);
    i += stand_in.size();
  }
}

bool normalize_nfc(std::string_view text, std::string& out) {
  const auto may_change = [](std::uint32_t c) { return !never_changes(c); };
  if (find_character(text, 0, may_change) == std::string_view::npos) return false;
  // A character that the peer's tables lack neither moves nor composes: it divides the text.
  static const std::vector<bool> blocks = blocks_of(nfc_inert_ranges());
  const auto inert = [&](std::uint32_t c) {
    return blocks[c >> 8] && find_range(nfc_inert_ranges(), c) != nullptr;
  };
  out.clear();
  while (true) {
    const std::size_t cut = find_character(text, 0, inert);
    append_nfc(text.substr(0, cut), out);
    if (cut == std::string_view::npos) return true;
    const auto length = static_cast<std::size_t>(utf8_length(text.substr(cut)));
    out.append(text.substr(cut, length));
    text.remove_prefix(cut + length);
  }
}

}  // namespace trireme
