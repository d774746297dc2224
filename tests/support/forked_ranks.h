#pragma once
// Ranks that are children of the test, for tests in which ranks die by the thousand: a group starts
// and ends in milliseconds, where a launcher takes seconds. Blocking calls alone; a rank that waits
// for one that is dead waits until it is killed too, as under MPI.

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace trireme {

/// What the ranks of a group share.
struct ForkedMemory {
  static constexpr int kRanksMax = 8;
  static constexpr std::size_t kTextMax = std::size_t{1} << 20;
  struct Slot {
    std::atomic<int> message_for{0};  ///< rank + 1 that the text is sent to; 0: to nobody
    std::size_t bytes = 0;
    char text[kTextMax];
  };
  std::atomic<int> arrived{0}, generation{0};
  std::atomic<std::int64_t> number{0};  ///< for the test
  Slot slots[kRanksMax];
};

class ForkedCommunicator final : public Communicator {
 public:
  ForkedCommunicator(ForkedMemory& memory, int rank, int size)
      : memory_(memory), rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void barrier() override {
    const int generation = memory_.generation;
    if (++memory_.arrived == size_) {
      memory_.arrived = 0;
      ++memory_.generation;
    }
    while (memory_.generation == generation) ::sched_yield();
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    const std::vector<std::string> all = all_gather_text(
        {reinterpret_cast<const char*>(bytes.data()), rank_ == root ? bytes.size() : 0});
    std::memcpy(bytes.data(), all[static_cast<std::size_t>(root)].data(), bytes.size());
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    std::byte* to = all.data();
    for (const std::string& text :
         all_gather_text({reinterpret_cast<const char*>(mine.data()), mine.size()})) {
      std::memcpy(to, text.data(), mine.size());
      to += mine.size();
    }
  }
  std::vector<std::string> all_gather_text(std::string_view mine) override {
    expect(mine.size() <= ForkedMemory::kTextMax, "a text of {} bytes", mine.size());
    ForkedMemory::Slot& slot = memory_.slots[rank_];
    slot.bytes = mine.size();
    mine.copy(slot.text, mine.size());
    barrier();
    std::vector<std::string> all;
    for (int i = 0; i < size_; ++i) all.emplace_back(memory_.slots[i].text, memory_.slots[i].bytes);
    barrier();
    return all;
  }
  Pending start_all_reduce(TensorView) override { refuse(); }
  Pending start_reduce_scatter(TensorView) override { refuse(); }
  Pending start_all_gather(TensorView) override { refuse(); }
  /// One after the other, each until it is taken: no two ranks may send to each other.
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override {
    for (const Message& message : sends) {
      ForkedMemory::Slot& slot = memory_.slots[rank_];
      expect(message.bytes.size() <= ForkedMemory::kTextMax, "a long message");
      std::memcpy(slot.text, message.bytes.data(), message.bytes.size());
      slot.message_for = message.rank + 1;
      while (slot.message_for != 0) ::sched_yield();
    }
    for (const Message& message : receives) {
      ForkedMemory::Slot& slot = memory_.slots[message.rank];
      while (slot.message_for != rank_ + 1) ::sched_yield();
      std::memcpy(message.bytes.data(), slot.text, message.bytes.size());
      slot.message_for = 0;
    }
    return {};
  }
  std::unique_ptr<Communicator> split(int) override { refuse(); }
  std::unique_ptr<Communicator> channel(std::string_view) override { refuse(); }
  [[nodiscard]] TrafficCounters counters() const override { return {}; }

 private:
  [[noreturn]] static void refuse() {
    throw InternalError("forked ranks have no sums and no groups");
  }
  ForkedMemory& memory_;
  int rank_, size_;
};

/// How a group ended.
struct GroupEnd {
  std::vector<int> statuses;  ///< of waitpid, by rank
  bool hung = false;          ///< and was killed
  std::int64_t number = 0;    ///< ForkedMemory's
  /// Every rank returned this.
  [[nodiscard]] bool all_returned(int code) const {
    for (const int status : statuses) {
      if (!WIFEXITED(status) || WEXITSTATUS(status) != code) return false;
    }
    return !hung;
  }
};

class ForkedRanks {
 public:
  ForkedRanks() {
    void* address = ::mmap(nullptr, sizeof(ForkedMemory), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) throw EnvironmentError("no memory to share");
    memory_ = static_cast<ForkedMemory*>(address);
  }
  ~ForkedRanks() { ::munmap(memory_, sizeof(ForkedMemory)); }
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  using Work = std::function<int(Communicator&, ForkedMemory&)>;
  /// Each rank ends with what `work` returns (99 where it throws), without the parent's
  /// destructors. When a rank dies by a signal the others have `grace` to go on, then they are
  /// killed.
  GroupEnd run(int size, const Work& work, std::chrono::milliseconds grace = {}) {
    memory_->arrived = 0;
    memory_->number = 0;
    for (ForkedMemory::Slot& slot : memory_->slots) slot.message_for = 0;
    std::vector<pid_t> pids;
    for (int rank = 0; rank < size; ++rank) pids.push_back(start(rank, size, work));
    GroupEnd end;
    end.statuses.assign(pids.size(), 0);
    const auto begin = std::chrono::steady_clock::now();
    std::size_t left = pids.size();
    bool killed = false;
    while (left > 0) {
      int status = 0;
      const pid_t pid = ::waitpid(-1, &status, killed ? 0 : WNOHANG);
      if (pid == 0) {
        end.hung = std::chrono::steady_clock::now() - begin > std::chrono::seconds(60);
        if (!end.hung) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));
          continue;
        }
      }
      for (std::size_t i = 0; i < pids.size(); ++i) {
        if (pids[i] != pid || pid == 0) continue;
        end.statuses[i] = status;
        pids[i] = 0;
        --left;
      }
      if (killed || !(end.hung || WIFSIGNALED(status))) continue;
      std::this_thread::sleep_for(grace);
      for (const pid_t other : pids) {
        if (other != 0) ::kill(other, SIGKILL);
      }
      killed = true;
    }
    end.number = memory_->number;
    return end;
  }

 private:
  pid_t start(int rank, int size, const Work& work) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      ForkedCommunicator world(*memory_, rank, size);
      ::_exit(work(world, *memory_));
    } catch (const std::exception& error) {
      ::dprintf(STDERR_FILENO, "rank %d: %s\n", rank, error.what());
      ::_exit(99);
    }
  }
  ForkedMemory* memory_ = nullptr;
};

}  // namespace trireme
