#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

namespace trireme {

namespace {
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
}  // namespace

void set_log_rank(int rank) { log_rank = rank; }

void log_info_text(std::string_view text) {
  if (log_rank == 0) logger().info(text);
}

void log_warning_text(std::string_view text) {
  if (log_rank == 0) logger().warn("warning: {}", text);
}

void log_any_rank_text(std::string_view text) {
  logger().info("rank {}: {}", log_rank.load(), text);
}

}  // namespace trireme
