#pragma once
// What all communicators of a process share: the lock around every MPI call, and a thread that
// moves started transfers along beside the work of others. Who waits for one where ranks are kept
// on cores moves it along itself: to be woken takes longer than a small transfer. No call under the
// lock blocks, so neither waits long.

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "comm/backoff.h"
#include "comm/flight_recorder.h"
#include "comm/mpi_handles.h"

namespace trireme {

/// A queue of transfers as those who move them see it.
class TransferQueue {
 public:
  virtual ~TransferQueue() = default;
  /// Moves what can move without waiting; true where anything did. One thread at a time.
  virtual bool advance() noexcept = 0;
};

class MpiEngine {
 public:
  explicit MpiEngine(FlightRecorder& recorder);
  /// Stops the thread; transfers under way (while an error unwinds) stay unfinished.
  ~MpiEngine();
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  /// Held around every MPI call.
  [[nodiscard]] std::timed_mutex& mutex() { return mutex_; }
  [[nodiscard]] FlightRecorder& recorder() { return recorder_; }
  /// Polls one request of the calling thread to its end. Throws InternalError.
  void complete(MPI_Request request, const char* operation);

  void attach(TransferQueue& queue);
  void detach(TransferQueue& queue);
  /// Whoever waits for a transfer moves it along, and stays awake for it.
  void wait_awake() { awake_ = true; }
  [[nodiscard]] bool waits_awake() const { return awake_; }
  /// Keeps the thread on these CPUs.
  void keep_on(std::span<const int> cpus);
  /// Moves transfers along until `done()`.
  template <class Done>
  void advance_until(const Done& done) {
    const Waiting waiting(*this);
    Backoff backoff(Backoff::kAwake);
    while (!done()) try_to_advance() ? backoff.reset() : backoff.pause();
  }
  /// One transfer more, one less: the thread sleeps while there is none.
  void add_work();
  void remove_work() noexcept { work_.fetch_sub(1); }

 private:
  /// Meanwhile the thread sleeps, and its timers are as exact as the thread's.
  class Waiting {
   public:
    explicit Waiting(MpiEngine& engine);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    MpiEngine& engine_;
  };
  void run();
  void wake();
  bool try_to_advance();
  bool advance_all();

  FlightRecorder& recorder_;
  std::timed_mutex mutex_;
  std::mutex queues_mutex_;
  std::vector<TransferQueue*> queues_;
  std::mutex wake_mutex_;
  std::condition_variable wake_;
  std::atomic<int> work_{0}, waiting_{0};
  std::atomic<bool> awake_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace trireme
