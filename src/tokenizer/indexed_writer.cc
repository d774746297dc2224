#include "tokenizer/indexed_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/error.h"

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

IndexedWriter::IndexedWriter(std::filesystem::path prefix, std::int32_t vocab_size)
    : prefix_(std::move(prefix)), narrow_(vocab_size < kNarrowVocabulary) {
  if (!prefix_.has_filename()) {
    throw DataError("{}: is a folder (the output is a prefix: PREFIX.bin, PREFIX.idx, PREFIX.json)",
                    prefix_.string());
  }
  bin_ = open_file(temporary(".bin"), O_WRONLY | O_CREAT | O_TRUNC);
  buffer_.reserve(kBufferBytes + 64);
}

IndexedWriter::~IndexedWriter() {
  for (const char* suffix : {".bin", ".idx"}) ::unlink(temporary(suffix).c_str());
}

void IndexedWriter::flush() {
  write_all(bin_.get(), buffer_, target(".bin"));
  buffer_.clear();
}

void IndexedWriter::append(std::span<const std::int32_t> ids) {
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
}

void IndexedWriter::end_document() {
  if (open_tokens_ == 0) {
    ++totals_.empty_documents;
    return;
  }
  lengths_.push_back(static_cast<std::int32_t>(open_tokens_));
  totals_.tokens += open_tokens_;
  ++totals_.documents;
  open_tokens_ = 0;
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
  add(out, static_cast<std::uint64_t>(lengths_.size() + 1));
  for (const std::int32_t length : lengths_) add(out, length), spill(kBufferBytes);
  const std::int64_t token_bytes = narrow_ ? 2 : 4;
  std::int64_t offset = 0;
  for (const std::int32_t length : lengths_) {
    add(out, offset);
    spill(kBufferBytes);
    offset += token_bytes * length;
  }
  for (std::int64_t document = 0; document <= static_cast<std::int64_t>(lengths_.size());
       ++document) {
    add(out, document);
    spill(kBufferBytes);
  }
  spill(0);
  sync(file.get(), path);
}

void IndexedWriter::finish(Json about) {
  expect(open_tokens_ == 0, "a document is still open");
  flush();
  sync(bin_.get(), temporary(".bin"));
  write_index();
  about["documents"] = Json(totals_.documents);
  about["tokens"] = Json(totals_.tokens);
  about["largest_id"] = Json(std::int64_t{totals_.largest_id});
  about["dtype"] = Json(narrow_ ? "uint16" : "int32");
  // An index into tokens of another run must never stand: the old index goes first.
  const auto remove = [&](const char* suffix) { ::unlink(target(suffix).c_str()); };
  remove(".json");
  remove(".idx");
  try {
    for (const char* suffix : {".bin", ".idx"}) {
      if (::rename(temporary(suffix).c_str(), target(suffix).c_str()) != 0) {
        throw DataError("{}: cannot rename to it: {}", target(suffix).string(), errno_text(errno));
      }
    }
    write_file_atomically(target(".json"), about.dump(2) + "\n");
  } catch (...) {
    for (const char* suffix : {".idx", ".bin"}) remove(suffix);
    throw;
  }
}

}  // namespace trireme
