#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "train/session.h"

namespace trireme {

Ending train_command(Arguments arguments) {
  ConfigInput input;
  CLI::App app(
      "Trains what the config describes; goes on by itself from the newest checkpoint of "
      "run.directory.",
      "train");
  add_config_options(app, input);
  if (!parse_options(app, arguments)) return 0;
  LaunchGuard guard([&] { return hang_timeout_of(input); });
  return on_every_rank(
      [&](Launch& launch) -> Ending {
        const PreparedRun prepared = prepare_run(input, Needs::kTraining, launch);
        RunEnd end = train_session(launch, prepared, &guard);
        return {static_cast<int>(end.code), std::move(end.reason)};
      },
      &guard);
}

}  // namespace trireme
