#pragma once
// Several files and overrides made one: later wins, objects merge, arrays replace, null removes.

#include <string>
#include <string_view>
#include <vector>

#include "config/problem.h"

namespace trireme {

/// `over` laid on `base` (RFC 7396). Inside "model" a null stays: there it is a value, as in a
/// Hugging Face config. An object laid on a "model" path overrides keys of that file.
void merge_config(Json& base, const Json& over);

/// "key.path=value", the value JSON where it parses and text where it does not.
void apply_override(Json& config, std::string_view text, std::vector<Problem>& problems);

}  // namespace trireme
