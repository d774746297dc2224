#include "comm/mpi_engine.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>

#include "base/cpu_mask.h"
#include "base/signal_free_thread.h"

namespace trireme {

MpiEngine::MpiEngine(FlightRecorder& recorder) : recorder_(recorder) {
  thread_ = signal_free_thread([this] { run(); });
}

MpiEngine::~MpiEngine() {
  {
    const std::lock_guard lock(wake_mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MpiEngine::complete(MPI_Request request, const char* operation) {
  Backoff backoff;
  for (int done = 0; done == 0;) {
    {
      const std::lock_guard lock(mutex_);
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), operation);
    }
    if (done == 0) backoff.pause();
  }
}

void MpiEngine::keep_on(std::span<const int> cpus) {
  CpuMask mask;
  for (const int cpu : cpus) mask.add(cpu);
  mask.apply(thread_.native_handle());
}

void MpiEngine::attach(TransferQueue& queue) {
  const std::lock_guard lock(queues_mutex_);
  queues_.push_back(&queue);
}

void MpiEngine::detach(TransferQueue& queue) {
  const std::lock_guard lock(queues_mutex_);
  std::erase(queues_, &queue);
}

namespace {

/// Else the kernel rounds short sleeps up by 50 us: several times a small transfer.
void expect_short_sleeps() { ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); }

}  // namespace

MpiEngine::Waiting::Waiting(MpiEngine& engine) : engine_(engine) {
  static thread_local const bool exact = (expect_short_sleeps(), true);
  static_cast<void>(exact);
  engine_.waiting_.fetch_add(1);
}

MpiEngine::Waiting::~Waiting() {
  if (engine_.waiting_.fetch_sub(1) == 1 && engine_.work_ > 0) engine_.wake();
}

void MpiEngine::add_work() {
  if (work_.fetch_add(1) == 0) wake();
}

void MpiEngine::wake() {
  {
    const std::lock_guard lock(wake_mutex_);
  }  // so that the thread is not between its check and its sleep
  wake_.notify_one();
}

void MpiEngine::run() {
  pthread_setname_np(pthread_self(), "comm");
  expect_short_sleeps();
  Backoff backoff;
  while (!stop_) {
    if (work_ == 0 || waiting_ > 0) {
      std::unique_lock lock(wake_mutex_);
      wake_.wait(lock, [this] { return stop_ || (work_ > 0 && waiting_ == 0); });
      backoff.reset();
    }
    if (try_to_advance()) {
      backoff.reset();
    } else {
      backoff.pause();
    }
  }
}

bool MpiEngine::try_to_advance() {
  const std::unique_lock lock(queues_mutex_, std::try_to_lock);
  return lock && advance_all();
}

bool MpiEngine::advance_all() {
  bool moved = false;
  for (TransferQueue* queue : queues_) moved = queue->advance() || moved;
  return moved;
}

}  // namespace trireme
