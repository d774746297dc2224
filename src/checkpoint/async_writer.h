#pragma once
// Saving beside training. A step waits until this rank's shards are copied (staging.h); then one
// thread of each process, the only one that HDF5 sees, writes this rank's file, and rank 0's the
// rest, while training goes on. Ranks agree on the main thread alone: what each has to report rides
// on the step's report, and only where all files are written are their entries gathered.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/writer.h"
#include "comm/communicator.h"

namespace trireme {

/// The same on every rank.
struct SaveResult {
  std::int64_t step = 0;
  std::filesystem::path path;  ///< DIRECTORY/step-N
  std::int64_t bytes = 0;      ///< payload of all ranks
  double seconds = 0;          ///< from the beginning to the commit, on rank 0's clock
  std::string error;           ///< why nothing was saved; "" where it was
  std::string warning;         ///< older checkpoints that could not be removed
  [[nodiscard]] bool saved() const { return error.empty(); }
};

/// What the writing thread of a rank last did.
enum class WriterState : std::int64_t { kIdle, kBusy, kDone, kFailed };

/// What the writing threads of several ranks last did.
struct WriterStates {
  WriterState first = WriterState::kIdle;  ///< of the lowest rank
  std::int64_t any_busy = 0, any_failed = 0;

  WriterStates() = default;
  explicit WriterStates(WriterState state)
      : first(state),
        any_busy(state == WriterState::kBusy ? 1 : 0),
        any_failed(state == WriterState::kFailed ? 1 : 0) {}
  /// With those of higher ranks.
  void add(const WriterStates& higher) {
    any_busy |= higher.any_busy;
    any_failed |= higher.any_failed;
  }
  /// Collective.
  static WriterStates of_all(WriterState mine, Communicator& world);
};

/// One thread that does one job at a time and keeps its outcome.
class WriterThread {
 public:
  /// Calls `first` before any job.
  explicit WriterThread(std::function<void()> first);
  ~WriterThread();
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;

  /// Only where none is under way.
  void start(std::function<std::string()> job);
  [[nodiscard]] WriterState state() const { return state_.load(std::memory_order_acquire); }
  /// What the last job returned or, where it failed, what it threw; "" where it was cancelled.
  [[nodiscard]] const std::string& outcome() const { return outcome_; }
  /// Waits for the job's end, at most so long.
  void wait(std::chrono::milliseconds patience);
  /// For the job: it has not stood still.
  void progress() noexcept;
  /// steady_now_ns of the last progress, 0 where no job is under way. Any thread.
  [[nodiscard]] const std::atomic<std::int64_t>& last_progress_ns() const {
    return last_progress_ns_;
  }

 private:
  void run();

  std::atomic<WriterState> state_{WriterState::kIdle};
  std::atomic<std::int64_t> last_progress_ns_{0};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::function<std::string()> job_;
  std::string outcome_;
  bool quit_ = false;
  std::thread thread_;
};

/// How much memory saves of a state are staged in.
struct StagingChoice {
  /// Bounds it, from 1 MiB on; 0: what the state needs. Below that, shards are at most half of it.
  std::int64_t bytes_max = 0;
  Context* context = nullptr;  ///< of the GPU that holds the tensors; null: they are on the host
  /// kStay: every save will be waited for, so that there is room for what is copied even then.
  Meanwhile saves = Meanwhile::kChange;
};

class AsyncWriter {
 public:
  /// Takes the staging memory for saves of `state`, of which only the boxes are looked at.
  AsyncWriter(Communicator& world, const State& state, const StagingChoice& choice);
  /// Gives up a save under way: what there is of it is a leftover (remove_leftovers).
  ~AsyncWriter();
  AsyncWriter(const AsyncWriter&) = delete;
  AsyncWriter& operator=(const AsyncWriter&) = delete;

  // Collective, on the thread that owns the tensors. None throws for what a file system refuses on
  // any rank: a failed save leaves what was there before and no temporary folder.
  /// Returns once the tensors may change: all is staged on every rank. With little staging memory
  /// that is when the writer has taken the rest; for who waits anyway (kStay), when all ranks'
  /// files are written from the tensors. `request.state` is not kept. A result if it failed.
  std::optional<SaveResult> begin(const SaveRequest& request,
                                  Meanwhile meanwhile = Meanwhile::kChange);
  /// After each step: `states` of all ranks, reported since the last. The result of an ended save.
  std::optional<SaveResult> advance(const WriterStates& states);
  /// Waits for the save under way.
  SaveResult finish();

  /// A save is under way; the same on every rank.
  [[nodiscard]] bool busy() const { return save_ != nullptr; }
  /// Of the save under way.
  [[nodiscard]] std::int64_t step() const;
  [[nodiscard]] WriterState state() const { return thread_.state(); }
  [[nodiscard]] std::int64_t staging_bytes() const { return staging_.bytes(); }
  /// As WriterThread's: for the watchdog.
  [[nodiscard]] const std::atomic<std::int64_t>& last_progress_ns() const {
    return thread_.last_progress_ns();
  }

 private:
  struct Save;
  /// The files of all ranks are written, or a failure has ended that.
  void wait_for_files();
  /// Whether every rank is; a failure on any of them ends the staging on all. Collective.
  bool all_done(bool done);
  std::string write_files(Save& save);
  void start_last_part();
  SaveResult end_save(const std::string& warning);

  Communicator& world_;
  const StagingChoice choice_;
  Staging staging_;
  std::unique_ptr<Save> save_;
  WriterThread thread_;  // ends before what its job uses
};

}  // namespace trireme
