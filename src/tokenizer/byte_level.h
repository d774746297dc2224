#pragma once
// The alphabet of byte-level BPE (GPT-2): each byte is one printable character, so that tokens are
// readable in JSON. Printable Latin-1 stands for itself, the other 68 bytes are U+0100 and on.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// The character that stands for a byte.
std::uint32_t byte_level_character(unsigned char byte) noexcept;

std::string to_byte_level(std::string_view bytes);

/// nullopt where a character is not of the alphabet (or the text is no UTF-8).
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace trireme
