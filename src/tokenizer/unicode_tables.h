#pragma once
// What Hugging Face `tokenizers` 0.23 knows of Unicode, where PCRE2 and utf8proc know more or less.
// Measured, not copied: scripts/make_unicode_tables.py.

#include <cstdint>
#include <span>

namespace trireme {

struct CodePointRange {
  std::uint32_t first, last;  ///< both belong to the range
};

/// Characters that Unicode 14 to 16 added. Old PCRE2 takes them for unassigned; `stand_in` is an
/// older character of the same general category and the same length in UTF-8.
struct StandInRange {
  std::uint32_t first, last, stand_in;
};

/// Ascending, not overlapping.
std::span<const StandInRange> stand_in_ranges();

/// Characters that an NFC younger than the peer's (Unicode 9) moves or composes. Ascending.
std::span<const CodePointRange> nfc_inert_ranges();

}  // namespace trireme
