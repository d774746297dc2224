#pragma once
// Reads text in blocks that can be encoded apart, of any size, packed or not, in bounded memory.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/input_stream.h"

namespace trireme {

enum class CorpusFormat { kDocuments, kJsonLines };

struct CorpusBlock {
  std::string text;
  std::string source;            ///< file name, "standard input"
  std::int64_t first_line = 1;   ///< of `text` in the source (JSON lines)
  bool ends_document = true;     ///< false: the next block continues this document (documents)
  std::int64_t input_bytes = 0;  ///< of the file as it stands, packed where it is, for this block
};

class CorpusReader {
 public:
  /// As Tokenizer::split_position; large documents are cut there, or nowhere.
  using SplitPosition = std::function<std::size_t(std::string_view text, std::size_t from)>;

  /// `inputs`: paths, "-" is standard input. Throws DataError for a missing one before anything is
  /// read, ConfigError where "-" stands twice; a file that stands twice is warned of.
  CorpusReader(std::vector<std::string> inputs, CorpusFormat format, SplitPosition split_position);

  /// False at the end. JSON-lines blocks hold whole lines. Throws DataError.
  bool next(CorpusBlock& block);

  /// Of all inputs as they stand; 0 where one of them is no regular file.
  [[nodiscard]] std::int64_t total_bytes() const { return total_bytes_; }

 private:
  bool open_next();
  /// Reads `kBlockBytes` more into pending_; sets at_end_.
  void read_more();
  [[nodiscard]] std::size_t cut_position(std::size_t searched) const;

  std::vector<std::string> inputs_;
  CorpusFormat format_;
  SplitPosition split_position_;
  std::int64_t total_bytes_ = 0;
  std::size_t next_input_ = 0;
  std::optional<InputStream> stream_;
  std::string pending_;
  std::int64_t line_ = 1, counted_ = 0;
  bool at_end_ = false;
};

}  // namespace trireme
