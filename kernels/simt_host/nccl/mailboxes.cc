#include "kernels/simt_host/nccl/mailboxes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace trireme::simt {

namespace {

constexpr std::size_t kHeaderBytes = 64;

/// Also of one that its parent has not yet asked for.
bool has_ended(std::int32_t pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return true;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'Z';
}

}  // namespace

Mailboxes::Mailboxes(const std::string& name, int rank, int ranks) : rank_(rank), ranks_(ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  bytes_ = kHeaderBytes + count * sizeof(Rank) + count * count * sizeof(Box);
  const int file = ::shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0) throw std::runtime_error(name + ": " + std::strerror(errno));
  if (::ftruncate(file, static_cast<off_t>(bytes_)) == 0)
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  ::close(file);
  if (memory_ == nullptr || memory_ == MAP_FAILED)
    throw std::runtime_error(name + ": " + std::strerror(error));
  auto* bytes = static_cast<char*>(memory_);
  attached_ = reinterpret_cast<std::atomic<std::int32_t>*>(bytes);
  of_ranks_ = reinterpret_cast<Rank*>(bytes + kHeaderBytes);
  boxes_ = reinterpret_cast<Box*>(bytes + kHeaderBytes + count * sizeof(Rank));
  of_ranks_[rank].pid.store(::getpid());
  attached_->fetch_add(1);
  while (attached_->load() < ranks) {
    if (dead_rank() >= 0)
      throw std::runtime_error("rank " + std::to_string(dead_rank()) + " is gone");
    ::usleep(200);
  }
  if (rank == 0) ::shm_unlink(name.c_str());
}

Mailboxes::~Mailboxes() { ::munmap(memory_, bytes_); }

int Mailboxes::dead_rank() const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const Rank& of = of_ranks_[rank];
    if (of.pid.load() != 0 && of.left.load() == 0 && has_ended(of.pid.load())) return rank;
  }
  return -1;
}

void Mailboxes::stand(std::string_view where) {
  std::array<char, 120>& to = of_ranks_[rank_].standing;
  const std::size_t size = where.copy(to.data(), to.size() - 1);
  to[size] = '\0';
}

std::string Mailboxes::standing() const {
  std::string text;
  for (int rank = 0; rank < ranks_; ++rank) {
    const char* where = of_ranks_[rank].standing.data();
    text += "\n  rank " + std::to_string(rank) + " " +
            (*where == '\0' ? std::string("in none of its transfers")
                            : "waits in " + std::string(where));
  }
  return text;
}

}  // namespace trireme::simt
