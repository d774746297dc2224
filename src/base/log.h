#pragma once
// Lines for people, on standard error. Results go to standard output and never through here.

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace trireme {

/// Ranks other than 0 stay silent for info and warnings unless they ask by name (`log_any_rank`).
void set_log_rank(int rank);

/// The last line has been said: nothing more comes from this process.
void silence_log();

void log_info_text(std::string_view text);
void log_warning_text(std::string_view text);
void log_any_rank_text(std::string_view text);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_info_text(fmt::format(format, std::forward<Args>(args)...));
}
/// Prefixed "warning: ".
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_warning_text(fmt::format(format, std::forward<Args>(args)...));
}
/// From whichever rank it happens on, prefixed "rank N: ".
template <class... Args>
void log_any_rank(fmt::format_string<Args...> format, Args&&... args) {
  log_any_rank_text(fmt::format(format, std::forward<Args>(args)...));
}

/// As set_log_rank said; -1 once the last line has been said. Who speaks for all ranks is 0.
int log_rank();

}  // namespace trireme
