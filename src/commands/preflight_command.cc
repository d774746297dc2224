#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/log.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "guard/watch.h"
#include "preflight/preflight.h"

namespace trireme {

namespace {

struct Options {
  ConfigInput input;
  double hang_timeout_seconds = 0;
  bool json = false;

  [[nodiscard]] bool has_config() const { return !input.files.empty(); }
};

Ending run(Launch& launch, LaunchGuard& guard, const Options& options) {
  // Before anything else is exchanged: other programs may mean something else by it.
  PreflightReport report = check_program(launch);
  if (report.ok()) {
    PreparedRun prepared;
    if (options.has_config()) prepared = prepare_run(options.input, Needs::kTraining, launch);
    Watch watch(launch, &guard,
                options.has_config() ? prepared.config.run.hang_timeout_seconds
                                     : options.hang_timeout_seconds);
    PreflightReport rest =
        check_ranks(launch, options.has_config() ? PreflightRequest{&options.input, &prepared}
                                                 : PreflightRequest{});
    rest.checks.insert(rest.checks.begin(), report.checks.begin(), report.checks.end());
    report = std::move(rest);
  }
  const bool speaks = launch.job().rank() == 0;
  if (speaks) {
    std::fputs(options.json ? (preflight_json(report).dump(2) + "\n").c_str()
                            : preflight_text(report).c_str(),
               stdout);
  }
  const std::string reason =
      launch.job().broadcast_text(speaks && !report.ok() ? report.reason() : "", 0);
  if (reason.empty()) return 0;
  return {static_cast<int>(ExitCode::kEnvironment), reason};
}

}  // namespace

Ending preflight_command(Arguments arguments) {
  Options options;
  CLI::App app(
      "Looks at all ranks before a run, in less than a minute: software, cores, clocks, disks, "
      "memory, products and copies of each rank, links between them. Names the slow or odd rank "
      "and ends with 3; starts no run and leaves nothing behind.",
      "train preflight");
  add_config_options(app, options.input, ConfigIs::kOptional);
  app.add_flag("--json", options.json,
               "one object {ranks, hosts, checks: [{name, status, ranks, found, expected, "
               "advice}], ok}");
  add_hang_timeout(app, options.hang_timeout_seconds);
  if (!parse_options(app, arguments)) return 0;
  if (!options.has_config() && app.count("--set") > 0)
    throw ConfigError("train preflight: --set changes a config, and none was given");
  if (options.has_config() && app.count("--hang-timeout") > 0) {
    throw ConfigError(
        "train preflight: --hang-timeout is for one without a config; with one use --set "
        "run.hang_timeout_seconds");
  }
  LaunchGuard guard([&] {
    return options.has_config() ? hang_timeout_of(options.input) : options.hang_timeout_seconds;
  });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); }, &guard);
}

}  // namespace trireme
