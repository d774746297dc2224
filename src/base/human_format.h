#pragma once
// Numbers as people read them in tables and log lines. Machines read metrics.jsonl.

#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

/// Three digits with k, M, B, T (powers of 1000): "0", "999", "1.23M", "12.3k", "-4.56B".
std::string format_count(double value);

/// Three digits with binary units: "0 B", "1023 B", "12.3 GiB".
std::string format_bytes(std::int64_t bytes);

/// Two units: "0s", "0.25s" below ten seconds, "45s", "3m07s", "1h02m", "2d03h"; "?": not finite.
std::string format_duration(double seconds);

/// "1 rank", "3 micro-batches", "1,200 entries": a number with its noun, given in the singular.
std::string counted(std::int64_t count, std::string_view noun);

/// "1,234,567"
std::string format_integer(std::int64_t value);

}  // namespace trireme
