#include "tokenizer/conversations.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace trireme {

namespace {

bool is_empty(const Json& value) {
  return value.is_null() || (value.is_array() && value.as_array().empty());
}

std::string string_member(const Json& message, std::string_view key, const std::string& place) {
  const Json* value = message.find(key);
  if (value == nullptr) throw DataError("{}: has no \"{}\"", place, key);
  if (!value->is_string()) {
    throw DataError("{}.{}: is {}, not a string{}", place, key, value->kind_name(),
                    key == "content" ? " (lists of parts are not in this version)" : "");
  }
  return value->as_string();
}

ChatMessage read_message(const Json& message, const std::string& place) {
  if (!message.is_object())
    throw DataError("{}: {} stands where {{role, content}} is needed", place, message.kind_name());
  for (const std::string_view key : {"tool_calls", "function_call", "tool_call_id"}) {
    const Json* value = message.find(key);
    if (value != nullptr && !is_empty(*value))
      throw DataError("{}.{}: calls of tools are not in this version", place, key);
  }
  ChatMessage read{string_member(message, "role", place), {}};
  constexpr std::array<std::string_view, 3> kRoles = {"system", "user", "assistant"};
  if (std::find(kRoles.begin(), kRoles.end(), read.role) == kRoles.end()) {
    throw DataError("{}.role: found {}; legal: system, user, assistant", place,
                    Json(read.role).dump());
  }
  read.content = string_member(message, "content", place);
  if (const Json* value = message.find("reasoning_content"); value != nullptr && !value->is_null())
    read.reasoning = string_member(message, "reasoning_content", place);
  return read;
}

}  // namespace

std::vector<ChatMessage> read_messages(const Json& value, const ChatTemplate& chat,
                                       const std::string& place) {
  if (!value.is_array())
    throw DataError("{}: is {}, not an array of {{role, content}}", place, value.kind_name());
  std::vector<ChatMessage> messages;
  const auto place_of = [&](std::size_t index) { return fmt::format("{}[{}]", place, index); };
  for (const Json& message : value.as_array())
    messages.push_back(read_message(message, place_of(messages.size())));
  if (messages.empty()) throw DataError("{}: holds no message", place);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (const std::string fault = chat.fault_of(messages, i); !fault.empty())
      throw DataError("{}.{}", place_of(i), fault);
  }
  return messages;
}

void encode_conversation(const ChatText& chat, const Tokenizer& tokenizer,
                         std::vector<std::int32_t>& ids, std::vector<std::uint8_t>& counted) {
  std::vector<std::size_t> places;
  for (const ChatText::Range& answer : chat.answers) {
    places.push_back(answer.begin);
    places.push_back(answer.end - 1);
  }
  const std::vector<std::size_t> tokens = tokenizer.encode_and_find(chat.text, places, ids);
  counted.resize(ids.size(), 0);
  for (std::size_t i = 0; i < tokens.size(); i += 2) {
    std::fill(counted.begin() + static_cast<std::ptrdiff_t>(tokens[i]),
              counted.begin() + static_cast<std::ptrdiff_t>(tokens[i + 1]) + 1, std::uint8_t{1});
  }
}

}  // namespace trireme
