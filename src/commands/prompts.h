#pragma once
// What `train generate` continues: prompts of the command line, a file or standard input.

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

/// Exactly one of them is given.
struct PromptOptions {
  std::string text, ids;            ///< of one prompt
  std::string text_file, ids_file;  ///< one a line; "-" is standard input
  [[nodiscard]] bool as_ids() const { return !ids.empty() || !ids_file.empty(); }
};

struct Prompt {
  std::string where;  ///< "--prompt", "FILE: line 3"
  std::string text;   ///< "" where it was given as ids
  std::vector<std::int32_t> tokens;
};

/// The prompts as texts or lists of ids, without tokens. Of rank 0: standard input is there alone.
/// Throws ConfigError (DataError for a file that cannot be read).
std::vector<Prompt> read_prompts(const PromptOptions& options);
/// What prompts of text are encoded by.
struct PromptEncoder {
  const Tokenizer* tokenizer = nullptr;  ///< null: prompts are ids
  /// Prompts are a message of the user, or a JSON array of {role, content} whose last one is; null:
  /// the text as it is.
  const ChatTemplate* chat = nullptr;
};
/// Their tokens. ConfigError for a prompt that is empty, has an id that the model does not, or
/// leaves no room for so many tokens more, and for messages that the template refuses.
void tokenize_prompts(std::vector<Prompt>& prompts, const PromptEncoder& encoder,
                      const ModelConfig& model, std::int64_t new_tokens);

}  // namespace trireme
