#include "commands/prompts.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "commands/text_input.h"
#include "config/problem.h"
#include "model/model_limits.h"

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

void tokenize_prompts(std::vector<Prompt>& prompts, const Tokenizer* tokenizer,
                      const ModelConfig& model, std::int64_t new_tokens) {
  for (Prompt& prompt : prompts) {
    prompt.tokens = tokenizer != nullptr ? tokenizer->encode(prompt.text) : parse_ids(prompt);
    check(prompt, model, new_tokens);
    if (tokenizer == nullptr) prompt.text.clear();
  }
}

}  // namespace trireme
