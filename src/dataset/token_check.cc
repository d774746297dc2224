#include "dataset/token_check.h"

#include <algorithm>

#include "base/error.h"
#include "base/human_format.h"
#include "base/log.h"
#include "base/progress.h"

namespace trireme {
namespace {
constexpr std::int64_t kScanBytes = std::int64_t{1} << 30;
constexpr std::int64_t kPieceTokens = std::int64_t{1} << 22;
}  // namespace

void check_tokens(const Corpus& corpus, const TokenCheckRules& rules) {
  const IndexedFile& file = corpus.file();
  const std::int64_t limit = rules.scan_bytes == 0 ? kScanBytes : rules.scan_bytes;
  const std::int64_t begin = corpus.window_begin(0, 1);
  if (corpus.tokens() <= limit) file.check_mask(begin, corpus.tokens());
  if (const auto& facts = file.facts()) {
    const std::vector<std::string>& hashes = rules.tokenizer_hashes;
    const bool known = !hashes.empty() && !facts->tokenizer_hash.empty();
    if (known && std::find(hashes.begin(), hashes.end(), facts->tokenizer_hash) == hashes.end()) {
      log_warning(
          "{}: made with another tokenizer ({}) than the run's ({}): its ids mean other text",
          file.bin_path(), facts->tokenizer_hash, hashes.front());
    }
    if (facts->largest_id < rules.vocab_size) return;
    // Only the places read by this part of the data count.
  }
  const std::int64_t bytes = corpus.tokens() * file.bytes_per_token();
  if (!file.facts() && bytes > limit) {
    log_info(
        "{}: {} of tokens from elsewhere, more than data.scan_bytes = {}: each batch is checked "
        "for ids outside the vocabulary as it is read",
        file.bin_path(), format_bytes(bytes), limit);
    return;
  }
  Progress progress("checking " + file.bin_path(), bytes, ProgressUnit::kBytes);
  for (std::int64_t at = 0; at < corpus.tokens(); at += kPieceTokens) {
    const std::int64_t count = std::min(kPieceTokens, corpus.tokens() - at);
    if (const auto bad = file.find_outside(begin + at, count, rules.vocab_size)) {
      throw DataError(
          "{} is outside the vocabulary of {} (the data were made with another tokenizer than the "
          "model's). Tokenize them again, or set the model's vocab_size",
          file.describe(*bad), rules.vocab_size);
    }
    progress.add(count * file.bytes_per_token());
  }
}

}  // namespace trireme
