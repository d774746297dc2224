// Stops a rank of the real program in a phase of its life: `stop_in_phase PID LOCAL_RANK PHASE`.
// Looks into the memory in which the ranks of a host publish where they stand (comm/heartbeat.h)
// and sends SIGSTOP; where the rank was faster, it goes on and the next time is tried. PHASE is a
// name of base/trace.h ("start": from the first sight of that memory on), or
//   init   before that memory is there
//   end    when it is there no more
// Exit 0: it stands there. 1: it never did, within a minute. Needs the right to trace PID.

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "comm/heartbeat.h"
#include "guard/hang.h"

namespace trireme {
namespace {

/// Where the memory of the heartbeat begins in the process; none: it is not there.
std::optional<std::uintptr_t> find_heartbeat(int pid) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/trireme-heartbeat-") != std::string::npos)
      return std::strtoull(line.c_str(), nullptr, 16);
  }
  return std::nullopt;
}

/// As heartbeat.cc lays entries out: a count, the standing, two versions of the beat.
std::optional<Standing> read_standing(int pid, std::uintptr_t begin, int local_rank) {
  constexpr std::size_t kEntryBytes = 2 * sizeof(std::uint64_t) + 2 * sizeof(Beat);
  std::uint64_t word = 0;
  const iovec to{&word, sizeof word};
  const auto address = begin + static_cast<std::size_t>(local_rank) * kEntryBytes + sizeof word;
  const iovec from{reinterpret_cast<void*>(address), sizeof word};
  if (::process_vm_readv(pid, &to, 1, &from, 1, 0) != sizeof word) return std::nullopt;
  return unpack_standing(word);
}

class Rank {
 public:
  Rank(int pid, int local_rank) : pid_(pid), local_rank_(local_rank) {}

  [[nodiscard]] bool stands_in(const std::string& phase) {
    if (phase == "init" || phase == "end" || !heartbeat_) {
      heartbeat_ = find_heartbeat(pid_);  // takes long; where it is found it stays
      seen_ = seen_ || heartbeat_;
    }
    if (phase == "init") return !heartbeat_;
    if (phase == "end") return seen_ && !heartbeat_;
    if (!heartbeat_) return false;
    const std::optional<Standing> standing = read_standing(pid_, *heartbeat_, local_rank_);
    return standing && name_of(standing->phase) == phase;
  }

  bool stop_in(const std::string& phase) {
    const std::int64_t begin_ns = steady_now_ns();
    while (steady_now_ns() - begin_ns < 60'000'000'000) {
      if (!stands_in(phase)) continue;
      if (::kill(pid_, SIGSTOP) != 0) return false;
      char state = '?';
      while ((state = process_state_of(pid_)) != 'T' && state != '-' && state != 'Z') ::usleep(100);
      if (state != 'T') return false;
      if (stands_in(phase)) return true;
      if (::kill(pid_, SIGCONT) != 0) return false;
      ::usleep(1000);
    }
    return false;
  }

 private:
  int pid_, local_rank_;
  std::optional<std::uintptr_t> heartbeat_;
  bool seen_ = false;
};

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: stop_in_phase PID LOCAL_RANK PHASE\n");
    return 2;
  }
  trireme::Rank rank(std::atoi(argv[1]), std::atoi(argv[2]));
  return rank.stop_in(argv[3]) ? 0 : 1;
}
