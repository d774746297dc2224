#include "tokenizer/tokenizer.h"

#include "base/error.h"
#include "base/file.h"
#include "base/missing_path.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace trireme {

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encode(text, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, SpecialTokens special) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (special == SpecialTokens::kSkip && is_special(id)) continue;
    text += token_text(id);
  }
  return text;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  std::filesystem::path path = name;
  if (is_folder(path)) {
    const bool other_form = is_there(path / "tokenizer.model");
    path /= other_form && !is_there(path / "tokenizer.json") ? "tokenizer.model" : "tokenizer.json";
  }
  if (path.extension() == ".model" && is_there(path)) {
    throw DataError(
        "{}: is SentencePiece's own form, and a tokenizer.json is needed. transformers writes one: "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
        path.string());
  }
  if (!is_there(path))
    throw DataError("{}. Give \"byte\", a tokenizer.json or a folder with one",
                    missing_model_text(path));
  return load_tokenizer_json(path);
}

}  // namespace trireme
