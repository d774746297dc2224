#pragma once

#include <filesystem>
#include <memory>

#include "tokenizer/tokenizer.h"

namespace trireme {

/// Reads a BPE `tokenizer.json` of Hugging Face `tokenizers`: byte-level (GPT-2, Llama 3, Qwen),
/// where its pre_tokenizer ends in ByteLevel, or over characters as converted from SentencePiece
/// (Llama 2, Mistral, Gemma). tokenizer_steps.h says which steps are understood; the post_processor
/// only adds what encode() does not add. Throws DataError "PATH: model.merges[3]: ..." for
/// everything else, and ids that would not be the peer's.
std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& path);

}  // namespace trireme
