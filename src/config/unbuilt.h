#pragma once
// What the contract names and this version does not do: the list in unbuilt.cc.

#include <string_view>

namespace trireme {

inline constexpr const char* kNotInThisVersion = "not in this version";

/// A key of the contract that this version does not have, or of a section that it does not have.
bool is_future_key(std::string_view path);

}  // namespace trireme
