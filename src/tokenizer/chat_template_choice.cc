#include "tokenizer/chat_template_choice.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

namespace trireme {

namespace {

constexpr std::size_t kBytesMax = std::size_t{16} << 20;

struct Known {
  std::string_view hash, name;
};
/// Models' own templates, trl's for training, and those of our golden files, which say the same.
constexpr Known kKnown[] = {
    {"f0a6a8278439fdb056191e205a440263", "chatml"},
    {"a344e8c84fb0282dda206a9e46a4ac01", "chatml"},
    {"451d087c44a520e70e5dcb4936ec6d2c", "chatml"},
    {"2358eae13be98a7ba04c0d765923822c", "chatml"},
    {"9f117cc12a4ede1ea11e5c229baddc8f", "chatml"},
    {"09facc0e4aa943189799ad6e2dea0594", "llama3"},
    {"7d1249446682b64b2ebf1bbd3466e452", "llama3"},
    {"bb6db76b5464053fb14671da501d6ff2", "llama3.1"},
    {"05ac78533d6fb928da8ae4616203881a", "llama3.1"},
    {"e580c2da83415028d5d943bd0bd9082f", "qwen2"},
    {"d257d13d08f8e4ba61ce049c29c20608", "qwen2"},
    {"e3c699cb55b0c32df9a29021c9d093ad", "qwen2.5"},
    {"28e53c934fa2bd305c3f1a53fb89828f", "qwen2.5"},
    {"205bbe22d93805964372a702009a6e39", "qwen3"},
    {"8b30bb763d138e692c2e86beabccd2a4", "gemma"},
    {"b9c6932590955c88a817dbca75477b99", "gemma"},
    {"6c84c2da794fd4c1d9c620dcaf86f38d", "gemma3"},
    {"43139373e064c88eb8025d2ed1726f6d", "gemma3"},
    {"f395fc5daa794129a5d004210ebce758", "mistral"},
    {"69a8a9e79a3174cd6820e344a7ccb9fe", "mistral"},
    {"a671e2ce65852eeb0cb5713bc34f74e0", "mistral-v3"},
};

/// What stands beside a tokenizer.
class Folder {
 public:
  explicit Folder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    if (tokenizer.source() == "byte") return;
    path_ = std::filesystem::path(tokenizer.source()).parent_path();
    if (const auto file = path_ / "tokenizer_config.json"; is_there(file))
      settings_ = parse_json(read_file(file, kBytesMax), file.string());
  }

  /// The Jinja text and the file that has it.
  struct Found {
    std::string jinja, file;
  };
  [[nodiscard]] std::optional<Found> chat_template() const {
    if (tokenizer_.source() == "byte") return std::nullopt;
    if (const auto file = path_ / "chat_template.jinja"; is_there(file))
      return Found{read_file(file, kBytesMax), file.string()};
    if (const auto file = path_ / "chat_template.json"; is_there(file)) {
      const Json json = parse_json(read_file(file, kBytesMax), file.string());
      if (const Json* text = json.find("chat_template"); text != nullptr && text->is_string())
        return Found{text->as_string(), file.string()};
    }
    const std::string* text = default_of(settings_.find("chat_template"));
    if (text == nullptr) return std::nullopt;
    return Found{*text, (path_ / "tokenizer_config.json").string()};
  }

  /// The text of "bos_token" or "eos_token"; unnamed, the first of `usual` that the tokenizer has.
  [[nodiscard]] std::string token(std::string_view key,
                                  std::initializer_list<std::string_view> usual) const {
    const Json* named = settings_.find(key);
    if (named != nullptr && named->is_object()) named = named->find("content");
    if (named != nullptr && named->is_string()) return named->as_string();
    for (const std::string_view text : usual) {
      if (tokenizer_.token_id(text)) return std::string(text);
    }
    return "";
  }

 private:
  /// Of several templates, {name, template} each, the default one.
  static const std::string* default_of(const Json* value) {
    if (value == nullptr) return nullptr;
    if (value->is_string()) return &value->as_string();
    if (!value->is_array()) return nullptr;
    for (const Json& one : value->as_array()) {
      const Json *name = one.find("name"), *text = one.find("template");
      const bool is_default = name != nullptr && *name == Json("default");
      if (is_default && text != nullptr && text->is_string()) return &text->as_string();
    }
    return nullptr;
  }

  const Tokenizer& tokenizer_;
  std::filesystem::path path_;
  Json settings_;
};

std::string name_of_model(const Tokenizer& tokenizer, const Folder& folder) {
  const auto found = folder.chat_template();
  if (!found) {
    throw ConfigError(
        "{}: has no chat template beside it (chat_template.jinja, or tokenizer_config.json). Give "
        "--chat-template NAME; legal: {}",
        tokenizer.source(), fmt::join(ChatTemplate::names(), ", "));
  }
  const std::string hash = chat_template_hash(found->jinja);
  if (const auto name = known_chat_template(hash)) return std::string(*name);
  throw ConfigError(
      "{}: its chat template ({}) is not built in. Where one of these writes the same, give "
      "--chat-template NAME; legal: {}",
      found->file, hash, fmt::join(ChatTemplate::names(), ", "));
}

}  // namespace

std::string chat_template_hash(std::string_view jinja) {
  std::string text;
  for (; !jinja.empty(); jinja.remove_prefix(1)) {
    if (jinja.starts_with("\\n")) {
      text += '\n';
      jinja.remove_prefix(1);
    } else if (jinja.front() != '\r') {
      text += jinja.front();
    }
  }
  text.erase(text.find_last_not_of(" \t\n") + 1);
  return xxh3_128_hex(text);
}

std::optional<std::string_view> known_chat_template(std::string_view hash) {
  for (const Known& known : kKnown) {
    if (known.hash == hash) return known.name;
  }
  return std::nullopt;
}

ChatTemplate choose_chat_template(const Tokenizer& tokenizer, const std::string& name) {
  const Folder folder(tokenizer);
  return {name.empty() ? name_of_model(tokenizer, folder) : name,
          folder.token("bos_token", {"<|begin_of_text|>", "<bos>", "<s>"}),
          folder.token("eos_token", {"<|end_of_text|>", "<eos>", "</s>"})};
}

}  // namespace trireme
