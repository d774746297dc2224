#pragma once

#include <filesystem>
#include <memory>

#include "tokenizer/tokenizer.h"

namespace trireme {

/// Reads a byte-level BPE `tokenizer.json` of Hugging Face `tokenizers`. Understood: normalizer
/// null, NFC or a Sequence of it; pre_tokenizer ByteLevel, Split (any behavior), Digits and a
/// Sequence of them that ends in ByteLevel; post_processor (it only adds what encode() does not
/// add); decoder ByteLevel; model BPE. Throws DataError "PATH: model.merges[3]: ..." for everything
/// else, and ids that would not be the peer's.
std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& path);

}  // namespace trireme
