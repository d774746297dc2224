#pragma once
// What `train generate` prints: texts, ids or JSON, in order of the prompts.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "commands/prompts.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

enum class AnswerForm : std::uint8_t {
  kPlain,  ///< prompt and continuation; ids joined by commas where the prompt was ids
  kReply,  ///< the continuation alone, of a chat
  kJson,   ///< a line {prompt, text, token_ids, new_tokens} each
};

/// Answers are numbered by prompt, and `samples` by sample of one. A single one's text is printed
/// as it comes; of several, each when it and those before it have ended.
class Answers {
 public:
  /// References must outlive it. `tokenizer`: null for prompts of ids.
  Answers(const std::vector<Prompt>& prompts, std::int64_t samples, AnswerForm form,
          const Tokenizer* tokenizer, std::vector<std::int64_t> end_tokens);
  void add(std::size_t answer, std::int32_t token);
  void end(std::size_t answer);

 private:
  struct Answer {
    std::vector<std::int32_t> added;
    bool ended = false;
  };
  [[nodiscard]] const Prompt& prompt_of(std::size_t answer) const {
    return prompts_[answer / samples_];
  }
  /// Nothing of one that ends a text.
  [[nodiscard]] std::string text_of(std::int32_t token) const;
  [[nodiscard]] std::string text_of(const Answer& answer) const;
  void print(std::size_t index) const;
  /// Of the only answer; bytes of a character that is not whole wait for the rest.
  void stream(std::string_view bytes);

  const std::vector<Prompt>& prompts_;
  const std::size_t samples_;
  const AnswerForm form_;
  const Tokenizer* tokenizer_;
  const std::vector<std::int64_t> end_tokens_;
  std::vector<Answer> answers_;
  std::size_t printed_ = 0;
  std::string pending_;  // of a stream
};

}  // namespace trireme
