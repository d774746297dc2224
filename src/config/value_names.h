#pragma once
// What an illegal value was probably meant to be: other systems' words and spellings.

#include <string>
#include <string_view>

#include "config/fields.h"

namespace trireme {

/// Our word of what `word` means elsewhere for a choice ("gpu" of run.device is "cuda", "fp16" of
/// precision.compute is "bf16"), else the word nearest to it by spelling; "" where none comes to
/// mind. `path` may name a key of a model, too ("model.hidden_act").
std::string nearest_choice(std::string_view path, std::string_view word,
                           const std::vector<std::string>& words);

/// The legal value nearest to one that is not; "" where that cannot be found out. As JSON text.
std::string nearest_value(const Field& field, const Json& value);

/// What another system's key asks for, in our key: identity for most, "bf16": true is
/// precision.compute "bf16". "" where it does not translate. As JSON text.
std::string translated_value(const Field& field, std::string_view name, const Json& value);

}  // namespace trireme
