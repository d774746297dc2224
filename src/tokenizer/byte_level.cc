#include "tokenizer/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace trireme {

namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr std::uint32_t kOthersBegin = 0x100;
constexpr int kOthers = 68;

struct Alphabet {
  std::array<std::uint32_t, 256> character{};
  std::array<unsigned char, kOthersBegin + kOthers> byte{};
  std::array<bool, kOthersBegin + kOthers> known{};
};

constexpr Alphabet kAlphabet = [] {
  Alphabet made;
  std::uint32_t other = kOthersBegin;
  for (int byte = 0; byte < 256; ++byte) {
    const std::uint32_t character =
        stands_for_itself(byte) ? static_cast<std::uint32_t>(byte) : other++;
    made.character[static_cast<std::size_t>(byte)] = character;
    made.byte[character] = static_cast<unsigned char>(byte);
    made.known[character] = true;
  }
  return made;
}();

}  // namespace

std::uint32_t byte_level_character(unsigned char byte) noexcept {
  return kAlphabet.character[byte];
}

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes)
    utf8_append(text, byte_level_character(static_cast<unsigned char>(byte)));
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const int length = utf8_length(text);
    if (length == 0) return std::nullopt;
    const std::uint32_t character = utf8_decode(text);
    if (character >= kAlphabet.known.size() || !kAlphabet.known[character]) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[character]);
    text.remove_prefix(static_cast<std::size_t>(length));
  }
  return bytes;
}

}  // namespace trireme
