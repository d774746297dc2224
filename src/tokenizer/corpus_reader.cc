#include "tokenizer/corpus_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/missing_path.h"

namespace trireme {

namespace {
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
}  // namespace

CorpusReader::CorpusReader(std::vector<std::string> inputs, CorpusFormat format,
                           SplitPosition split_position)
    : inputs_(std::move(inputs)), format_(format), split_position_(std::move(split_position)) {
  bool all_regular = true;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const std::string& input : inputs_) {
    if (input == "-") {
      if (std::count(inputs_.begin(), inputs_.end(), input) > 1)
        throw ConfigError("- stands twice: standard input can be read once");
      all_regular = false;
      continue;
    }
    struct stat status {};
    if (::stat(input.c_str(), &status) != 0) {
      const int fault = errno;
      if (fault != ENOENT) throw DataError("{}: cannot open: {}", input, errno_text(fault));
      throw DataError("{}. Name files of text, or - for standard input", missing_path_text(input));
    }
    if (S_ISDIR(status.st_mode)) throw DataError("{}: is a folder. Name the files in it", input);
    if (S_ISREG(status.st_mode) && !seen.emplace(status.st_dev, status.st_ino).second)
      log_warning("{}: is named twice, so its text counts twice", input);
    all_regular = all_regular && S_ISREG(status.st_mode);
    total_bytes_ += status.st_size;
  }
  if (!all_regular) total_bytes_ = 0;
}

bool CorpusReader::open_next() {
  if (next_input_ == inputs_.size()) return false;
  stream_.emplace(inputs_[next_input_++]);
  pending_.clear();
  line_ = 1;
  counted_ = 0;
  at_end_ = false;
  return true;
}

void CorpusReader::read_more() {
  const std::size_t before = pending_.size();
  pending_.resize(before + kBlockBytes);
  const std::size_t done = stream_->read(pending_.data() + before, kBlockBytes);
  at_end_ = done < kBlockBytes;
  pending_.resize(before + done);
}

std::size_t CorpusReader::cut_position(std::size_t searched) const {
  if (format_ == CorpusFormat::kDocuments) {
    return split_position_(pending_, std::max(searched, kBlockBytes / 2));
  }
  const std::size_t line_feed = std::string_view(pending_).substr(searched).rfind('\n');
  return line_feed == std::string_view::npos ? line_feed : searched + line_feed + 1;
}

bool CorpusReader::next(CorpusBlock& block) {
  if (!stream_ && !open_next()) return false;
  std::size_t cut = std::string_view::npos, searched = 0;
  while (!at_end_) {
    read_more();
    if (at_end_) break;
    cut = cut_position(searched);
    if (cut != std::string_view::npos) break;
    // The last bytes are searched again: a place may need what comes after it.
    searched = pending_.size() - std::min<std::size_t>(pending_.size(), 4);
  }
  block.source = stream_->source();
  block.input_bytes = stream_->taken() - std::exchange(counted_, stream_->taken());
  block.first_line = line_;
  block.ends_document = cut == std::string_view::npos;
  if (block.ends_document) {
    block.text = std::move(pending_);
    pending_.clear();
    stream_.reset();
    return true;
  }
  block.text = pending_.substr(0, cut);
  pending_.erase(0, cut);
  if (format_ == CorpusFormat::kJsonLines)
    line_ += std::count(block.text.begin(), block.text.end(), '\n');
  return true;
}

}  // namespace trireme
