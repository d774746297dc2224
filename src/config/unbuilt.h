#pragma once
// What the contract names and this version does not do: the lists in unbuilt.cc.

#include <string_view>

#include "base/json.h"

namespace trireme {

inline constexpr const char* kNotInThisVersion = "not in this version";

/// A key of the contract that this version does not have, or of a section that it does not have.
bool is_future_key(std::string_view path);

/// A value of the contract that this version does not have, of a key that it has.
bool is_future_value(std::string_view path, const Json& value);

}  // namespace trireme
