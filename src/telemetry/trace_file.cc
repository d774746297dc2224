#include "telemetry/trace_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/file.h"
#include "base/json.h"

namespace trireme {

namespace {

std::int64_t earliest_ns(std::span<const RankTrace> ranks) {
  std::int64_t earliest = std::numeric_limits<std::int64_t>::max();
  for (const RankTrace& rank : ranks) {
    for (const TraceTrack& track : rank.tracks) {
      for (const SpanRecord& span : track.spans)
        earliest = std::min(earliest, span.begin_ns + rank.clock_offset_ns);
    }
  }
  return earliest;
}

/// Nanoseconds as microseconds with three decimals, exact for any length of run.
std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string name_event(std::string_view kind, std::int64_t rank, std::size_t track,
                       const std::string& name) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", kind,
                     rank, track, Json(name).dump());
}

}  // namespace

std::string trace_json(std::span<const RankTrace> ranks) {
  const std::int64_t origin = earliest_ns(ranks);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  std::string_view separator;
  const auto add = [&](const std::string& event) {
    out += separator;
    out += event;
    separator = ",\n";
  };
  for (const RankTrace& rank : ranks) {
    add(name_event("process_name", rank.rank, 0,
                   fmt::format("rank {} ({})", rank.rank, rank.host)));
    for (std::size_t t = 0; t < rank.tracks.size(); ++t) {
      add(name_event("thread_name", rank.rank, t, rank.tracks[t].name));
      for (const SpanRecord& span : rank.tracks[t].spans) {
        const std::int64_t begin = span.begin_ns + rank.clock_offset_ns - origin;
        std::string event =
            fmt::format(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{},"dur":{})",
                        name_of(span.phase), rank.rank, t, microseconds(begin),
                        microseconds(std::max<std::int64_t>(0, span.end_ns - span.begin_ns)));
        if (span.detail >= 0) event += fmt::format(R"(,"args":{{"detail":{}}})", span.detail);
        add(event + "}");
      }
    }
  }
  return out + "\n]}\n";
}

void write_trace_file(const std::filesystem::path& path, std::span<const RankTrace> ranks) {
  write_file_atomically(path, trace_json(ranks));
}

}  // namespace trireme
