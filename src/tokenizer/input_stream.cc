#include "tokenizer/input_stream.h"

#include <fcntl.h>
#include <unistd.h>
#define ZLIB_CONST  // inputs are not written to
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/stop_flag.h"
#ifdef TRIREME_HAS_ZSTD
#include <zstd.h>
#endif

namespace trireme {

namespace {
constexpr std::size_t kBufferBytes = std::size_t{256} << 10;
constexpr std::string_view kGzipMagic("\x1f\x8b\x08", 3);
constexpr std::string_view kZstdMagic("\x28\xb5\x2f\xfd", 4);

/// A frame that decoders pass over; parallel writers begin with one.
bool is_skippable_frame(std::string_view begin) {
  return begin.size() >= 4 && (static_cast<unsigned char>(begin[0]) & 0xF0) == 0x50 &&
         begin.substr(1, 3) == std::string_view("\x2a\x4d\x18", 3);
}

/// "BZh", the size of a block, the mark of a block or of the end.
bool is_bzip2(std::string_view begin) {
  if (!begin.starts_with("BZh") || begin.size() < 9 || begin[3] < '1' || begin[3] > '9')
    return false;
  const std::string_view mark = begin.substr(4, 5);
  return mark == "1AY&S" || mark == "\x17rE8P";
}

/// What text cannot begin with, and how to make text of it.
struct Foreign {
  std::string_view magic, what, remedy;
};
constexpr std::array<Foreign, 5> kForeign = {{
    {{"\xfd"
      "7zXZ\0",
      6},
     "packed by xz",
     "Unpack it first: xz -dc FILE | train ... -"},
    {{"PK\3\4", 4}, "a zip archive", "Unpack it first"},
    {{"\x04\x22\x4d\x18", 4}, "packed by lz4", "Unpack it first: lz4 -dc FILE | train ... -"},
    {"PAR1\x15", "Parquet", "Write its text column as JSON lines first"},
    {{"MMIDIDX\0\0", 9}, "an index of token files", "Name the text, not what was made of it"},
}};
}  // namespace

class InputStream::Bytes {
 public:
  explicit Bytes(const std::string& name) {
    if (name != "-") {
      source_ = name;
      file_ = open_file(name, O_RDONLY);
      return;
    }
    source_ = "standard input";
    file_ = FileDescriptor(::dup(STDIN_FILENO));
    if (!file_) throw DataError("{}: cannot read: {}", source_, errno_text(errno));
  }
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] std::int64_t taken() const { return read_ - static_cast<std::int64_t>(left()); }
  /// What is buffered; more is read until `wanted` bytes are, or the end is reached.
  std::string_view peek(std::size_t wanted) {
    while (left() < wanted && !at_end_) {
      if (begin_ > 0) {
        buffer_.erase(0, begin_);
        begin_ = 0;
      }
      const std::size_t before = buffer_.size();
      buffer_.resize(kBufferBytes);
      buffer_.resize(before + read_some(buffer_.data() + before, kBufferBytes - before));
    }
    return std::string_view(buffer_).substr(begin_);
  }
  void drop(std::size_t count) { begin_ += count; }
  /// Straight to where it is wanted, what was buffered first.
  std::size_t read(char* text, std::size_t size) {
    std::size_t done = std::min(size, left());
    std::memcpy(text, buffer_.data() + begin_, done);
    begin_ += done;
    while (done < size && !at_end_) done += read_some(text + done, size - done);
    return done;
  }

 private:
  [[nodiscard]] std::size_t left() const { return buffer_.size() - begin_; }
  std::size_t read_some(char* to, std::size_t size) {
    while (true) {
      give_up_if_stopped("reading text");
      const ssize_t count = ::read(file_.get(), to, size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw DataError("{}: cannot read: {}", source_, errno_text(errno));
      at_end_ = count == 0;
      read_ += count;
      return static_cast<std::size_t>(count);
    }
  }

  std::string source_;
  FileDescriptor file_;
  std::string buffer_;
  std::size_t begin_ = 0;
  std::int64_t read_ = 0;
  bool at_end_ = false;
};

class InputStream::Unpacker {
 public:
  Unpacker(Bytes& bytes, std::string_view name) : bytes_(bytes), name_(name) {}
  virtual ~Unpacker() = default;
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  std::size_t read(char* text, std::size_t size) {
    std::size_t done = 0;
    while (done < size && !at_end_) done += unpack(text + done, size - done);
    return done;
  }

 protected:
  /// Some bytes of text; sets at_end_ behind the last member.
  virtual std::size_t unpack(char* text, std::size_t size) = 0;
  [[noreturn]] void fail_cut_off() const {
    throw DataError(
        "{}: its {} data end after {} bytes in the middle (the file is cut off). Get it again, "
        "whole",
        bytes_.source(), name_, bytes_.taken());
  }
  [[noreturn]] void fail_damaged(std::string_view what) const {
    throw DataError("{}: its {} data are damaged before byte {}: {}. Get it again, whole",
                    bytes_.source(), name_, bytes_.taken(), what);
  }

  Bytes& bytes_;
  std::string_view name_;
  bool at_end_ = false;
};

class InputStream::Gzip final : public Unpacker {
 public:
  explicit Gzip(Bytes& bytes) : Unpacker(bytes, "gzip") {
    constexpr int kWindowBits = 15, kGzipOnly = 16;
    if (::inflateInit2(&stream_, kWindowBits + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~Gzip() override { ::inflateEnd(&stream_); }

 private:
  std::size_t unpack(char* text, std::size_t size) override {
    const std::string_view packed = bytes_.peek(1);
    if (packed.empty()) fail_cut_off();
    const auto room = static_cast<uInt>(std::min<std::size_t>(size, std::size_t{1} << 30));
    stream_.next_in = reinterpret_cast<const Bytef*>(packed.data());
    stream_.avail_in = static_cast<uInt>(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(text);
    stream_.avail_out = room;
    const int state = ::inflate(&stream_, Z_NO_FLUSH);
    bytes_.drop(packed.size() - stream_.avail_in);
    if (state == Z_MEM_ERROR) throw std::bad_alloc();
    if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR)
      fail_damaged(stream_.msg != nullptr ? stream_.msg : "not what a gzip member holds");
    if (state == Z_STREAM_END) next_member();
    return room - stream_.avail_out;
  }
  /// Behind a member stand another one or the end; tapes fill up with zeros.
  void next_member() {
    std::string_view rest = bytes_.peek(kGzipMagic.size());
    if (rest.starts_with(kGzipMagic)) {
      ::inflateReset(&stream_);
      return;
    }
    while (!rest.empty()) {
      if (rest.find_first_not_of('\0') != std::string_view::npos)
        fail_damaged("something else follows a whole member");
      bytes_.drop(rest.size());
      rest = bytes_.peek(1);
    }
    at_end_ = true;
  }

  z_stream stream_{};
};

#ifdef TRIREME_HAS_ZSTD
class InputStream::Zstandard final : public Unpacker {
 public:
  explicit Zstandard(Bytes& bytes) : Unpacker(bytes, "Zstandard"), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw std::bad_alloc();
    // zstd --long=31 writes what zstd itself reads only when told to.
    constexpr int kWindowLogMax = sizeof(void*) == 8 ? 31 : 30;
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kWindowLogMax);
  }
  ~Zstandard() override { ZSTD_freeDStream(stream_); }

 private:
  std::size_t unpack(char* text, std::size_t size) override {
    const std::string_view packed = bytes_.peek(1);
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer out{text, size, 0};
    const std::size_t left = ZSTD_decompressStream(stream_, &out, &in);
    bytes_.drop(in.pos);
    if (ZSTD_isError(left)) fail_damaged(ZSTD_getErrorName(left));
    // Without input only what is inside the library is left to write.
    if (packed.empty() && out.pos == 0) {
      if (inside_) fail_cut_off();
      at_end_ = true;
    }
    if (!packed.empty()) inside_ = left != 0;
    return out.pos;
  }

  ZSTD_DStream* stream_;
  bool inside_ = false;  // a frame
};
#endif

InputStream::InputStream(const std::string& name) : bytes_(std::make_unique<Bytes>(name)) {}
InputStream::InputStream(InputStream&&) noexcept = default;
InputStream::~InputStream() = default;

const std::string& InputStream::source() const { return bytes_->source(); }
std::int64_t InputStream::taken() const { return bytes_->taken(); }

void InputStream::recognise() {
  recognised_ = true;
  constexpr std::size_t kMagicMax = 9;
  const std::string_view begin = bytes_->peek(kMagicMax);
  if (begin.starts_with(kGzipMagic)) {
    unpacker_ = std::make_unique<Gzip>(*bytes_);
  } else if (begin.starts_with(kZstdMagic) || is_skippable_frame(begin)) {
#ifdef TRIREME_HAS_ZSTD
    unpacker_ = std::make_unique<Zstandard>(*bytes_);
#else
    throw EnvironmentError(
        "{}: is Zstandard, and this build has no libzstd. Install it (Debian: libzstd-dev) and "
        "build again, or: zstd -dc FILE | train ... -",
        source());
#endif
  }
  if (is_bzip2(begin)) {
    throw DataError(
        "{}: is packed by bzip2, no text. Unpack it first: bzip2 -dc FILE | train ... -", source());
  }
  for (const Foreign& foreign : kForeign) {
    if (begin.starts_with(foreign.magic))
      throw DataError("{}: is {}, no text. {}", source(), foreign.what, foreign.remedy);
  }
}

std::size_t InputStream::read(char* text, std::size_t size) {
  if (!recognised_) recognise();
  return unpacker_ ? unpacker_->read(text, size) : bytes_->read(text, size);
}

}  // namespace trireme
