#pragma once
// What the contract names and this version does not do: the list in unbuilt.cc.

#include <string>
#include <string_view>
#include <vector>

#include "config/problem.h"
#include "config/run_config.h"

namespace trireme {

/// The values that work, as JSON text; none: the key may not be written at all.
struct Unbuilt {
  std::string_view path;
  std::vector<std::string_view> built;
};
const std::vector<Unbuilt>& unbuilt_features();

inline constexpr const char* kNotInThisVersion = "not in this version";

/// A key of the contract that this version does not have, or of a section that it does not have.
bool is_future_key(std::string_view path);

/// A value of the contract that this version does not have, of a key that it has.
bool is_future_value(std::string_view path, const Json& value);

/// Appends a problem for each key of `given` (the merged file) that asks for one.
void check_unbuilt(const Json& given, std::vector<Problem>& problems);

}  // namespace trireme
