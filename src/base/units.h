#pragma once
// Numbers with units, as people write them in configs and on the command line. A number is digits,
// perhaps with a fraction; one blank may stand before the unit.

#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme {

/// "4k", "1.5M", "10B", "2T": k (or K), M, B, T are 10^3, 10^6, 10^9, 10^12. Nothing for a number
/// without a unit, another unit, a count that is not whole or beyond 2^62.
std::optional<std::int64_t> parse_count(std::string_view text);
inline constexpr const char* kCountPattern = "^[0-9]+(\\.[0-9]+)? ?[kKMBT]$";

/// "80GiB", "1.5 GB": whole bytes, rounded down. KB (kB) ... TB: powers of 1000, KiB ... TiB of
/// 1024.
std::optional<std::int64_t> parse_size(std::string_view text);
inline constexpr const char* kSizePattern = "^[0-9]+(\\.[0-9]+)? ?(kB|[KMGT]i?B)$";

/// parse_size, "B" and no unit at all too. Throws ConfigError naming `what`.
std::int64_t parse_bytes(std::string_view text, std::string_view what);

}  // namespace trireme
