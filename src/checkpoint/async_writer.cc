#include "checkpoint/async_writer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/signal_free_thread.h"
#include "base/trace.h"
#include "checkpoint/manifest.h"
#include "config/run_config.h"

namespace trireme {

namespace {

/// How long a rank waits before it reports that it still waits.
constexpr std::chrono::milliseconds kPatience{100};

std::int64_t staging_bytes_of(const State& state, const StagingChoice& choice) {
  const std::int64_t all =
      copied_bytes(state, own_shards(state, kShardBytesMax), choice.saves, choice.context);
  if (choice.bytes_max == 0) return all;
  return std::min(all, std::max(choice.bytes_max, RunConfig::Checkpoint::kStagingBytesMin));
}

std::string of_rank(const Communicator& world, int rank, const std::string& error) {
  return world.size() == 1 ? error : fmt::format("rank {}: {}", rank, error);
}

/// In front of what a rank's thread has to say.
constexpr char kWritten = 'w', kFailed = 'f';

/// Of neighbours: what both have written or, where one failed, why the lowest did.
std::string join_outcomes(const std::string& lower, const std::string& higher, bool split) {
  const bool failed = lower[0] == kFailed;
  if (failed && (lower.size() > 1 || higher[0] != kFailed)) return lower;
  if (failed || higher[0] == kFailed) return higher;
  try {
    return kWritten + join_written(lower.substr(1), higher.substr(1), split);
  } catch (const std::exception& error) {
    return kFailed + std::string(error.what());
  }
}

}  // namespace

WriterStates WriterStates::of_all(WriterState mine, Communicator& world) {
  WriterStates states(mine);
  world.combined(states,
                 [](WriterStates& lower, const WriterStates& higher) { lower.add(higher); });
  return states;
}

WriterThread::WriterThread(std::function<void()> first) {
  thread_ = signal_free_thread([this, first = std::move(first)] {
    first();
    run();
  });
}

WriterThread::~WriterThread() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WriterThread::start(std::function<std::string()> job) {
  const std::lock_guard lock(mutex_);
  expect(state() != WriterState::kBusy, "the writer has a job");
  job_ = std::move(job);
  progress();
  state_ = WriterState::kBusy;
  changed_.notify_all();
}

void WriterThread::wait(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return state() != WriterState::kBusy; });
}

void WriterThread::progress() noexcept {
  last_progress_ns_.store(steady_now_ns(), std::memory_order_relaxed);
}

void WriterThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return quit_ || job_; });
    if (!job_) return;
    const std::function<std::string()> job = std::exchange(job_, {});
    lock.unlock();
    WriterState state = WriterState::kDone;
    std::string outcome;
    try {
      outcome = job();
    } catch (const SaveCancelled&) {
      state = WriterState::kFailed;
    } catch (const std::exception& error) {
      state = WriterState::kFailed;
      outcome = error.what();
    }
    lock.lock();
    outcome_ = std::move(outcome);
    last_progress_ns_ = 0;
    state_.store(state, std::memory_order_release);
    changed_.notify_all();
  }
}

/// The save under way. The thread's jobs read it; the main thread changes it between them.
struct AsyncWriter::Save {
  SaveRequest request;  // without state
  Json scalars;
  std::vector<StateTensor> tensors;  // names and boxes; their memory is not touched
  std::vector<OwnShard> shards;
  std::filesystem::path folder;
  std::int64_t bytes = 0, begin_ns = 0;
  double seconds = 0;
  std::string error;
  bool split = false;
  std::string written;  // by all ranks, on rank 0
  bool files_ended = false;

  void note_seconds() { seconds = static_cast<double>(steady_now_ns() - begin_ns) * 1e-9; }
};

AsyncWriter::AsyncWriter(Communicator& world, const State& state, const StagingChoice& choice)
    : world_(world),
      choice_(choice),
      staging_(staging_bytes_of(state, choice), choice.context),
      thread_([this] { staging_.populate(); }) {}

AsyncWriter::~AsyncWriter() { staging_.cancel(); }

std::int64_t AsyncWriter::step() const { return save_ ? save_->request.step : -1; }

std::optional<SaveResult> AsyncWriter::begin(const SaveRequest& request, Meanwhile meanwhile) {
  if (choice_.saves == Meanwhile::kStay) meanwhile = Meanwhile::kStay;
  expect(request.state != nullptr && request.step >= 0, "a save without state");
  expect(!busy(), "a save of step {} while another is under way", request.step);
  save_ = std::make_unique<Save>();
  Save& save = *save_;
  save.begin_ns = steady_now_ns();
  save.request = request;
  save.request.state = nullptr;
  save.scalars = request.state->scalars;
  save.tensors = request.state->tensors;
  std::array<std::int64_t, 2> bytes_shards{0, 0};
  try {
    run_together(world_, [&] {
      save.shards = own_shards(*request.state, request.shard_bytes_max);
      if (copied_bytes(*request.state, save.shards, meanwhile, choice_.context) >
          staging_.bytes()) {
        save.shards =
            own_shards(*request.state, std::min(request.shard_bytes_max, staging_.bytes() / 2));
      }
      for (const OwnShard& shard : save.shards) bytes_shards[0] += shard.bytes;
      bytes_shards[1] = std::ssize(save.shards);
    });
    world_.sum(bytes_shards);
    save.bytes = bytes_shards[0];
    save.split = bytes_shards[1] > request.listed_shards_max;
    run_together(world_, [&] {
      if (world_.rank() == 0) save.folder = make_temporary_folder(request, save.bytes);
    });
  } catch (const std::exception& error) {
    save.error = error.what();
    save.note_seconds();
    return end_save("");
  }
  save.folder = world_.broadcast_text(save.folder.string(), 0);
  staging_.open(*request.state, save.shards, meanwhile);
  bool begun = false, staged = false;
  do {
    staged = staging_.stage(kPatience);
    // Behind the copy, which takes all cores and which a step waits for.
    if (!std::exchange(begun, true)) thread_.start([this, &save] { return write_files(save); });
  } while (!all_done(staged));
  if (meanwhile == Meanwhile::kStay) wait_for_files();
  return std::nullopt;
}

void AsyncWriter::wait_for_files() {
  do {
    thread_.wait(kPatience);
  } while (!all_done(state() != WriterState::kBusy));
}

bool AsyncWriter::all_done(bool done) {
  std::array<std::int64_t, 2> left_failed{done ? 0 : 1, state() == WriterState::kFailed ? 1 : 0};
  world_.maximum(left_failed);
  if (left_failed[1] != 0) staging_.cancel();
  return left_failed[0] == 0;
}

std::string AsyncWriter::write_files(Save& save) {
  try {
    return write_rank_file(
        {save.request, save.folder, world_.rank(), save.tensors, save.shards, save.split}, staging_,
        [this] { thread_.progress(); });
  } catch (...) {
    staging_.cancel();
    throw;
  }
}

std::optional<SaveResult> AsyncWriter::advance(const WriterStates& states) {
  if (!busy()) return std::nullopt;
  Save& save = *save_;
  if (!save.files_ended) {
    if (states.any_failed != 0) staging_.cancel();
    if (states.any_busy == 0) start_last_part();
    return std::nullopt;
  }
  if (states.first == WriterState::kBusy) return std::nullopt;
  Json result = Json::object();
  if (world_.rank() == 0) {
    if (save.error.empty() && state() == WriterState::kFailed)
      save.error = of_rank(world_, 0, thread_.outcome());
    result["error"] = save.error;
    result["warning"] = state() == WriterState::kDone ? thread_.outcome() : "";
    result["seconds"] = save.seconds;
  }
  result = parse_json(world_.broadcast_text(result.dump(), 0), "the end of a save");
  save.error = result.find("error")->as_string();
  save.seconds = result.find("seconds")->as_double();
  return end_save(result.find("warning")->as_string());
}

void AsyncWriter::start_last_part() {
  Save& save = *save_;
  save.files_ended = true;
  std::string mine = kWritten + thread_.outcome();
  if (state() == WriterState::kFailed) {
    const std::string& why = thread_.outcome();  // a cancelled rank says nothing
    mine = kFailed + (why.empty() ? "" : of_rank(world_, world_.rank(), why));
  }
  save.written =
      world_.reduce_text(std::move(mine), [&](const std::string& lower, const std::string& higher) {
        return join_outcomes(lower, higher, save.split);
      });
  if (!save.written.empty() && save.written[0] == kFailed)
    save.error = save.written.size() > 1 ? save.written.substr(1) : "cancelled";
  save.written.erase(0, 1);
  if (world_.rank() != 0) return;
  thread_.start([&save] {
    std::string warning;
    std::error_code ignored;
    try {
      if (save.error.empty()) {
        warning = finish_checkpoint(save.request, save.scalars, save.folder, save.written);
      } else {
        std::filesystem::remove_all(save.folder, ignored);  // every rank is past its last write
      }
    } catch (...) {
      std::filesystem::remove_all(save.folder, ignored);
      save.note_seconds();
      throw;
    }
    save.note_seconds();
    return warning;
  });
}

SaveResult AsyncWriter::end_save(const std::string& warning) {
  const std::unique_ptr<Save> save = std::move(save_);
  return {save->request.step,
          save->request.directory / step_folder_name(save->request.step),
          save->error.empty() ? save->bytes : 0,
          save->seconds,
          save->error,
          warning};
}

SaveResult AsyncWriter::finish() {
  expect(busy(), "no save is under way");
  for (;;) {
    thread_.wait(kPatience);
    if (std::optional<SaveResult> result = advance(WriterStates::of_all(state(), world_)))
      return *std::move(result);
  }
}

}  // namespace trireme
