#pragma once
// Conversations as text: the chat templates that are built in, and which of a text's bytes are the
// assistant's. Texts are those of transformers' apply_chat_template with the models' own templates,
// the assistant's parts those that trl's templates for training mark.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
  std::optional<std::string> reasoning = {};  ///< "reasoning_content"; of qwen3 alone
};

/// A conversation as a template writes it.
struct ChatText {
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  std::string text;
  /// Bytes of the assistant, what ends its turns included; ascending, none empty.
  std::vector<Range> answers;
};

/// What a conversation is rendered for.
enum class ChatPurpose {
  kTraining,    ///< all turns; qwen3 writes the thoughts of each, as trl trains it
  kGeneration,  ///< the header of the assistant's next turn follows; qwen3 leaves old thoughts out
};

/// Immutable. By name: chatml (Qwen3's of 2507 too), llama3, llama3.1 (with the date that its
/// template falls back on), qwen2, qwen2.5, qwen3, gemma (1 and 2), gemma3, mistral (v1's
/// "[INST] ") and mistral-v3.
class ChatTemplate {
 public:
  /// In the order in which errors list them.
  static std::vector<std::string> names();
  /// `bos` and `eos`: the texts of the tokens that begin and end a text, for templates that write
  /// them. Throws ConfigError for another name.
  ChatTemplate(const std::string& name, std::string bos, std::string eos);

  [[nodiscard]] const std::string& name() const { return name_; }
  /// The token that ends the assistant's turn.
  [[nodiscard]] std::string_view end_of_turn() const;
  /// What is wrong with message `index`: an order of roles that the template refuses, thoughts that
  /// it does not know; "" where nothing is.
  [[nodiscard]] std::string fault_of(std::span<const ChatMessage> messages,
                                     std::size_t index) const;
  /// Of messages without fault, at least one.
  [[nodiscard]] ChatText render(std::span<const ChatMessage> messages, ChatPurpose purpose) const;

 private:
  enum class Kind {
    kChatMl,
    kLlama3,
    kLlama31,
    kQwen2,
    kQwen25,
    kQwen3,
    kGemma,
    kGemma3,
    kMistral,
    kMistralV3
  };
  struct Named {
    std::string_view name;
    Kind kind;
  };
  static const std::vector<Named>& all();
  [[nodiscard]] bool alternates() const;
  /// What stands before the turns, and takes the system's message where that is no turn of its own.
  [[nodiscard]] std::string opening(std::span<const ChatMessage>& messages) const;
  [[nodiscard]] std::string header_of(std::string_view role) const;
  [[nodiscard]] std::string body_of(const ChatMessage& message) const;

  std::string name_, bos_, eos_;
  Kind kind_;
};

}  // namespace trireme
