#include "telemetry/prometheus_exporter.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/signal_free_thread.h"

namespace trireme {

namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

PrometheusExporter::PrometheusExporter(const Prometheus& config, PrometheusState begin)
    : file_(config.file.value_or("")),
      woken_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      state_(std::move(begin)) {
  if (!woken_) throw EnvironmentError("log.prometheus: no eventfd: {}", errno_text(errno));
  state_.start_time = seconds_since_1970();
  if (config.port) port_.emplace(*config.port, [this] { return text(); });
  if (!file_.empty()) replace_file();
  thread_ = signal_free_thread([this] { run(); });
}

PrometheusExporter::~PrometheusExporter() {
  {
    const std::lock_guard lock(mutex_);
    state_.running = false;
    file_is_due_ = ends_ = true;
  }
  wake();
  thread_.join();
}

void PrometheusExporter::start(const StartLine& line) {
  const std::lock_guard lock(mutex_);
  state_.version = line.version;
  state_.world = line.world;
}

void PrometheusExporter::step(const StepLine& line) {
  const double now = seconds_since_1970();
  const std::lock_guard lock(mutex_);
  state_.step = line;
  state_.last_step_time = now;
  state_.step_seconds += line.step_seconds;
  if (line.joules) state_.joules = state_.joules.value_or(0) + *line.joules;
}

void PrometheusExporter::skip() {
  const std::lock_guard lock(mutex_);
  ++state_.skips;
}

void PrometheusExporter::evaluation(const EvaluationLine& line) {
  const std::lock_guard lock(mutex_);
  state_.evaluations[line.name] = line;
}

void PrometheusExporter::checkpoint(const CheckpointLine& line) {
  const double now = seconds_since_1970();
  const std::lock_guard lock(mutex_);
  state_.stall_seconds += line.stall_seconds;
  if (line.error) {
    ++state_.failed_saves;
    return;
  }
  ++state_.saves;
  state_.last_saved_step = line.step;
  state_.last_save_time = now;
}

void PrometheusExporter::write_file() {
  if (file_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    file_is_due_ = true;
  }
  wake();
}

void PrometheusExporter::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(woken_.get(), &one, sizeof one);
}

std::string PrometheusExporter::text() {
  PrometheusState now;
  {
    const std::lock_guard lock(mutex_);
    now = state_;
  }
  return prometheus_text(now);
}

void PrometheusExporter::run() {
  for (bool ends = false; !ends;) {
    if (port_) {
      port_->serve(woken_.get());
    } else {
      pollfd wait{woken_.get(), POLLIN, 0};
      ::poll(&wait, 1, -1);
    }
    std::uint64_t times = 0;
    [[maybe_unused]] const auto got = ::read(woken_.get(), &times, sizeof times);
    bool is_due = false;
    {
      const std::lock_guard lock(mutex_);
      is_due = std::exchange(file_is_due_, false);
      ends = ends_;
    }
    if (!is_due || file_.empty()) continue;
    try {
      replace_file();
    } catch (const std::exception& fault) {
      if (!std::exchange(warned_, true))
        log_warning("log.prometheus.file: {} (training goes on)", fault.what());
    }
  }
}

/// Not to the disk: after a crash of the host nobody needs it. The collector reads *.prom alone, by
/// another user.
void PrometheusExporter::replace_file() {
  const std::filesystem::path part = fmt::format("{}.{}.part", file_.string(), ::getpid());
  try {
    const FileDescriptor file = open_file(part, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    write_all(file.get(), text(), part);
    if (::rename(part.c_str(), file_.c_str()) != 0)
      throw DataError("{}: cannot be replaced: {}", file_.string(), errno_text(errno));
  } catch (...) {
    ::unlink(part.c_str());
    throw;
  }
}

}  // namespace trireme
