#include "guard/end_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

namespace trireme {

namespace {
constexpr const char* kName = "trireme-end-claim";

/// That file of process `pid`, opened anew; none where it cannot be had.
FileDescriptor file_of(int pid) {
  std::error_code fault;
  const std::string wanted = fmt::format("/memfd:{} (deleted)", kName);
  for (std::filesystem::directory_iterator at(fmt::format("/proc/{}/fd", pid), fault), end;
       !fault && at != end; at.increment(fault)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(at->path(), gone) != wanted) continue;
    return FileDescriptor(::open(at->path().c_str(), O_RDWR | O_CLOEXEC));
  }
  return {};
}
}  // namespace

EndClaim::EndClaim() : file_(::memfd_create(kName, MFD_CLOEXEC)) {
  if (file_ && ::ftruncate(file_.get(), sizeof(Word)) != 0) file_ = {};
}

EndClaim::~EndClaim() {
  for (const Page& page : pages_) ::munmap(page.word, sizeof(Word));
}

void EndClaim::meet(int rank, int pid) {
  const std::lock_guard lock(mutex_);
  const bool known =
      std::any_of(pages_.begin(), pages_.end(), [&](const Page& page) { return page.pid == pid; });
  if (known) return;
  const FileDescriptor file = file_of(pid);
  // One that has not come so far as to make it is asked again.
  if (!file || ::lseek(file.get(), 0, SEEK_END) < static_cast<off_t>(sizeof(Word))) return;
  void* const address =
      ::mmap(nullptr, sizeof(Word), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return;
  pages_.push_back({rank, pid, static_cast<Word*>(address)});
  std::sort(pages_.begin(), pages_.end(), [](const Page& a, const Page& b) {
    return std::pair(a.rank, a.pid) < std::pair(b.rank, b.pid);
  });
}

int EndClaim::taken_locked() const {
  for (const Page& page : pages_) {
    if (const int code = page.word->load(); code != 0) return code;
  }
  return 0;
}

int EndClaim::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_locked();
}

bool EndClaim::take(int code) {
  const std::lock_guard lock(mutex_);
  if (pages_.empty()) return true;
  if (taken_locked() != 0) return false;
  int nobody = 0;
  if (!pages_.front().word->compare_exchange_strong(nobody, code)) return false;
  // For those that have not met the first one.
  const auto mine = std::find_if(pages_.begin(), pages_.end(),
                                 [](const Page& page) { return page.pid == ::getpid(); });
  if (mine != pages_.end()) mine->word->store(code);
  return true;
}

}  // namespace trireme
