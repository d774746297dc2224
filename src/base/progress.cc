#include "base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/human_format.h"
#include "base/log.h"
#include "base/trace.h"

namespace trireme {

namespace {
std::atomic<Show> default_progress{Show::kAuto}, colors{Show::kAuto};
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kFirstBar = kSecond, kBarInterval = kSecond / 10,
                       kLineInterval = 10 * kSecond;

bool started_by_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_STEP_ID"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}
}  // namespace

Show parse_show(std::string_view text, std::string_view option) {
  if (text == "auto") return Show::kAuto;
  if (text == "always") return Show::kAlways;
  if (text == "never") return Show::kNever;
  throw ConfigError("{}: \"{}\" is none of auto, always, never", option, text);
}

bool shows_on_terminal(Show show) {
  if (show != Show::kAuto) return show == Show::kAlways;
  const char* no_color = std::getenv("NO_COLOR");
  const bool unwanted = no_color != nullptr && no_color[0] != '\0';
  return ::isatty(STDERR_FILENO) == 1 && !unwanted && !started_by_launcher();
}

void set_default_progress(Show show) { default_progress = show; }
void set_colors(Show show) { colors = show; }
bool shows_colors() { return shows_on_terminal(colors); }

namespace {
Show resolved(Show show) { return show == Show::kAuto ? default_progress.load() : show; }
}  // namespace

Progress::Progress(std::string label, std::int64_t total, ProgressUnit unit, Show show)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      form_(resolved(show) == Show::kNever || log_rank() != 0 ? Form::kSilent
            : shows_on_terminal(resolved(show))               ? Form::kBar
                                                              : Form::kLines),
      begin_ns_(steady_now_ns()),
      next_ns_(begin_ns_ + (form_ == Form::kBar ? kFirstBar : kLineInterval)) {}

Progress::~Progress() {
  if (!drawn_ || form_ != Form::kBar) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

void Progress::add(std::int64_t amount) {
  done_.fetch_add(amount, std::memory_order_relaxed);
  if (form_ == Form::kSilent) return;
  const std::int64_t now = steady_now_ns();
  std::int64_t next = next_ns_.load(std::memory_order_relaxed);
  if (now < next) return;
  // The thread that moves the time on is the one that draws.
  const std::int64_t interval = form_ == Form::kBar ? kBarInterval : kLineInterval;
  if (!next_ns_.compare_exchange_strong(next, now + interval, std::memory_order_relaxed)) return;
  draw(static_cast<double>(now - begin_ns_) * 1e-9);
}

std::string Progress::amounts(double seconds) const {
  const std::int64_t done = done_.load(std::memory_order_relaxed);
  const auto text = [&](std::int64_t amount) {
    return unit_ == ProgressUnit::kBytes ? format_bytes(amount) : format_integer(amount);
  };
  const double rate = static_cast<double>(done) / std::max(seconds, 1e-9);
  if (total_ <= 0)
    return fmt::format("{}, {}/s", text(done), text(static_cast<std::int64_t>(rate)));
  const double left =
      rate > 0 ? static_cast<double>(std::max<std::int64_t>(total_ - done, 0)) / rate : -1.0;
  return fmt::format("{} of {}, {}/s, {} left", text(done), text(total_),
                     text(static_cast<std::int64_t>(rate)), format_duration(left));
}

void Progress::draw(double seconds) {
  const std::lock_guard lock(drawing_);
  drawn_ = true;
  if (form_ == Form::kLines) {
    log_info("{}: {}", label_, amounts(seconds));
    return;
  }
  std::string bar;
  if (total_ > 0) {
    constexpr std::int64_t kWidth = 24;
    const std::int64_t filled = std::clamp<std::int64_t>(done_.load() * kWidth / total_, 0, kWidth);
    bar = "[" + std::string(static_cast<std::size_t>(filled), '#') +
          std::string(static_cast<std::size_t>(kWidth - filled), '.') + "] ";
  }
  fmt::print(stderr, "\r\033[K{} {}{}", label_, bar, amounts(seconds));
  std::fflush(stderr);
}

}  // namespace trireme
