#include "preflight/folder_probe.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "base/trace.h"
#include "checkpoint/retention.h"
#include "train/shared_folder.h"

namespace trireme {

namespace {

constexpr std::int64_t kBlockBytes = 4 << 20;

/// Without a name from the start where the file system can, else at once behind it.
FileDescriptor open_unnamed(const std::filesystem::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (file || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT))
    return file;
  const std::filesystem::path name = folder / (".trireme-write-" + unique_suffix());
  file = FileDescriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file) ::unlink(name.c_str());
  return file;
}

/// Whether all of `block` is on the disk; errno says why not.
bool write_block(int file, const std::vector<float>& block) {
  const auto* at = reinterpret_cast<const std::byte*>(block.data());
  for (std::size_t left = block.size() * sizeof(float); left > 0;) {
    const ::ssize_t written = ::write(file, at, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    left -= static_cast<std::size_t>(written);
  }
  return ::fdatasync(file) == 0;
}

std::int64_t bounded(double value) { return static_cast<std::int64_t>(std::min(value, 0x1p62)); }

void read_space(const std::filesystem::path& folder, FolderFacts& facts) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return;
  facts.free_bytes =
      bounded(static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize));
  if (status.f_files > 0) facts.free_files = bounded(static_cast<double>(status.f_favail));
}

}  // namespace

void time_writing(const std::filesystem::path& folder, FolderFacts& facts,
                  const WritingBounds& bounds) {
  // No run nearby is to find the disk full.
  const std::int64_t bytes_max =
      facts.free_bytes < 0 ? bounds.bytes : std::min(bounds.bytes, facts.free_bytes / 4);
  const FileDescriptor file = open_unnamed(folder);
  if (!file) {
    facts.refused = errno_text(errno);
    return;
  }
  // No file system makes these shorter.
  std::vector<float> block(static_cast<std::size_t>(kBlockBytes) / sizeof(float));
  fill_uniform(stream_key(0, "preflight"), 0, 1, block);
  const std::int64_t begin_ns = steady_now_ns();
  double elapsed = 0;
  std::int64_t written = 0;
  while (elapsed < bounds.seconds && written + kBlockBytes <= bytes_max) {
    if (!write_block(file.get(), block)) {
      facts.refused = errno_text(errno);
      return;
    }
    written += kBlockBytes;
    elapsed = static_cast<double>(steady_now_ns() - begin_ns) * 1e-9;
  }
  if (elapsed > 0)
    facts.bytes_per_second =
        std::max(facts.bytes_per_second, static_cast<double>(written) / elapsed);
}

FolderFacts probe_folder(const Launch& launch, const std::filesystem::path& folder) {
  FolderFacts facts;
  try {
    const FolderMark mark(launch, folder);
    facts.appears = launch.job().rank() == 0 || mark.appears();
    facts.refused = mark.refused();
    launch.job().barrier();       // all have looked
  } catch (const Error& error) {  // on every rank
    facts.fault = error.what();
    return facts;
  }
  if (launch.local_rank() != 0) return facts;
  read_space(folder, facts);
  if (facts.refused.empty()) time_writing(folder, facts);
  return facts;
}

}  // namespace trireme
