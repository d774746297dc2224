#pragma once
// trace.json: the spans of base/trace in the JSON of chrome://tracing and ui.perfetto.dev.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/trace.h"

namespace trireme {

/// Spans of one thread or stream. Perfetto wants a track's events to nest: one thread gives that.
struct TraceTrack {
  std::string name;
  std::vector<SpanRecord> spans;
};

struct RankTrace {
  std::int64_t rank = 0;
  std::string host;
  std::int64_t clock_offset_ns = 0;  ///< added to this rank's times to put them on rank 0's clock
  std::vector<TraceTrack> tracks;
};

/// One complete event a span in microseconds from the earliest span on; rank is the process, track
/// the thread. An event's name is its phase; `detail`, where there is one, stands in its arguments.
std::string trace_json(std::span<const RankTrace> ranks);

/// Atomically; throws DataError.
void write_trace_file(const std::filesystem::path& path, std::span<const RankTrace> ranks);

}  // namespace trireme
