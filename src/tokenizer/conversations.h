#pragma once
// Conversations of JSON: checked, rendered and encoded, with the tokens that a loss counts.

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

/// An array of {role, content}. Throws DataError "PLACE[1].content: ..." for what is no array, is
/// empty, has a member that needs more than text (tool calls, lists of parts), no text, an unknown
/// role, or an order of roles that the template refuses.
std::vector<ChatMessage> read_messages(const Json& value, const ChatTemplate& chat,
                                       const std::string& place);

/// Appends a rendered conversation's ids to `ids` and for each a byte to `counted`: 1 where it
/// holds a byte of the assistant's, as transformers' return_assistant_tokens_mask. DataError as
/// Tokenizer::encode_and_find.
void encode_conversation(const ChatText& chat, const Tokenizer& tokenizer,
                         std::vector<std::int32_t>& ids, std::vector<std::uint8_t>& counted);

}  // namespace trireme
