#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/human_format.h"
#include "base/log.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/reader.h"
#include "commands/commands.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"

namespace trireme {

namespace {

struct Options {
  std::string checkpoint, output, dtype;
};

int run(Launch& launch, const Options& options) {
  const std::filesystem::path folder =
      resolve_checkpoint_argument(options.checkpoint, launch.world());
  run_together(launch.world(), [&] {
    if (launch.world().rank() != 0) return;
    ExportOptions how;
    if (options.dtype == "bf16") how.dtype = DType::kBF16;
    if (options.dtype == "fp32") how.dtype = DType::kF32;
    const ExportResult result = export_checkpoint(folder, options.output, how);
    log_info("{}: {} tensors, {} parameters, {} in {}, from {}", options.output, result.tensors,
             format_count(static_cast<double>(result.parameters)), format_bytes(result.bytes),
             name_of(result.dtype), folder.string());
    std::puts(options.output.c_str());
  });
  return 0;
}

}  // namespace

int export_command(Arguments arguments) {
  Options options;
  CLI::App app(
      "Write a checkpoint as a Hugging Face directory: config.json, safetensors (several files "
      "above "
      "5 GB), generation_config.json, the tokenizer's files.",
      "train export");
  app.add_option("--checkpoint", options.checkpoint,
                 "step folder, checkpoints folder or run folder (newest that verifies)")
      ->required();
  app.add_option("--output", options.output, "the directory to make; an earlier export is replaced")
      ->required();
  app.add_option("--dtype", options.dtype,
                 "bf16 or fp32; default: what the model's config.json names, else fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  if (!parse_options(app, arguments)) return 0;
  return on_every_rank([&](Launch& launch) { return run(launch, options); });
}

}  // namespace trireme
