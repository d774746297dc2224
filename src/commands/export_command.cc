#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/human_format.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/stop_flag.h"
#include "checkpoint/adapter_files.h"
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
  std::string checkpoint, output, dtype, base;
  bool merge = false, averages = false;
  double hang_timeout_seconds = 0;
};

/// A whole model, or adapters as a folder of peft's.
ExportResult export_as_it_is(const std::filesystem::path& folder, const Options& options,
                             const ExportOptions& how, Communicator& job) {
  const Manifest manifest = read_manifest(folder, job);
  bool adapters = false;
  run_together(job, [&] {
    adapters = adapters_of(manifest, (folder / kManifestName).string()).has_value();
    if (job.rank() == 0) check_own_model(folder);
  });
  return adapters ? export_adapter(folder, options.output, how, job)
                  : export_checkpoint(folder, options.output, how, job);
}

ExportResult export_with_base(const std::filesystem::path& folder, const Options& options,
                              const ExportOptions& how, Communicator& job) {
  const ModelSource source(folder, job, options.base, how.weights);
  run_together(job, [&] {
    if (source.base() == nullptr) {
      throw ConfigError("--merge: {} holds a whole model already. Leave --merge out",
                        folder.string());
    }
    if (job.rank() == 0) check_own_model(source);
  });
  source.check_base_files(job);
  return export_merged(
      {source.path(), source.base()->path(), source.adapted_model(), source.base_in_nf4()},
      options.output, how, job);
}

/// A folder of peft's, or the step folder that is meant.
std::filesystem::path folder_of(const Options& options, Communicator& job) {
  if (looks_like_checkpoint(options.checkpoint) || !looks_like_adapter(options.checkpoint))
    return resolve_checkpoint_argument(options.checkpoint, job);
  if (options.merge) return options.checkpoint;
  throw ConfigError(
      "--checkpoint: {} is a folder of peft's already. --merge writes the whole model",
      options.checkpoint);
}

int run(Launch& launch, LaunchGuard& guard, const Options& options) {
  Communicator& job = launch.job();
  Watch watch(launch, &guard, options.hang_timeout_seconds);
  const std::filesystem::path folder = folder_of(options, job);
  ExportOptions how;
  if (options.dtype == "bf16") how.dtype = DType::kBF16;
  if (options.dtype == "fp32") how.dtype = DType::kF32;
  if (options.averages) how.weights = WeightSet::kAveraged;
  Progress progress("writing tensors (of rank 0)", 0, ProgressUnit::kItems);
  how.after_tensor = [&] {
    progress.add(1);
    watch.watchdog().progress();
    give_up_if_stopped("train export");
  };
  const ExportResult result = options.merge ? export_with_base(folder, options, how, job)
                                            : export_as_it_is(folder, options, how, job);
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
      "files. Of a run of adapters: a folder that peft loads.",
      "train export");
  app.add_option("--checkpoint", options.checkpoint,
                 "step folder, checkpoints folder or run folder (newest that verifies)")
      ->type_name("DIR")
      ->required();
  app.add_option("--output", options.output, "the directory to make; an earlier export is replaced")
      ->type_name("DIR")
      ->required();
  app.add_option(
         "--dtype", options.dtype,
         "bf16 or fp32; default: what the model's config.json names, else fp32; of adapters "
         "fp32")
      ->check(one_of({"bf16", "fp32"}));
  CLI::Option* merge = app.add_flag("--merge", options.merge,
                                    "of adapters: the whole model, with them in its weights; of a "
                                    "run's or of a folder of peft's");
  app.add_flag("--ema", options.averages, "the averages of the weights (optimizer.ema)");
  add_base(app, options.base);
  app.get_option("--base")->needs(merge);
  add_hang_timeout(app, options.hang_timeout_seconds);
  if (!parse_options(app, arguments)) return 0;
  LaunchGuard guard([&] { return options.hang_timeout_seconds; });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); }, &guard).code;
}

}  // namespace trireme
