// A library to preload (LD_PRELOAD): kills the process at a chosen call that changes files, or
// makes the system refuse it. Calls of all threads count together, so a save in the background is
// hit as one in the foreground is; a tracer that counts by thread would miss that.
//
// TRIREME_FAULT_DIRECTORY  only calls on what lies below it count
// TRIREME_FAULT_RANK       only this rank of an MPI job (0)
// TRIREME_FAULT            count:FILE   appends the number of calls to FILE at exit
//                          kill:K       SIGKILL in place of call K (from 0)
//                          once:K:ERRNO call K fails; from:K:ERRNO  it and all behind it
//                          short:K      write K and all behind it do half of what is asked
// A test in the same process may say the same by trireme_fault_arm instead.

#include "support/faults_preload.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using trireme::FaultKind;

std::atomic<FaultKind> kind{FaultKind::kNone};
std::atomic<int> fault_at{0}, fault_errno{0}, calls{0};
char directory[PATH_MAX];
char count_file[PATH_MAX];

int rank_of_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return 0;
}

__attribute__((constructor)) void read_environment() {
  const char* where = std::getenv("TRIREME_FAULT_DIRECTORY");
  if (where != nullptr) std::snprintf(directory, sizeof directory, "%s", where);
  const char* rank = std::getenv("TRIREME_FAULT_RANK");
  const char* what = std::getenv("TRIREME_FAULT");
  if (what == nullptr || rank_of_process() != (rank == nullptr ? 0 : std::atoi(rank))) return;
  int at = 0, error = 0;
  if (std::sscanf(what, "kill:%d", &at) == 1) {
    kind = FaultKind::kKill;
  } else if (std::sscanf(what, "once:%d:%d", &at, &error) == 2) {
    kind = FaultKind::kFailOnce;
  } else if (std::sscanf(what, "from:%d:%d", &at, &error) == 2) {
    kind = FaultKind::kFailFromHere;
  } else if (std::sscanf(what, "short:%d", &at) == 1) {
    kind = FaultKind::kShort;
  } else if (std::strncmp(what, "count:", 6) == 0) {
    std::snprintf(count_file, sizeof count_file, "%s", what + 6);
  }
  fault_at = at;
  fault_errno = error;
}

__attribute__((destructor)) void write_count() {
  if (count_file[0] == '\0') return;
  char text[32];
  const int length = std::snprintf(text, sizeof text, "%d\n", calls.load());
  const long file =
      ::syscall(SYS_openat, AT_FDCWD, count_file, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (file < 0) return;
  ::syscall(SYS_write, file, text, static_cast<std::size_t>(length));
  ::syscall(SYS_close, file);
}

bool below(const char* path) {
  const std::size_t length = std::strlen(directory);
  return length > 0 && std::strncmp(path, directory, length) == 0;
}

bool file_counts(int descriptor) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link, path, sizeof path - 1);
  if (length < 0) return false;
  path[length] = '\0';
  return below(path);
}

bool path_counts(int at, const char* path) {
  if (path[0] == '/') return below(path);
  char base[PATH_MAX] = "", whole[2 * PATH_MAX];
  if (at == AT_FDCWD) {
    if (::getcwd(base, sizeof base) == nullptr) return false;
  } else {
    char link[64];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    const ssize_t length = ::readlink(link, base, sizeof base - 1);
    if (length < 0) return false;
    base[length] = '\0';
  }
  std::snprintf(whole, sizeof whole, "%s/%s", base, path);
  return below(whole);
}

/// What becomes of a call that counts.
enum class Fate { kDone, kRefused, kHalf };
enum class Call { kWrite, kOther, kRemoval };

Fate fate_of(Call call) {
  const int number = calls++;
  const int at = fault_at;
  switch (kind.load()) {
    case FaultKind::kNone:
      return Fate::kDone;
    case FaultKind::kKill:
      if (number == at) ::kill(::getpid(), SIGKILL);
      return Fate::kDone;
    case FaultKind::kShort:
      return call == Call::kWrite && number >= at ? Fate::kHalf : Fate::kDone;
    case FaultKind::kFailOnce:
    case FaultKind::kFailFromHere:
      break;
  }
  // Removing is not refused: a disk that is full or failing lets go of names.
  const bool hit = kind.load() == FaultKind::kFailOnce ? number == at : number >= at;
  if (!hit || call == Call::kRemoval) return Fate::kDone;
  errno = fault_errno;
  return Fate::kRefused;
}

std::size_t half_of(Fate fate, std::size_t bytes) {
  return fate == Fate::kHalf && bytes > 1 ? bytes / 2 : bytes;
}

long open_counted(int at, const char* path, int flags, mode_t mode) {
  if ((flags & O_CREAT) != 0 && path_counts(at, path) && fate_of(Call::kOther) == Fate::kRefused)
    return -1;
  return ::syscall(SYS_openat, at, path, flags, mode);
}

mode_t mode_argument(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

bool refused(bool counts, Call call = Call::kOther) {
  return counts && fate_of(call) == Fate::kRefused;
}

}  // namespace

extern "C" {

void trireme_fault_arm(int new_kind, int at, int error) {
  kind = FaultKind::kNone;
  calls = 0;
  fault_at = at;
  fault_errno = error;
  kind = static_cast<FaultKind>(new_kind);
}
int trireme_fault_calls() { return calls; }
void trireme_fault_directory(const char* path) {
  std::snprintf(directory, sizeof directory, "%s", path);
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return static_cast<int>(open_counted(AT_FDCWD, path, flags, mode));
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return static_cast<int>(open_counted(AT_FDCWD, path, flags, mode));
}
int openat(int at, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return static_cast<int>(open_counted(at, path, flags, mode));
}
int openat64(int at, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return static_cast<int>(open_counted(at, path, flags, mode));
}
ssize_t write(int file, const void* bytes, size_t count) {
  const Fate fate = file > STDERR_FILENO && file_counts(file) ? fate_of(Call::kWrite) : Fate::kDone;
  if (fate == Fate::kRefused) return -1;
  return ::syscall(SYS_write, file, bytes, half_of(fate, count));
}
ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  const Fate fate = file_counts(file) ? fate_of(Call::kWrite) : Fate::kDone;
  if (fate == Fate::kRefused) return -1;
  return ::syscall(SYS_pwrite64, file, bytes, half_of(fate, count), offset);
}
ssize_t pwrite64(int file, const void* bytes, size_t count, off64_t offset) {
  return pwrite(file, bytes, count, offset);
}
int fsync(int file) {
  return refused(file_counts(file)) ? -1 : static_cast<int>(::syscall(SYS_fsync, file));
}
int fdatasync(int file) {
  return refused(file_counts(file)) ? -1 : static_cast<int>(::syscall(SYS_fdatasync, file));
}
int sync_file_range(int file, off64_t offset, off64_t count, unsigned flags) {
  if (refused(file_counts(file))) return -1;
  return static_cast<int>(::syscall(SYS_sync_file_range, file, offset, count, flags));
}
int fallocate(int file, int mode, off_t offset, off_t count) {
  if (refused(file_counts(file))) return -1;
  return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, count));
}
int ftruncate(int file, off_t length) noexcept {
  return refused(file_counts(file)) ? -1 : static_cast<int>(::syscall(SYS_ftruncate, file, length));
}
int ftruncate64(int file, off64_t length) noexcept { return ftruncate(file, length); }
int mkdir(const char* path, mode_t mode) noexcept {
  if (refused(path_counts(AT_FDCWD, path))) return -1;
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int rename(const char* from, const char* to) noexcept {
  if (refused(path_counts(AT_FDCWD, from))) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  if (refused(path_counts(from_at, from))) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, from_at, from, to_at, to, flags));
}
int unlink(const char* path) noexcept {
  if (refused(path_counts(AT_FDCWD, path), Call::kRemoval)) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int unlinkat(int at, const char* path, int flags) noexcept {
  if (refused(path_counts(at, path), Call::kRemoval)) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, at, path, flags));
}
int rmdir(const char* path) noexcept {
  if (refused(path_counts(AT_FDCWD, path), Call::kRemoval)) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
}
