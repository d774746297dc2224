#include "checkpoint/companion_files.h"

#include <algorithm>
#include <array>

#include "base/file.h"

namespace trireme {

namespace {
constexpr std::array<std::string_view, 9> kOfTokenizers = {
    kTokenizerName,      kTokenizerConfigName,  "special_tokens_map.json",
    "added_tokens.json", "vocab.json",          "merges.txt",
    "tokenizer.model",   "chat_template.jinja", "chat_template.json"};
}  // namespace

bool belongs_to_tokenizer(std::string_view name) {
  return std::find(kOfTokenizers.begin(), kOfTokenizers.end(), name) != kOfTokenizers.end();
}

bool is_companion(std::string_view name) {
  return name == kGenerationConfigName || belongs_to_tokenizer(name);
}

std::vector<ExtraFile> read_companions(const std::filesystem::path& folder) {
  std::vector<ExtraFile> files;
  const auto read = [&](std::string_view name) {
    const std::filesystem::path path = folder / name;
    std::error_code absent;
    if (std::filesystem::is_regular_file(path, absent))
      files.push_back({std::string(name), read_file(path)});
  };
  for (const std::string_view name : kOfTokenizers) read(name);
  read(kGenerationConfigName);
  return files;
}

}  // namespace trireme
