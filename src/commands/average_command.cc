#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/human_format.h"
#include "base/log.h"
#include "base/stop_flag.h"
#include "checkpoint/average.h"
#include "checkpoint/reader.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "train/inputs.h"

namespace trireme {

int average_command(Arguments arguments) {
  std::vector<std::string> inputs;
  std::string output;
  CLI::App app(
      "Writes the mean of checkpoints of one model as a Hugging Face directory; of adapters, as a "
      "folder of peft's.",
      "train average");
  app.add_option("DIR", inputs,
                 "step folders, checkpoints folders or run folders (newest that verifies), Hugging "
                 "Face directories, folders of peft's")
      ->required();
  app.add_option("--output", output, "the directory to make; nothing is overwritten")
      ->type_name("DIR")
      ->required();
  app.footer(
      "Sums are taken in fp64 in the order given and rounded once, to the dtype of the first; "
      "config and tokenizer are\n"
      "those of the first too. Optimizers are left out. Adapters have one rank, scale, targets and "
      "base.");
  if (!parse_options(app, arguments)) return 0;
  require_alone("train average", "Start it without one.");
  const std::unique_ptr<Communicator> self = make_self_communicator();
  std::vector<std::filesystem::path> sources;
  for (const std::string& input : inputs) {
    const bool checkpoint = looks_like_checkpoint(input);
    sources.push_back(checkpoint ? resolve_checkpoint_argument(input, *self)
                                 : std::filesystem::path(input));
    if (checkpoint) check_own_model(sources.back());
  }
  AverageOptions options;
  options.after_tensor = [] { give_up_if_stopped("train average"); };
  const AverageResult result = average_weights(sources, output, options);
  log_info("{}: the mean of {}, {} tensors, {} parameters, {}", output, sources.size(),
           result.tensors, format_count(static_cast<double>(result.parameters)),
           format_bytes(result.bytes));
  std::puts(output.c_str());
  return 0;
}

}  // namespace trireme
