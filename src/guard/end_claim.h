#pragma once
// Which rank of a host says why the job ends. Whoever finds a cause (a guard of the launch, a
// watchdog, a fault of its own) asks for the last word; one gets it, and the others end without a
// word, with its code. A rank that is seen dead is thereby told from one that has spoken and left.
// The ranks share no memory before they have met, and the one that speaks is gone soon: so each
// keeps a page of its own, made before anything that can hang, and maps those of the others by
// their entries in /proc, which outlive the process.

#include <atomic>
#include <mutex>
#include <vector>

#include "base/file.h"

namespace trireme {

class EndClaim {
 public:
  EndClaim();
  ~EndClaim();
  EndClaim(const EndClaim&) = delete;
  EndClaim& operator=(const EndClaim&) = delete;

  /// Maps the page of process `pid`, once; this process too. Of several with the lowest rank, and
  /// then the lowest pid, the page decides. One whose page cannot be had (it has ended, or its
  /// descriptors are hidden) is known no better than without this.
  void meet(int rank, int pid);
  /// Whether the last word is the caller's, who prints it and ends the job with `code`, not 0. At
  /// most one call of all those on this host gets true, among ranks that have met. Any thread.
  bool take(int code);
  /// The code of the one that has it; 0: nobody.
  [[nodiscard]] int taken() const;

 private:
  using Word = std::atomic<int>;
  static_assert(Word::is_always_lock_free, "shared between processes");
  struct Page {
    int rank = -1, pid = 0;
    Word* word = nullptr;
  };
  [[nodiscard]] int taken_locked() const;

  mutable std::mutex mutex_;  // guards what follows
  FileDescriptor file_;
  std::vector<Page> pages_;  // by rank and pid
};

}  // namespace trireme
