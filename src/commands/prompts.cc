#include "commands/prompts.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "commands/text_input.h"
#include "config/problem.h"
#include "tokenizer/conversations.h"

namespace trireme {

namespace {

constexpr std::size_t kBytesMax = std::size_t{1} << 30;

std::vector<Prompt> read_lines(const std::string& file) {
  const std::string text = read_text_input(file, kBytesMax);
  const std::string source = file == "-" ? "standard input" : file;
  std::vector<Prompt> prompts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    prompts.push_back(
        {fmt::format("{}: line {}", source, prompts.size() + 1), std::string(line), {}});
    begin = end + 1;
  }
  if (prompts.empty()) throw ConfigError("{}: has no line (one prompt a line)", source);
  return prompts;
}

std::vector<std::int32_t> parse_ids(const Prompt& prompt) {
  std::vector<std::int32_t> ids;
  const char* at = prompt.text.data();
  const char* end = at + prompt.text.size();
  while (at < end) {
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next != end && *next != ',') || next + 1 == end) {
      throw ConfigError("{}: \"{}\" is not a list of ids such as 1,2,3", prompt.where, prompt.text);
    }
    ids.push_back(id);
    at = next == end ? end : next + 1;
  }
  return ids;
}

/// The array, where the text is one of objects; anything else is said by the user.
Json messages_in(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || text[begin] != '[') return {};
  try {
    Json json = parse_json(text, "");
    const bool is_messages = !json.as_array().empty() && json.as_array().front().is_object();
    return is_messages ? json : Json();
  } catch (const Error&) {
    return {};
  }
}

std::string as_conversation(const Prompt& prompt, const ChatTemplate& chat) {
  std::vector<ChatMessage> messages = {{"user", prompt.text}};
  if (const Json json = messages_in(prompt.text); json.is_array()) {
    try {
      messages = read_messages(json, chat, prompt.where + ": messages");
    } catch (const DataError& fault) {
      throw ConfigError("{}", fault.what());
    }
  }
  if (messages.back().role != "user") {
    throw ConfigError("{}: the last message is the {}'s; the answer is to one of the user",
                      prompt.where, messages.back().role);
  }
  return chat.render(messages, ChatPurpose::kGeneration).text;
}

void check(const Prompt& prompt, const ModelConfig& model, std::int64_t new_tokens) {
  if (prompt.tokens.empty())
    throw ConfigError("{}: the prompt has no tokens (there is nothing to continue)", prompt.where);
  for (const std::int32_t id : prompt.tokens) {
    if (id < 0 || id >= model.vocab_size) {
      throw ConfigError("{}: token id {} of the prompt is outside of the vocabulary of {}",
                        prompt.where, id, model.vocab_size);
    }
  }
  const std::int64_t size = std::ssize(prompt.tokens), total = size + new_tokens;
  if (model.learned_positions && total > model.max_positions) {
    throw ConfigError(
        "{}: prompt and continuation need {} positions, the model has {} (its positions are "
        "learned). Use --max-new-tokens {} or less.",
        prompt.where, total, model.max_positions,
        std::max<std::int64_t>(0, model.max_positions - size));
  }
}

}  // namespace

std::vector<Prompt> read_prompts(const PromptOptions& options) {
  if (!options.text_file.empty()) return read_lines(options.text_file);
  if (!options.ids_file.empty()) return read_lines(options.ids_file);
  if (options.as_ids()) return {{"--token-ids", options.ids, {}}};
  return {{"--prompt", options.text, {}}};
}

void tokenize_prompts(std::vector<Prompt>& prompts, const PromptEncoder& encoder,
                      const ModelConfig& model, std::int64_t new_tokens) {
  const auto encode = [&](const Prompt& prompt) {
    if (encoder.tokenizer == nullptr) return parse_ids(prompt);
    if (encoder.chat == nullptr) return encoder.tokenizer->encode(prompt.text);
    return encoder.tokenizer->encode(as_conversation(prompt, *encoder.chat));
  };
  for (Prompt& prompt : prompts) {
    prompt.tokens = encode(prompt);
    check(prompt, model, new_tokens);
    if (encoder.tokenizer == nullptr) prompt.text.clear();
  }
}

}  // namespace trireme
