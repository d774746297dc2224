#pragma once
// log.command: a program of the user's that gets each line of metrics.jsonl on its standard input,
// for W&B, MLflow and their like. It never ends a run and never holds it up.

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace trireme {

/// The program that argv[0] means, by PATH if without a slash. ConfigError where none may run.
std::filesystem::path find_program(const std::string& name);

class MetricsCommand {
 public:
  /// What a program may be behind; lines beyond it are dropped.
  static constexpr std::size_t kPendingBytesMax = std::size_t{8} << 20;

  /// Starts `argv`: its standard output goes to our standard error, terminal signals (Ctrl-C) do
  /// not reach its process group, and it has no other open file of ours. By posix_spawn, which
  /// copies no memory and is safe beside MPI and threads. Throws ConfigError.
  explicit MetricsCommand(std::vector<std::string> argv);
  /// As close() with no patience, where that has not been called.
  ~MetricsCommand();
  MetricsCommand(const MetricsCommand&) = delete;
  MetricsCommand& operator=(const MetricsCommand&) = delete;

  /// Hands over one line with its newline, and what is pending, as far as the pipe takes it without
  /// waiting. The first line that is dropped, and a program that has ended, are warned of, once.
  void send(std::string_view line) noexcept;
  /// No more lines: waits up to `patience` until the program has taken what is pending, closes its
  /// standard input, and waits as long again for its end; then it goes on by itself.
  void close(std::chrono::milliseconds patience) noexcept;

  [[nodiscard]] std::int64_t dropped() const noexcept { return dropped_; }

 private:
  /// Writes until all is written, or the pipe is full.
  void push() noexcept;
  /// Nobody reads any more.
  void give_up() noexcept;
  /// True once the program has ended; reports an end that is no success.
  bool has_ended() noexcept;

  std::vector<std::string> argv_;
  FileDescriptor pipe_;
  pid_t process_ = -1;
  std::string pending_;
  std::size_t written_ = 0;  // of pending_
  std::int64_t dropped_ = 0;
  bool closed_ = false;
};

}  // namespace trireme
