#pragma once
// What a network library finds out behind the back of who waits: a rank that died, a link that went
// down. Who waits for a GPU stands behind a kernel that spins and asks nobody; the watchdog asks.

#include <functional>
#include <list>
#include <mutex>
#include <string>

namespace trireme {

/// Any thread asks; the connections come and go on their own.
class TransferFaults {
 public:
  /// Of one connection: what has failed, in the library's words, "" while nothing has. It is called
  /// on any thread, and never once this has ended.
  using Look = std::function<std::string()>;
  class Watched {
   public:
    Watched(TransferFaults& faults, Look look);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

   private:
    TransferFaults& faults_;
    std::list<Look>::iterator at_;
  };
  /// Of the first connection that has failed; "" where none has.
  [[nodiscard]] std::string first() const;

 private:
  mutable std::mutex mutex_;
  std::list<Look> looks_;
};

}  // namespace trireme
