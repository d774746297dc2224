#pragma once
// Which keys of a Hugging Face config mean what to us.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"

namespace trireme {

enum class KeyUse : std::uint8_t {
  kRead,     ///< decides the model
  kPass,     ///< without effect on training
  kDropout,  ///< a rate that is not applied: one note when it is above 0
  kFixed,    ///< a feature that we lack: only `inactive` values pass
};

struct ModelKey {
  std::string_view name;
  KeyUse use;
  std::string_view inactive =
      "";  ///< JSON array of the values that switch the feature off; null always does
};

/// What transformers 5 takes for a missing key; -1: none.
struct TokenDefaults {
  std::int64_t bos, eos;
};
TokenDefaults default_tokens(Family family);

/// nullptr where the family does not know the key.
const ModelKey* find_model_key(Family family, std::string_view name);

/// The family's name of a key that it also takes under another ("hidden_size" of gpt2: "n_embd").
std::string_view own_name(Family family, std::string_view name);

/// The nearest key of the family to an unknown one; "" where nothing is near.
std::string nearest_model_key(Family family, std::string_view name);

/// The model_types of this version.
std::vector<std::string> family_names();

/// Whether a model_type is one that later versions will have.
bool is_future_family(std::string_view model_type);

/// From a model_type; nothing where the family is not in this version.
std::optional<Family> family_of(std::string_view model_type);

}  // namespace trireme
