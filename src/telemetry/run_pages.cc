#include "telemetry/run_pages.h"

#include <ctime>
#include <exception>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "telemetry/loss_plot.h"
#include "telemetry/report_page.h"

namespace trireme {

namespace {

std::string time_text(std::time_t time) {
  std::tm utc{};
  char text[32];
  if (::gmtime_r(&time, &utc) == nullptr) return "";
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc)};
}

}  // namespace

RunPages::RunPages(std::filesystem::path directory, Report report)
    : directory_(std::move(directory)), report_(report), history_(directory_ / "metrics.jsonl") {}

bool RunPages::redraw() noexcept {
  try {
    // Also where the folder was written with a slash behind it.
    const std::string title = (directory_ / "").parent_path().filename().string();
    history_.refresh();
    write_file_atomically(directory_ / "loss.svg", loss_svg(history_.curves(), title));
    if (report_ == Report::kYes)
      write_file_atomically(directory_ / kReportName,
                            report_html(history_, title, time_text(std::time(nullptr))));
    return true;
  } catch (const std::exception& fault) {
    if (!warned_) log_warning("{} (the pages are not drawn anew; training goes on)", fault.what());
    warned_ = true;
    return false;
  }
}

}  // namespace trireme
