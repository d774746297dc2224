#pragma once
// How far long work is: a bar on a terminal, else a plain line on standard error every 10 s.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace trireme {

/// `--progress` and `--color`: auto is yes on a terminal without NO_COLOR or launcher.
enum class Show { kAuto, kAlways, kNever };

/// Throws ConfigError naming `option` where `text` is not auto, always or never.
Show parse_show(std::string_view text, std::string_view option);

/// What `show` comes to for this process.
bool shows_on_terminal(Show show);

/// What the command line said of bars, which kAuto then means; and of colours.
void set_default_progress(Show show);
void set_colors(Show show);
/// Whether words on standard error are coloured.
bool shows_colors();

enum class ProgressUnit { kBytes, kItems };

/// One thread constructs and destroys; any may add. The bar is gone when the object is. Writes
/// nothing within the first second (bar) or 10 s (lines), for kNever, and on ranks that do not
/// speak.
class Progress {
 public:
  /// `total` 0: unknown.
  Progress(std::string label, std::int64_t total, ProgressUnit unit, Show show = Show::kAuto);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t amount);

 private:
  void draw(double seconds);
  [[nodiscard]] std::string amounts(double seconds) const;

  const std::string label_;
  const std::int64_t total_;
  const ProgressUnit unit_;
  enum class Form { kBar, kLines, kSilent } form_;
  const std::int64_t begin_ns_;
  std::atomic<std::int64_t> done_{0}, next_ns_;
  std::mutex drawing_;
  bool drawn_ = false;
};

}  // namespace trireme
