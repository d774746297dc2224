#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/human_format.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/stop_flag.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/reader.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "guard/watch.h"
#include "train/inputs.h"

namespace trireme {

namespace {

struct Options {
  std::string checkpoint, output, dtype;
  double hang_timeout_seconds = 0;
};

int run(Launch& launch, LaunchGuard& guard, const Options& options) {
  Communicator& job = launch.job();
  Watch watch(launch, &guard, options.hang_timeout_seconds);
  const std::filesystem::path folder = resolve_checkpoint_argument(options.checkpoint, job);
  run_together(job, [&] {
    if (job.rank() == 0) check_own_model(folder);
  });
  ExportOptions how;
  if (options.dtype == "bf16") how.dtype = DType::kBF16;
  if (options.dtype == "fp32") how.dtype = DType::kF32;
  Progress progress("writing tensors (of rank 0)", 0, ProgressUnit::kItems);
  how.after_tensor = [&] {
    progress.add(1);
    watch.watchdog().progress();
    give_up_if_stopped("train export");
  };
  const ExportResult result = export_checkpoint(folder, options.output, how, job);
  if (job.rank() != 0) return 0;
  log_info("{}: {}, {} parameters, {} in {}, from {}", options.output,
           counted(result.tensors, "tensor"), format_count(static_cast<double>(result.parameters)),
           format_bytes(result.bytes), name_of(result.dtype), folder.string());
  std::puts(options.output.c_str());
  return 0;
}

}  // namespace

int export_command(Arguments arguments) {
  Options options;
  CLI::App app(
      "Write a checkpoint as a Hugging Face directory: config.json, safetensors (several files "
      "above 5 GB), generation_config.json, the tokenizer's files. Several ranks share out the "
      "files.",
      "train export");
  app.add_option("--checkpoint", options.checkpoint,
                 "step folder, checkpoints folder or run folder (newest that verifies)")
      ->type_name("DIR")
      ->required();
  app.add_option("--output", options.output, "the directory to make; an earlier export is replaced")
      ->type_name("DIR")
      ->required();
  app.add_option("--dtype", options.dtype,
                 "bf16 or fp32; default: what the model's config.json names, else fp32")
      ->check(one_of({"bf16", "fp32"}));
  add_hang_timeout(app, options.hang_timeout_seconds);
  if (!parse_options(app, arguments)) return 0;
  LaunchGuard guard([&] { return options.hang_timeout_seconds; });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); }, &guard).code;
}

}  // namespace trireme
