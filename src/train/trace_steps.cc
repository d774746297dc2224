#include "train/trace_steps.h"

#include <cstring>
#include <filesystem>

#include "base/log.h"
#include "telemetry/trace_file.h"

namespace trireme {

namespace {

/// A rank's spans and host for the way to rank 0; both ends are the same program.
std::string pack(const std::vector<SpanRecord>& spans, const std::string& host) {
  std::string text = host;
  text += '\0';
  text.append(reinterpret_cast<const char*>(spans.data()), spans.size() * sizeof(SpanRecord));
  return text;
}

RankTrace unpack(const std::string& text, std::int64_t rank) {
  RankTrace trace;
  trace.rank = rank;
  trace.host = text.c_str();
  TraceTrack track;
  track.name = "training loop";
  const std::size_t begin = trace.host.size() + 1;
  track.spans.resize((text.size() - begin) / sizeof(SpanRecord));
  std::memcpy(track.spans.data(), text.data() + begin, track.spans.size() * sizeof(SpanRecord));
  trace.tracks.push_back(std::move(track));
  return trace;
}

}  // namespace

void TraceSteps::before(std::int64_t step) {
  if (steps_ && step == (*steps_)[0]) runtime_.trace.take_spans();
}

void TraceSteps::after(std::int64_t step) {
  if (!steps_ || step != (*steps_)[1]) return;
  const std::vector<std::string> packed = runtime_.replica().all_gather_text(
      pack(runtime_.trace.take_spans(), runtime_.launch.host_name()));
  if (runtime_.replica().rank() != 0) return;
  std::vector<RankTrace> ranks;
  for (const std::string& text : packed) {
    ranks.push_back(unpack(text, static_cast<std::int64_t>(ranks.size())));
  }
  const std::filesystem::path path =
      std::filesystem::path(runtime_.config.run.directory) / "trace.json";
  try {
    write_trace_file(path, ranks);
    log_info("traced steps {} to {} in {}", (*steps_)[0], (*steps_)[1], path.string());
  } catch (const Error& error) {
    log_warning("no trace: {}", error.what());
  }
}

}  // namespace trireme
