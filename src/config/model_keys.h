#pragma once
// Which keys of a Hugging Face config mean what to us.

#include <cstdint>
#include <string>
#include <string_view>

#include "config/families.h"

namespace trireme {

enum class KeyUse : std::uint8_t {
  kRead,     ///< decides the model
  kPass,     ///< without effect on training
  kDropout,  ///< a rate in [0, 1) (config/dropout.h)
  kFixed,    ///< a feature that we lack: only `inactive` values pass
};

struct ModelKey {
  std::string_view name;
  KeyUse use;
  std::string_view inactive =
      "";  ///< JSON array of the values that switch the feature off; null always does
  std::string_view instead = "";  ///< what is legal, where those values do not say it
};

/// nullptr where the family does not know the key.
const ModelKey* find_model_key(Family family, std::string_view name);

/// The family's name of a key that it also takes under another ("hidden_size" of gpt2: "n_embd").
std::string_view own_name(Family family, std::string_view name);

/// The nearest key of the family to an unknown one; "" where nothing is near.
std::string nearest_model_key(Family family, std::string_view name);

}  // namespace trireme
