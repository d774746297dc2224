#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dataset/corpus.h"

namespace trireme {

struct TokenCheckRules {
  std::int64_t vocab_size = 0;
  std::int64_t scan_bytes = 0;                ///< 0: 1 GiB
  std::vector<std::string> tokenizer_hashes;  ///< of the run, all that are its; empty: unknown
};

/// Before step 0: no id of a corpus is outside [0, vocab_size). By PREFIX.json's largest id where
/// it is there; else the tokens are read once, where they take at most scan_bytes; else one line
/// says that each batch is checked as it is read. Likewise the bytes of PREFIX.mask. Throws
/// DataError with file, document and position. Another tokenizer than the run's is warned of.
void check_tokens(const Corpus& corpus, const TokenCheckRules& rules);

}  // namespace trireme
