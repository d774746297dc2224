// tokenizer.json and a text, divided by a line "%%". What is accepted encodes and decodes any text,
// and a tokenizer that changes no text gives it back.
#include <algorithm>

#include "base/json.h"
#include "fuzz_support.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/tokenizer_json.h"

using namespace trireme;
using namespace trireme::fuzz;

namespace {

/// Nothing in the file can change or drop text: byte-level, no normalizer, no removing split, no
/// prefix space, every byte a token, no added token that takes blanks along or renames bytes.
bool keeps_text(const std::string& file, const Tokenizer& tokenizer) {
  const Json json = parse_json(file, "tokenizer");
  const Json* normalizer = json.find("normalizer");
  if (normalizer != nullptr && !normalizer->is_null()) return false;
  const Json* pre_tokenizer = json.find("pre_tokenizer");
  if (pre_tokenizer == nullptr || pre_tokenizer->is_null()) return false;
  const std::string steps = pre_tokenizer->dump();
  if (steps.find("\"ByteLevel\"") == std::string::npos) return false;
  const bool changes = steps.find("Removed") != std::string::npos ||
                       steps.find("\"add_prefix_space\":true") != std::string::npos ||
                       steps.find("\"add_prefix_space\"") == std::string::npos;
  if (changes) return false;
  const Json* added = json.find("added_tokens");
  if (added != nullptr && added->is_array()) {
    for (const Json& token : added->as_array()) {
      const std::string& content = token.find("content")->as_string();
      const auto flag = [&](const char* name) {
        const Json* value = token.find(name);
        return value != nullptr && value->is_bool() && value->as_bool();
      };
      if (flag("lstrip") || flag("rstrip")) return false;
      if (from_byte_level(content).value_or(content) != content) return false;
    }
  }
  const Json* vocabulary = json.find("model")->find("vocab");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = to_byte_level(std::string(1, static_cast<char>(byte)));
    if (vocabulary->find(name) == nullptr || !tokenizer.token_id(name)) return false;
  }
  return true;
}

void check_text(const Tokenizer& tokenizer, const std::string& text, bool kept) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  for (const std::int32_t id : ids) {
    require(id >= 0 && id < tokenizer.vocab_size(), "an id outside of the vocabulary");
  }
  require(tokenizer.encode(text) == ids, "the same text gives other ids the second time");
  const std::string decoded = tokenizer.decode(ids);
  if (kept && decoded != text) {
    defect(fmt::format("decode(encode(x)) is not x: {} became {}", Json(text).dump(),
                       Json(decoded).dump()));
  }
  (void)tokenizer.decode(ids, SpecialTokens::kSkip);
  const std::size_t cut = tokenizer.split_position(text, 0);
  if (cut == std::string::npos) return;
  require(cut > 0 && cut < text.size(), "a split position outside of the text");
  std::vector<std::int32_t> pieces = tokenizer.encode(std::string_view(text).substr(0, cut));
  tokenizer.encode(std::string_view(text).substr(cut), pieces);
  require(pieces == ids, "the parts of a text give other ids than the whole");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string> parts = split_texts(text_of(data, size), 2);
  const std::filesystem::path path = put("tokenizer.json", parts[0]);
  const Expected expected{{ExitCode::kData}, path.native()};
  std::unique_ptr<Tokenizer> tokenizer;
  if (!accepted(expected, [&] { tokenizer = load_tokenizer_json(path); })) return 0;
  (void)accepted({{}, ""}, [&] {
    for (std::int32_t id = -1; id <= std::min(tokenizer->vocab_size(), 1000); ++id) {
      (void)tokenizer->token_text(id);
      (void)tokenizer->is_special(id);
    }
    if (const auto end = tokenizer->end_token()) {
      require(*end >= 0 && *end < tokenizer->vocab_size(), "an end token outside");
    }
  });
  (void)accepted(expected,
                 [&] { check_text(*tokenizer, parts[1], keeps_text(parts[0], *tokenizer)); });
  return 0;
}
