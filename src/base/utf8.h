#pragma once
// UTF-8 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

/// Bytes of the character at the begin of `text`; 0 where that is none.
int utf8_length(std::string_view text) noexcept;

/// The first character of `text`, which must be valid; its length is utf8_length(text).
std::uint32_t utf8_decode(std::string_view text) noexcept;

void utf8_append(std::string& text, std::uint32_t code_point);

/// Bytes of the longest valid prefix.
std::size_t utf8_valid_prefix(std::string_view text) noexcept;

/// The text with U+FFFD for each byte that belongs to no character.
std::string valid_utf8(std::string_view bytes);

/// Where the text's plain ASCII begin ends (its size where it is all ASCII).
std::size_t ascii_prefix(std::string_view text) noexcept;

}  // namespace trireme
