#pragma once
// What a sweep trains: every combination of the values of some keys. Pure text; the values are
// looked at when the configs are read.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// `--set key=A,B,C`
struct SweptKey {
  std::string key;
  std::vector<std::string> values;
};

/// Splits at commas that stand in no JSON string, array or object: "[1,2],[3,4]" are two values.
/// Throws ConfigError for what is no key=value, an empty value, a bracket or quote without its end,
/// and for a value that stands twice (also as another text: 1e-4 and 0.0001).
SweptKey parse_swept_key(std::string_view text);

struct Combination {
  std::vector<std::string> overrides;  ///< "key=value" for --set, in order of the options
  std::string name;                    ///< of its folder: these joined by commas, "/" as "%2F"
};

/// All of them, the last key changing fastest. Throws ConfigError for a key that stands twice,
/// names that would be the same or too long for a file system, and more than 10,000 runs.
std::vector<Combination> combinations_of(std::span<const SweptKey> keys);

}  // namespace trireme
