#include "tokenizer/chat_template.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/utf8.h"

namespace trireme {

namespace {

/// Bytes of a white-space character at the begin of `text` as Python's str.strip() takes it; 0.
std::size_t white_space_at(std::string_view text) {
  constexpr std::string_view kAscii = " \t\n\v\f\r\x1c\x1d\x1e\x1f";
  if (text.empty()) return 0;
  if (kAscii.find(text.front()) != std::string_view::npos) return 1;
  for (const std::string_view wide :
       {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005",
        "\u2006", "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f",
        "\u3000"}) {
    if (text.starts_with(wide)) return wide.size();
  }
  return 0;
}

std::string_view trimmed(std::string_view text) {
  while (const std::size_t bytes = white_space_at(text)) text.remove_prefix(bytes);
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(3, text.size());) {
    if (white_space_at(text.substr(text.size() - bytes)) == bytes) {
      text.remove_suffix(bytes);
      bytes = 1;
    } else {
      ++bytes;
    }
  }
  return text;
}

std::string_view without_line_feeds_before(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::string_view without_line_feeds_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

/// Qwen3's two parts of an answer.
struct Thoughts {
  std::string_view reasoning, content;
};

Thoughts thoughts_of(const ChatMessage& message) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const std::string_view content = message.content;
  if (message.reasoning) return {*message.reasoning, content};
  const std::size_t first_end = content.find(kEnd);
  if (first_end == std::string_view::npos) return {"", content};
  std::string_view reasoning = without_line_feeds_behind(content.substr(0, first_end));
  if (const std::size_t begin = reasoning.rfind(kBegin); begin != std::string_view::npos)
    reasoning.remove_prefix(begin + kBegin.size());
  return {without_line_feeds_before(reasoning),
          without_line_feeds_before(content.substr(content.rfind(kEnd) + kEnd.size()))};
}

/// The user's last message that is no answer of a tool: thoughts before it are old.
std::size_t last_query(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    const bool of_tool =
        content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role == "user" && !of_tool) return i;
  }
  return messages.size() - 1;
}

std::string thinking_body(const ChatMessage& message, bool writes_thoughts) {
  const Thoughts parts = thoughts_of(message);
  if (!writes_thoughts) return fmt::format("{}<|im_end|>\n", parts.content);
  return fmt::format("<think>\n{}\n</think>\n\n{}<|im_end|>\n",
                     without_line_feeds_before(without_line_feeds_behind(parts.reasoning)),
                     without_line_feeds_before(parts.content));
}

}  // namespace

const std::vector<ChatTemplate::Named>& ChatTemplate::all() {
  static const std::vector<Named> named = {
      {"chatml", Kind::kChatMl},       {"llama3", Kind::kLlama3},  {"llama3.1", Kind::kLlama31},
      {"qwen2", Kind::kQwen2},         {"qwen2.5", Kind::kQwen25}, {"qwen3", Kind::kQwen3},
      {"gemma", Kind::kGemma},         {"gemma3", Kind::kGemma3},  {"mistral", Kind::kMistral},
      {"mistral-v3", Kind::kMistralV3}};
  return named;
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> names;
  for (const Named& named : all()) names.emplace_back(named.name);
  return names;
}

ChatTemplate::ChatTemplate(const std::string& name, std::string bos, std::string eos)
    : name_(name), bos_(std::move(bos)), eos_(std::move(eos)), kind_(Kind::kChatMl) {
  const auto found = std::find_if(all().begin(), all().end(),
                                  [&](const Named& named) { return named.name == name; });
  if (found == all().end()) {
    const auto near = nearest_word(name, names());
    throw ConfigError("--chat-template: found \"{}\"; legal: {}{}", name, fmt::join(names(), ", "),
                      near ? "; nearest: " + *near : "");
  }
  kind_ = found->kind;
  if (end_of_turn().empty()) {
    throw ConfigError(
        "--chat-template {}: ends a turn by the end token, and the tokenizer names none. Set "
        "\"eos_token\" in its tokenizer_config.json",
        name);
  }
}

std::string_view ChatTemplate::end_of_turn() const {
  switch (kind_) {
    case Kind::kLlama3:
    case Kind::kLlama31:
      return "<|eot_id|>";
    case Kind::kGemma:
    case Kind::kGemma3:
      return "<end_of_turn>";
    case Kind::kMistral:
    case Kind::kMistralV3:
      return eos_;
    default:
      return "<|im_end|>";
  }
}

bool ChatTemplate::alternates() const {
  return kind_ == Kind::kGemma || kind_ == Kind::kGemma3 || kind_ == Kind::kMistral ||
         kind_ == Kind::kMistralV3;
}

std::string ChatTemplate::fault_of(std::span<const ChatMessage> messages, std::size_t index) const {
  const ChatMessage& message = messages[index];
  if (message.reasoning && kind_ != Kind::kQwen3)
    return fmt::format("reasoning_content: {} has no place for it (qwen3 has)", name_);
  if (!alternates()) return "";
  const bool system_first = messages.front().role == "system";
  if (message.role == "system") {
    if (kind_ == Kind::kMistralV3 && messages.back().role != "user")
      return "role: \"system\": mistral-v3 writes it before a last message of the user alone";
    if (kind_ != Kind::kGemma3 && kind_ != Kind::kMistralV3)
      return fmt::format("role: \"system\"; legal with {}: user, assistant", name_);
    return index == 0 ? "" : "role: \"system\" behind the first message";
  }
  const std::string_view wanted = (index - (system_first ? 1 : 0)) % 2 == 0 ? "user" : "assistant";
  if (message.role == wanted) return "";
  return fmt::format("role: \"{}\" where {} needs \"{}\" (user and assistant take turns)",
                     message.role, name_, wanted);
}

std::string ChatTemplate::opening(std::span<const ChatMessage>& messages) const {
  const bool has_system = messages.front().role == "system";
  const auto default_system = [&](std::string_view text) {
    return has_system ? std::string() : fmt::format("<|im_start|>system\n{}<|im_end|>\n", text);
  };
  switch (kind_) {
    case Kind::kQwen2:
      return default_system("You are a helpful assistant.");
    case Kind::kQwen25:
      return default_system("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
    case Kind::kLlama31: {
      const std::string_view text = has_system ? trimmed(messages.front().content) : "";
      if (has_system) messages = messages.subspan(1);
      return fmt::format(
          "{}{}Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n{}<|eot_id|>",
          bos_, header_of("system"), text);
    }
    case Kind::kChatMl:
    case Kind::kQwen3:
      return "";
    default:
      return bos_;
  }
}

std::string ChatTemplate::header_of(std::string_view role) const {
  switch (kind_) {
    case Kind::kLlama3:
    case Kind::kLlama31:
      return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
    case Kind::kGemma:
    case Kind::kGemma3:
      return fmt::format("<start_of_turn>{}\n", role == "assistant" ? "model" : role);
    case Kind::kMistral:
    case Kind::kMistralV3:
      return role == "assistant" ? "" : "[INST] ";
    default:
      return fmt::format("<|im_start|>{}\n", role);
  }
}

std::string ChatTemplate::body_of(const ChatMessage& message) const {
  switch (kind_) {
    case Kind::kLlama3:
    case Kind::kLlama31:
      return fmt::format("{}<|eot_id|>", trimmed(message.content));
    case Kind::kGemma:
    case Kind::kGemma3:
      return fmt::format("{}<end_of_turn>\n", trimmed(message.content));
    case Kind::kMistral:
      return message.content + (message.role == "assistant" ? eos_ : " [/INST]");
    case Kind::kMistralV3:
      return message.role == "assistant" ? fmt::format(" {}{}", trimmed(message.content), eos_)
                                         : message.content + "[/INST]";
    default:
      return fmt::format("{}<|im_end|>\n", message.content);
  }
}

ChatText ChatTemplate::render(std::span<const ChatMessage> messages, ChatPurpose purpose) const {
  ChatText out;
  std::string of_system;
  const bool joins_user = kind_ == Kind::kGemma3 || kind_ == Kind::kMistralV3;
  if (joins_user && messages.front().role == "system") {
    of_system = messages.front().content + "\n\n";
    messages = messages.subspan(1);
  }
  out.text = messages.empty() ? bos_ : opening(messages);
  // Its header is marked from the line feed on, as trl does.
  const std::size_t marked_of_header = kind_ == Kind::kQwen2 || kind_ == Kind::kQwen25 ? 1 : 0;
  const std::size_t query = messages.empty() ? 0 : last_query(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool answers = message.role == "assistant";
    out.text += header_of(message.role);
    if (kind_ == Kind::kGemma3 ? i == 0 : i + 1 == messages.size()) out.text += of_system;
    const std::size_t begin = out.text.size() - (answers ? marked_of_header : 0);
    if (answers && kind_ == Kind::kQwen3) {
      const bool recent = i > query && !thoughts_of(message).reasoning.empty();
      out.text += thinking_body(message, purpose == ChatPurpose::kTraining || recent);
    } else {
      out.text += body_of(message);
    }
    if (answers && begin < out.text.size()) out.answers.push_back({begin, out.text.size()});
  }
  if (purpose == ChatPurpose::kGeneration) out.text += header_of("assistant");
  return out;
}

}  // namespace trireme
