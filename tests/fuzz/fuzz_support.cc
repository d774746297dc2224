#include "fuzz_support.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>

#include "base/log.h"

namespace trireme::fuzz {

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr double kSecondsMax = 10;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr double kSecondsMax = 10;
#else
constexpr double kSecondsMax = 1;
#endif
#else
constexpr double kSecondsMax = 1;
#endif

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Bytes of the UTF-8 character that `text` begins with, 0 where there is none. Written apart from
/// the program's own, so that the two must agree.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  std::uint32_t point = lead & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    point = point << 6 | (byte(i) & 0x3FU);
  }
  const std::uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  return point < least || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF) ? 0 : length;
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) defect("cannot make a temporary folder");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

void defect(std::string_view what) {
  std::fprintf(stderr, "fuzz: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void require_readable(std::string_view message, int lines_max) {
  const auto bad = [&](const char* what) { defect(fmt::format("{}: {}", what, message)); };
  if (message.empty()) bad("an error without a message");
  if (message.size() > static_cast<std::size_t>(lines_max) * 4096) bad("an endless message");
  int lines = 1;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t length = character_bytes(message.substr(at));
    if (length == 0) bad("a message that is not UTF-8");
    const auto byte = static_cast<unsigned char>(message[at]);
    if (byte == '\n' && ++lines <= lines_max) {
      ++at;
      continue;
    }
    if (byte < 0x20 || byte == 0x7F) bad("a control character in a message");
    at += length;
  }
}

bool accepted(const Expected& expected, const std::function<void()>& body) {
  const double begin = processor_seconds();
  bool returned = false;
  try {
    body();
    returned = true;
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (std::find(expected.codes.begin(), expected.codes.end(), error.code()) ==
        expected.codes.end()) {
      defect(fmt::format("exit code {}: {}", static_cast<int>(error.code()), message));
    }
    require_readable(message, error.code() == ExitCode::kConfig ? 300 : 1);
    if (error.code() == ExitCode::kData && message.find(expected.place) == std::string_view::npos) {
      defect(fmt::format("a message that does not name {}: {}", expected.place, message));
    }
  } catch (const std::exception& error) {
    defect(fmt::format("an exception that is no Error: {}", error.what()));
  }
  const double seconds = processor_seconds() - begin;
  if (seconds > kSecondsMax) defect(fmt::format("{:.1f} s of processor time", seconds));
  return returned;
}

const std::filesystem::path& folder() {
  static const Folder made;
  static const bool quiet = [] {
    set_log_rank(1);  // warnings of rank 0 would fill the screen
    return true;
  }();
  (void)quiet;
  return made.path();
}

std::filesystem::path put(const std::string& name, std::string_view bytes) {
  std::filesystem::path path = folder() / name;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) defect("cannot write into the temporary folder");
  const std::size_t written = std::fwrite(bytes.data(), 1, bytes.size(), file);
  if (std::fclose(file) != 0 || written != bytes.size()) defect("cannot write a temporary file");
  return path;
}

std::vector<std::string> split_texts(std::string_view input, std::size_t count) {
  constexpr std::string_view kLine = "\n%%\n";
  std::vector<std::string> parts(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t end = i + 1 < count ? input.find(kLine) : std::string_view::npos;
    parts[i] = input.substr(0, end);
    if (end == std::string_view::npos) break;
    input.remove_prefix(end + kLine.size());
  }
  return parts;
}

std::vector<std::string> split_parts(std::string_view input, std::size_t count) {
  std::vector<std::uint32_t> sizes(count - 1);
  const std::size_t head = std::min(input.size(), sizes.size() * sizeof(std::uint32_t));
  std::memcpy(sizes.data(), input.data(), head);
  input.remove_prefix(head);
  std::vector<std::string> parts;
  for (const std::uint32_t size : sizes) {
    parts.emplace_back(input.substr(0, size));
    input.remove_prefix(parts.back().size());
  }
  parts.emplace_back(input);
  return parts;
}

std::string join_parts(std::span<const std::string> parts) {
  std::string input, bytes;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto size = static_cast<std::uint32_t>(parts[i].size());
    if (i + 1 < parts.size()) input.append(reinterpret_cast<const char*>(&size), sizeof size);
    bytes += parts[i];
  }
  return input + bytes;
}

void mutate_part(std::string& part, std::size_t size_max) {
  size_max = std::max(size_max, part.size());
  std::vector<std::uint8_t> bytes(part.begin(), part.end());
  bytes.resize(std::max<std::size_t>(size_max, 1));
  const std::size_t size = LLVMFuzzerMutate(bytes.data(), part.size(), bytes.size());
  part.assign(reinterpret_cast<const char*>(bytes.data()), size);
}

std::size_t give_back(std::string_view input, std::uint8_t* data, std::size_t size_max) {
  const std::size_t size = std::min(input.size(), size_max);
  std::memcpy(data, input.data(), size);
  return size;
}

}  // namespace trireme::fuzz
