#include "tokenizer/indexed_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "tokenizer/packing.h"

namespace trireme {

namespace {
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::int32_t kNarrowVocabulary = 65500;
constexpr std::int64_t kDocumentTokensMax = std::numeric_limits<std::int32_t>::max();

template <class T>
void add(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void sync(int descriptor, const std::filesystem::path& path) {
  if (::fsync(descriptor) != 0)
    throw DataError("{}: cannot fsync: {}", path.string(), errno_text(errno));
}
}  // namespace

std::filesystem::path IndexedWriter::target(const char* suffix) const {
  std::filesystem::path path = prefix_;
  path += suffix;
  return path;
}

std::filesystem::path IndexedWriter::temporary(const char* suffix) const {
  std::filesystem::path path = target(suffix);
  path += fmt::format(".{}.tmp", ::getpid());
  return path;
}

IndexedWriter::IndexedWriter(std::filesystem::path prefix, std::int32_t vocab_size, TargetMask mask)
    : prefix_(std::move(prefix)),
      narrow_(vocab_size < kNarrowVocabulary),
      has_mask_(mask == TargetMask::kWritten) {
  if (!prefix_.has_filename()) {
    throw DataError("{}: is a folder (the output is a prefix: PREFIX.bin, PREFIX.idx, PREFIX.json)",
                    prefix_.string());
  }
  bin_ = open_file(temporary(".bin"), O_WRONLY | O_CREAT | O_TRUNC);
  if (has_mask_) mask_ = open_file(temporary(".mask"), O_WRONLY | O_CREAT | O_TRUNC);
  buffer_.reserve(kBufferBytes + 64);
}

IndexedWriter::~IndexedWriter() {
  for (const char* suffix : {".bin", ".idx", ".mask"}) ::unlink(temporary(suffix).c_str());
}

void IndexedWriter::flush() {
  write_all(bin_.get(), buffer_, target(".bin"));
  buffer_.clear();
  if (has_mask_) write_all(mask_.get(), mask_buffer_, target(".mask"));
  mask_buffer_.clear();
}

void IndexedWriter::append(std::span<const std::int32_t> ids,
                           std::span<const std::uint8_t> counted) {
  expect(counted.empty() || (has_mask_ && counted.size() == ids.size()), "{} bytes for {} tokens",
         counted.size(), ids.size());
  open_tokens_ += static_cast<std::int64_t>(ids.size());
  if (open_tokens_ > kDocumentTokensMax) {
    throw DataError(
        "{}: document {} has more than {} tokens (the format counts in 32 bits). Split it",
        prefix_.string(), totals_.documents, kDocumentTokensMax);
  }
  for (const std::int32_t id : ids) {
    expect(id >= 0 && (!narrow_ || id < kNarrowVocabulary), "token id {} does not fit the file",
           id);
    totals_.largest_id = std::max(totals_.largest_id, id);
    if (narrow_) {
      add(buffer_, static_cast<std::uint16_t>(id));
    } else {
      add(buffer_, id);
    }
    if (buffer_.size() >= kBufferBytes) flush();
  }
  if (!has_mask_) return;
  if (counted.empty()) {
    mask_buffer_.append(ids.size(), '\1');
    open_counted_ += std::ssize(ids);
  } else {
    mask_buffer_.append(counted.begin(), counted.end());
    open_counted_ += std::count(counted.begin(), counted.end(), 1);
  }
}

void IndexedWriter::end_document() {
  if (open_tokens_ == 0) {
    ++totals_.empty_documents;
    return;
  }
  if (has_mask_ && open_counted_ == 0) ++totals_.without_targets;
  totals_.counted += std::exchange(open_counted_, 0);
  end_sequence(std::exchange(open_tokens_, 0));
  ++totals_.documents;
}

void IndexedWriter::end_sequence(std::int64_t tokens) {
  lengths_.push_back(static_cast<std::int32_t>(tokens));
  totals_.tokens += tokens;
}

/// The documents, those that are too long cut.
std::vector<IndexedWriter::Piece> IndexedWriter::pieces_for(const Packing& packing) {
  std::vector<Piece> pieces;
  std::int64_t first = 0;
  for (std::size_t document = 0; document < lengths_.size(); ++document) {
    const std::int64_t end = first + lengths_[document];
    const bool too_long = end - first > packing.length;
    if (too_long && packing.overflow == Overflow::kRefuse) {
      throw DataError(
          "{}: document {} has {} tokens, more than --pack {}. Pack in longer windows, or let it "
          "be "
          "cut by --overflow truncate or split",
          prefix_.string(), document, end - first, packing.length);
    }
    totals_.too_long += too_long ? 1 : 0;
    do {
      const std::int64_t length = std::min(packing.length, end - first);
      pieces.push_back({first, static_cast<std::int32_t>(length)});
      first += length;
    } while (first < end && packing.overflow == Overflow::kSplit);
    totals_.dropped += end - first;
    first = end;
  }
  return pieces;
}

void IndexedWriter::copy(const MappedFile& bin, const MappedFile& mask, const Piece& piece) {
  const std::size_t bytes = narrow_ ? 2 : 4, first = static_cast<std::size_t>(piece.first),
                    length = static_cast<std::size_t>(piece.length);
  const auto append_to = [](std::string& out, std::span<const std::byte> part) {
    out.append(reinterpret_cast<const char*>(part.data()), part.size());
  };
  append_to(buffer_, bin.bytes().subspan(first * bytes, length * bytes));
  const std::size_t begin = mask_buffer_.size();
  append_to(mask_buffer_, mask.bytes().subspan(first, length));
  mask_buffer_[begin] = '\0';
  totals_.counted += std::count(mask_buffer_.begin() + static_cast<std::ptrdiff_t>(begin),
                                mask_buffer_.end(), '\1');
  end_sequence(piece.length);
  if (buffer_.size() >= kBufferBytes) flush();
}

void IndexedWriter::pack(const Packing& packing) {
  expect(has_mask_ && open_tokens_ == 0 && bounds_.empty(),
         "documents are packed once, with a mask");
  flush();
  const MappedFile bin(temporary(".bin")), mask(temporary(".mask"));
  // What is mapped stays readable without a name.
  for (const char* suffix : {".bin", ".mask"}) ::unlink(temporary(suffix).c_str());
  bin_ = open_file(temporary(".bin"), O_WRONLY | O_CREAT | O_TRUNC);
  mask_ = open_file(temporary(".mask"), O_WRONLY | O_CREAT | O_TRUNC);
  const std::vector<Piece> pieces = pieces_for(packing);
  std::vector<std::int32_t> sizes;
  for (const Piece& piece : pieces) sizes.push_back(piece.length);
  const auto bins = pack_best_fit(sizes, static_cast<std::int32_t>(packing.length));
  lengths_.clear();
  totals_.tokens = totals_.counted = 0;
  totals_.documents = std::ssize(bins);
  totals_.packed_documents = std::ssize(pieces);
  for (const std::vector<std::int64_t>& documents : bins) {
    bounds_.push_back(std::ssize(lengths_));
    for (const std::int64_t document : documents)
      copy(bin, mask, pieces[static_cast<std::size_t>(document)]);
    const bool is_last = std::ssize(bounds_) == std::ssize(bins);
    const std::int64_t missing =
        std::ssize(bounds_) * packing.length + (is_last ? 1 : 0) - totals_.tokens;
    if (missing == 0) continue;
    append(std::vector<std::int32_t>(static_cast<std::size_t>(missing), packing.pad),
           std::vector<std::uint8_t>(static_cast<std::size_t>(missing), 0));
    end_sequence(std::exchange(open_tokens_, 0));
  }
  bounds_.push_back(std::ssize(lengths_));
}

void IndexedWriter::write_index() {
  const std::filesystem::path path = temporary(".idx");
  const FileDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  std::string out("MMIDIDX\0\0", 9);
  const auto spill = [&](std::size_t limit) {
    if (out.size() < limit) return;
    write_all(file.get(), out, target(".idx"));
    out.clear();
  };
  add(out, std::uint64_t{1});
  add(out, static_cast<std::uint8_t>(narrow_ ? 8 : 4));
  add(out, static_cast<std::uint64_t>(lengths_.size()));
  const auto bounds =
      static_cast<std::int64_t>(bounds_.empty() ? lengths_.size() + 1 : bounds_.size());
  add(out, static_cast<std::uint64_t>(bounds));
  for (const std::int32_t length : lengths_) add(out, length), spill(kBufferBytes);
  const std::int64_t token_bytes = narrow_ ? 2 : 4;
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    add(out, offset);
    spill(kBufferBytes);
    offset += token_bytes * length;
  }
  for (std::int64_t document = 0; document < bounds; ++document) {
    add(out, bounds_.empty() ? document : bounds_[static_cast<std::size_t>(document)]);
    spill(kBufferBytes);
  }
  spill(0);
  sync(file.get(), path);
}

void IndexedWriter::finish(Json about) {
  expect(open_tokens_ == 0, "a document is still open");
  flush();
  sync(bin_.get(), temporary(".bin"));
  if (has_mask_) sync(mask_.get(), temporary(".mask"));
  write_index();
  about["documents"] = Json(totals_.documents);
  about["tokens"] = Json(totals_.tokens);
  about["largest_id"] = Json(std::int64_t{totals_.largest_id});
  about["dtype"] = Json(narrow_ ? "uint16" : "int32");
  if (has_mask_) about["targets"] = Json(totals_.counted);
  // An index into tokens of another run must never stand: the old index goes first.
  const auto remove = [&](const char* suffix) { ::unlink(target(suffix).c_str()); };
  remove(".json");
  remove(".idx");
  remove(".mask");
  try {
    for (const char* suffix : {".mask", ".bin", ".idx"}) {
      if (!has_mask_ && suffix == std::string_view(".mask")) continue;
      if (::rename(temporary(suffix).c_str(), target(suffix).c_str()) != 0) {
        throw DataError("{}: cannot rename to it: {}", target(suffix).string(), errno_text(errno));
      }
    }
    write_file_atomically(target(".json"), about.dump(2) + "\n");
  } catch (...) {
    for (const char* suffix : {".idx", ".bin", ".mask"}) remove(suffix);
    throw;
  }
}

}  // namespace trireme
