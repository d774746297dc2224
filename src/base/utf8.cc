#include "base/utf8.h"

#include <cstring>

namespace trireme {

namespace {
std::uint32_t byte_at(std::string_view text, std::size_t i) {
  return static_cast<unsigned char>(text[i]);
}
bool continues(std::string_view text, std::size_t i) { return (byte_at(text, i) & 0xC0) == 0x80; }
}  // namespace

int utf8_length(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const std::uint32_t first = byte_at(text, 0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!continues(text, i)) return 0;
  }
  const std::uint32_t second = byte_at(text, 1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second >= 0xA0;
  const bool beyond = first == 0xF4 && second >= 0x90;
  return overlong || surrogate || beyond ? 0 : static_cast<int>(length);
}

std::uint32_t utf8_decode(std::string_view text) noexcept {
  const std::uint32_t first = byte_at(text, 0);
  if (first < 0x80) return first;
  const auto low = [&](std::size_t i) { return byte_at(text, i) & 0x3F; };
  if (first < 0xE0) return (first & 0x1F) << 6 | low(1);
  if (first < 0xF0) return (first & 0x0F) << 12 | low(1) << 6 | low(2);
  return (first & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3);
}

void utf8_append(std::string& text, std::uint32_t code_point) {
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3F));
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t valid = utf8_valid_prefix(bytes);
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    utf8_append(text, 0xFFFD);
    bytes.remove_prefix(1);
  }
  return text;
}

std::size_t ascii_prefix(std::string_view text) noexcept {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < text.size() && byte_at(text, i) < 0x80) ++i;
  return i;
}

std::size_t utf8_valid_prefix(std::string_view text) noexcept {
  std::size_t i = 0;
  while (i < text.size()) {
    if (byte_at(text, i) < 0x80) {
      i += ascii_prefix(text.substr(i));
      continue;
    }
    const int length = utf8_length(text.substr(i));
    if (length == 0) return i;
    i += static_cast<std::size_t>(length);
  }
  return i;
}

}  // namespace trireme
