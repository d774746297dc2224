#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

#include "base/progress.h"
#include "base/readable.h"

namespace trireme {

namespace {
constexpr int kNobody = -1;
std::atomic<int> rank_of_log{0};

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

constexpr std::string_view kRed = "1;31", kYellow = "1;33";
/// A word of ours, for a terminal that shows colours.
std::string painted(std::string_view word, std::string_view color) {
  return shows_colors() ? fmt::format("\033[{}m{}\033[0m", color, word) : std::string(word);
}

/// Lines quote what foreign files hold.
std::string shown(std::string_view text) {
  constexpr std::size_t kBytesMax = 100'000;
  return readable(text, LineFeeds::kKept, kBytesMax);
}
}  // namespace

int log_rank() { return rank_of_log; }

void set_log_rank(int rank) { rank_of_log = rank; }

void silence_log() { rank_of_log = kNobody; }

void log_info_text(std::string_view text) {
  if (rank_of_log != 0) return;
  constexpr std::string_view kError = "error:";
  if (text.starts_with(kError) && shows_colors())
    return logger().info("{}{}", painted(kError, kRed), shown(text.substr(kError.size())));
  logger().info(shown(text));
}

void log_warning_text(std::string_view text) {
  if (rank_of_log != 0) return;
  logger().warn("{} {}", painted("warning:", kYellow), shown(text));
}

void log_any_rank_text(std::string_view text) {
  if (rank_of_log != kNobody) logger().info("rank {}: {}", rank_of_log.load(), shown(text));
}

}  // namespace trireme
