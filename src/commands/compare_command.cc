#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "commands/output_files.h"
#include "commands/parse_options.h"
#include "telemetry/loss_plot.h"
#include "telemetry/run_comparison.h"

namespace trireme {

namespace {

std::string svg_of(const Comparison& comparison) {
  const std::vector<std::string> names = short_names(comparison);
  std::vector<NamedCurves> runs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::filesystem::path metrics =
        std::filesystem::path(comparison.runs[i].directory) / "metrics.jsonl";
    NamedCurves run{names[i], {}};
    if (is_there(metrics)) {
      RunHistory history(metrics);
      history.refresh();
      run.curves = history.curves();
    }
    runs.push_back(std::move(run));
  }
  return comparison_svg(runs, fmt::format("Loss of {} runs", runs.size()));
}

}  // namespace

int compare_command(Arguments arguments) {
  std::vector<std::string> directories;
  std::string svg;
  bool json = false;
  CLI::App app(
      "Sets runs side by side: where they stand, and the config keys in which they differ. A run "
      "may be live.",
      "train compare");
  app.add_option("RUN", directories, "folders of runs, two at least")->required();
  app.add_flag("--json", json,
               "print {runs: [...], config: {path: [values]}}, null where a run lacks it");
  app.add_option("--svg", svg, "write the loss curves of all runs to this file")->type_name("FILE");
  app.footer(
      "loss is the last that is a number, validation that of the last evaluation (of several sets "
      "the "
      "mean, or the one of\n"
      "evaluation.watch); tokens/s and MFU are those of all steps together, without evaluations "
      "and saves.");
  if (!parse_options(app, arguments)) return 0;
  if (directories.size() < 2) {
    throw ConfigError(
        "train compare: one run ({}), and nothing to compare it with. Give two or more",
        directories.front());
  }
  if (!svg.empty()) check_picture_file(svg);
  std::vector<RunSummary> runs;
  for (const std::string& directory : directories) runs.push_back(summarize_run(directory));
  const Comparison comparison = compare_runs(std::move(runs));
  if (!svg.empty()) {
    write_file_atomically(svg, svg_of(comparison));
    log_info("{}: written", svg);
  }
  std::fputs(json ? (comparison_json(comparison).dump() + "\n").c_str()
                  : comparison_text(comparison).c_str(),
             stdout);
  return 0;
}

}  // namespace trireme
