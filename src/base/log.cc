#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

#include "base/readable.h"

namespace trireme {

namespace {
constexpr int kNobody = -1;
std::atomic<int> log_rank{0};

// The one global of the program: standard error is one too.
spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger made("trireme", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("%v");
    made.flush_on(spdlog::level::trace);
    return made;
  }();
  return instance;
}

/// Lines quote what foreign files hold.
std::string shown(std::string_view text) {
  constexpr std::size_t kBytesMax = 100'000;
  return readable(text, LineFeeds::kKept, kBytesMax);
}
}  // namespace

void set_log_rank(int rank) { log_rank = rank; }

void silence_log() { log_rank = kNobody; }

void log_info_text(std::string_view text) {
  if (log_rank == 0) logger().info(shown(text));
}

void log_warning_text(std::string_view text) {
  if (log_rank == 0) logger().warn("warning: {}", shown(text));
}

void log_any_rank_text(std::string_view text) {
  if (log_rank != kNobody) logger().info("rank {}: {}", log_rank.load(), shown(text));
}

}  // namespace trireme
