#pragma once
// Which chat template a model has, by the files beside its tokenizer.json.

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

/// XXH3-128 of a Jinja template without what does not change its output: a line feed in it is
/// written as such or as \n, and white space behind the end is dropped.
std::string chat_template_hash(std::string_view jinja);

/// The built-in template that writes what models' own templates of this hash write.
std::optional<std::string_view> known_chat_template(std::string_view hash);

/// The template named `name`; where that is empty, the model's: chat_template.jinja beside the
/// tokenizer's file, chat_template.json, or "chat_template" of tokenizer_config.json, which also
/// names the tokens that begin and end a text. Throws ConfigError naming what is legal where there
/// is none or it is not built in, DataError for files that cannot be read.
ChatTemplate choose_chat_template(const Tokenizer& tokenizer, const std::string& name);

}  // namespace trireme
