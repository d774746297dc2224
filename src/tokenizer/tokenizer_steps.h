#pragma once
// The steps around the model of a `tokenizer.json`, each read or refused by name with its JSON
// path: a step that is passed over would give other ids than Hugging Face `tokenizers`.

#include "tokenizer/json_reader.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/token_decoder.h"

namespace trireme {

/// null, NFC, Prepend, Replace, a Sequence of them. Throws DataError, as all here do.
void read_normalizer(const JsonReader& reader, Normalizer& normalizer);

/// null, ByteLevel, Split, Digits, Metaspace, a Sequence of them. True where it ends in ByteLevel,
/// after which nothing may follow: the model is over bytes, else over characters.
bool read_pre_tokenizer(const JsonReader& reader, PreTokenizer& pre_tokenizer);

/// What adds special tokens or trims offsets changes no ids of encode().
void check_post_processor(const JsonReader& reader);

/// Over bytes: null, ByteLevel, a Sequence of it.
void check_byte_level_decoder(const JsonReader& reader);

/// Over characters: null, Replace of a literal, ByteFallback, Fuse, Strip, Metaspace, a Sequence.
void read_decoder(const JsonReader& reader, TokenDecoder& decoder);

}  // namespace trireme
