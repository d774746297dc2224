#pragma once
// metrics.jsonl: one JSON object per line, written by rank 0, the primary record of a run; plots,
// TensorBoard and the console say nothing that is not in it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "telemetry/append_file.h"
#include "telemetry/metrics_lines.h"

namespace trireme {

class MetricsFile {
 public:
  /// Opens or creates the file. `resume_step` N (0 for a fresh start): lines of a step beyond N, a
  /// torn last line and lines that are no JSON object are dropped first (by atomic replacement), so
  /// that every step stands once; lines without a step stay. Throws DataError.
  MetricsFile(const std::filesystem::path& path, std::int64_t resume_step);

  /// Buffers one line: {"kind": ..., ...}.
  template <class Line>
  void append(const Line& line) {
    const std::string text = to_json(line).dump() + "\n";
    file_.append(text);
    if (also_) also_(text);
  }
  /// Each line from now on goes there too, with its newline, as soon as it is appended.
  void also_write_to(std::function<void(std::string_view line)> also) { also_ = std::move(also); }

  /// At each log interval. False where the file system refused: warned of once, training goes on.
  bool flush() noexcept { return file_.flush(); }
  /// At the end: to the disk.
  bool sync() noexcept { return file_.sync(); }
  /// Before a checkpoint commits: what was flushed, to the disk. Any thread.
  bool sync_flushed() const noexcept { return file_.sync_flushed(); }

  [[nodiscard]] std::int64_t failed_flushes() const noexcept { return file_.failed_flushes(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }

 private:
  AppendFile file_;
  std::function<void(std::string_view)> also_;
};

/// Calls `visit(line, object)` for each whole line from byte `offset` on that is a JSON object;
/// `line` has no newline and lives for the call. Returns the end offset. Throws DataError.
std::uint64_t for_each_metrics_line(
    const std::filesystem::path& path, std::uint64_t offset,
    const std::function<void(std::string_view line, const Json& object)>& visit);

}  // namespace trireme
