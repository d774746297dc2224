#pragma once
// What all communicators of a process share: the lock around every MPI call, and a thread that
// moves started transfers along. No call under the lock blocks, so neither waits long.

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/mpi_handles.h"

namespace trireme {

/// A queue of transfers as the communication thread sees it.
class TransferQueue {
 public:
  virtual ~TransferQueue() = default;
  /// Moves what can move without waiting; true where anything did. Of the communication thread.
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
  /// One transfer more, one less: the thread sleeps while there is none.
  void add_work();
  void remove_work() noexcept { work_.fetch_sub(1); }

 private:
  void run();
  bool advance_all();

  FlightRecorder& recorder_;
  std::timed_mutex mutex_;
  std::mutex queues_mutex_;
  std::vector<TransferQueue*> queues_;
  std::mutex wake_mutex_;
  std::condition_variable wake_;
  std::atomic<int> work_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace trireme
