#pragma once
// Files of text to one indexed token file, over any number of threads with the same bytes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/indexed_writer.h"
#include "tokenizer/tokenizer.h"

namespace trireme {

struct TokenizeOptions {
  std::vector<std::string> inputs;  ///< paths; "-" is standard input
  /// One document per line of JSON, under this key; else one per file. Blank lines are passed over.
  std::optional<std::string> json_key;
  /// With it the member is a conversation, which the template writes: see read_messages().
  std::optional<ChatTemplate> chat;
  std::optional<std::int32_t> end_token;  ///< closes each document
  int workers = 1;
  Show progress = Show::kAuto;
};

/// Appends the documents in order of the inputs, conversations with what counts as a target (the
/// writer then has a mask). Those without text count as empty. DataError for
/// an unreadable file, a faulty line (both named), or where no document has text.
void tokenize_corpus(const Tokenizer& tokenizer, const TokenizeOptions& options,
                     IndexedWriter& writer);

/// What PREFIX.json says of the tokenizer: kind, path, hash, vocab_size, end_token (or null).
Json describe_tokenizer(const Tokenizer& tokenizer, std::optional<std::int32_t> end_token);

}  // namespace trireme
