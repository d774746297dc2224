#pragma once
// Reading a number or nothing: no coercion of reals, strings, booleans or what does not fit.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace trireme {

/// An integer as JSON Schema means it: 3, 3.0 and 3e2, not 3.5, "3" or true; reals up to 2^53 only,
/// above which they no longer name one integer.
std::optional<std::int64_t> exact_integer(const Json& value);

/// A finite number.
std::optional<double> finite_number(const Json& value);

/// Reads a file that a person wrote: comments allowed, duplicate keys noted, at most 1 MiB and
/// 10,000 keys (a hostile file has more, and keys are looked up one by one). A number too large for
/// a double (1e400) becomes a marked value that no field takes, instead of ending the parse: it is
/// then reported with its path, beside all other faults. Throws DataError where the file cannot be
/// read, ConfigError where it is not JSON.
Json read_config_file(const std::filesystem::path& file, std::vector<std::string>& duplicates);

/// The digits of such a marked value.
std::optional<std::string> overflowed_number(const Json& value);

}  // namespace trireme
