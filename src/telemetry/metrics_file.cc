#include "telemetry/metrics_file.h"

#include <optional>

#include "base/file.h"

namespace trireme {

namespace {

std::optional<Json> parse_object(std::string_view line) {
  try {
    Json value = parse_json(line, "metrics");
    if (value.is_object()) return value;
  } catch (const Error&) {
    // A line that a crash tore is no reason to refuse the run.
  }
  return std::nullopt;
}

bool is_beyond(const Json& object, std::int64_t step_max) {
  const Json* step = object.find("step");
  return step != nullptr && step->is_integer() && step->as_integer() > step_max;
}

/// Returns `path`, so that it runs before the file is opened for appending.
const std::filesystem::path& drop_lines_beyond(const std::filesystem::path& path,
                                               std::int64_t step_max) {
  if (!std::filesystem::exists(path)) return path;
  std::string kept;
  for_each_metrics_line(path, 0, [&](std::string_view line, const Json& object) {
    if (is_beyond(object, step_max)) return;
    kept += line;
    kept += '\n';
  });
  if (kept.size() != std::filesystem::file_size(path)) write_file_atomically(path, kept);
  return path;
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t resume_step)
    : file_(drop_lines_beyond(path, resume_step)) {}

std::uint64_t for_each_metrics_line(
    const std::filesystem::path& path, std::uint64_t offset,
    const std::function<void(std::string_view line, const Json& object)>& visit) {
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (offset > text.size()) return text.size();
  text.remove_prefix(offset);
  for (std::size_t end; (end = text.find('\n')) != std::string_view::npos;
       text.remove_prefix(end + 1)) {
    const std::string_view line = text.substr(0, end);
    if (const std::optional<Json> object = parse_object(line)) visit(line, *object);
    offset += end + 1;
  }
  return offset;
}

}  // namespace trireme
