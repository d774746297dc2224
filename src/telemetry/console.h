#pragma once
// What a run says to people on standard error: one line each log interval, tables before step 0.
// These functions make text; `log_info_text` prints it on rank 0.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/batch_ramp.h"
#include "telemetry/metrics_lines.h"

namespace trireme {

/// "step   120/5000 | loss 3.4512 | grad norm 0.982 | lr 3.00e-04 | 12.3k tokens/s | MFU 38.2% |
/// memory 1.23 GiB | 1h02m left". Loss and norm that are not finite read "nan" and "inf"; an
/// unknown MFU is left out. `seconds_left` < 0: unknown, printed as "?".
std::string step_text(const StepLine& line, std::int64_t steps_total, double seconds_left);

/// "step   120/5000 | validation loss 3.4012 | perplexity 30.0 | 1.05M tokens"; of a named set
/// "validation loss of web 3.4012"
std::string evaluation_text(const EvaluationLine& line, std::int64_t steps_total);

/// "step   120/5000 | sample: prompt and continuation", fit for a terminal.
std::string sample_text(const SampleLine& line, std::int64_t steps_total);

enum class Align : std::uint8_t { kLeft, kRight };

/// Rows under a header, columns padded to the widest cell, two spaces apart and indented by two,
/// each with a newline. Rows have the header's cells. Cells count code points, so "µ" is one wide.
std::string table_text(std::span<const std::string> header,
                       std::span<const std::vector<std::string>> rows,
                       std::span<const Align> columns);

/// Bytes of one kind ("parameters", "gradients", "activations", ...) on the rank that needs most.
using MemoryItem = std::pair<std::string, std::int64_t>;
/// One row an item, the total, and its share of what the device has (0: unknown, left out).
std::string memory_text(std::span<const MemoryItem> items, std::int64_t available_bytes);

struct BatchArithmetic {
  std::int64_t micro = 1, accumulation = 1, data_ranks = 1, sequence_length = 1;
  std::vector<BatchRamp::Stretch> steps_of_sizes = {};  ///< all steps, in their order
  std::int64_t windows = 0;  ///< of the training data; 0 where unbounded (synthetic)
  std::int64_t pass = 0;     ///< of a micro-batch what is computed at once; 0: all of it
};
/// "  batch    8 global = 2 micro x 2 accumulation x 2 data ranks\n" and the resulting tokens. Of a
/// ramp: the largest; and a line with each size.
std::string batch_text(const BatchArithmetic& batch);

struct RankPlacement {
  std::int64_t rank = 0;
  std::string host;
  std::string cores;  ///< "0-7"
  std::int64_t threads = 1;
  std::string device;  ///< "CPU, AVX-512" or "GPU 3, NVIDIA H200"
};
/// Where each rank runs; above 64 ranks one row a host.
std::string placements_text(std::span<const RankPlacement> places);

}  // namespace trireme
