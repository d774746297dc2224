#pragma once
// TensorBoard event files, written without protobuf: TFRecord framing (length, masked CRC-32C,
// data, masked CRC-32C) around hand-encoded tensorflow.Event messages. Tags are Megatron-LM's.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "telemetry/append_file.h"
#include "telemetry/metrics_lines.h"

namespace trireme {

/// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78).
std::uint32_t crc32c(std::string_view bytes);

using TensorBoardScalar = std::pair<std::string_view, float>;

// One framed record each. `wall_seconds` is Unix time.
std::string file_version_record(double wall_seconds);
/// Tells readers that older files' events from `step` on were abandoned.
std::string session_start_record(double wall_seconds, std::int64_t step);
std::string scalars_record(double wall_seconds, std::int64_t step,
                           const std::vector<TensorBoardScalar>& scalars);

class TensorBoardWriter {
 public:
  /// A new file `events.out.tfevents.<unix seconds>.<host>.<pid>.0` in `directory`, which is made
  /// where absent. `resume_step` N: events later than N that earlier files hold are declared void.
  /// `consumed_samples` until then: what the first step's batch size is told from. `world` turns
  /// the throughput of all ranks into Megatron's, which is per device. Throws DataError.
  TensorBoardWriter(const std::filesystem::path& directory, std::int64_t resume_step,
                    std::int64_t consumed_samples, std::int64_t world);

  /// "lm loss", "grad-norm", "learning-rate", "batch-size", "iteration-time", "throughput" (TFLOP/s
  /// per rank), "tokens-per-second", "mfu", "mem-max-allocated-bytes". Nothing "vs samples":
  /// declaring steps void would void those events too, whose step counts samples.
  void append(const StepLine& line);
  /// "lm loss validation", "lm loss validation ppl"; of a set "lm loss validation-web" ...
  void append(const EvaluationLine& line);
  /// False where the file system refused; that is warned of once.
  bool flush() noexcept { return file_.flush(); }

 private:
  AppendFile file_;
  std::int64_t world_;
  std::int64_t samples_before_;
};

}  // namespace trireme
