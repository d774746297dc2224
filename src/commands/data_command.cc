#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/human_format.h"
#include "base/log.h"
#include "base/utf8.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/parse_options.h"
#include "dataset/batch_builder.h"
#include "plan/resolve.h"
#include "train/inputs.h"

namespace trireme {

namespace {

struct Options {
  ConfigInput input;
  std::int64_t from = 0, count = 10, world = 0;
  bool json = false;
};

void declare(CLI::App& app, Options& options) {
  add_config_options(app, options.input);
  app.add_option("--from", options.from, "number of the first sample")->check(integer_from(0));
  app.add_option("--count", options.count, "how many samples")->check(integer_from(0));
  app.add_option("--world", options.world, "ranks of the run (default: as train plan)")
      ->check(integer_from(1));
  app.add_flag("--json", options.json,
               "one JSON object a line: sample, source, tokens, text, and mask where not all count "
               "as targets");
  app.footer(
      "A sample holds data.sequence_length + 1 tokens: inputs are all but the last, targets all "
      "but the first. Step k of\n"
      "a run with one size of batches takes the samples (k - 1) x global ... k x global - 1. In "
      "the JSON, bytes of the text "
      "that are not UTF-8\n"
      "stand as U+FFFD.");
}

struct OpenedRun {
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const SampleSource> source;
  std::int64_t samples = 0;     ///< of the whole run
  std::int64_t vocab_size = 0;  ///< of the model
};

OpenedRun open_run(const Options& options) {
  LoadedConfig loaded = read_config_with_model(options.input);
  Inputs inputs = check_inputs(loaded, DataFiles::kOpened);
  ResolveInput input;
  input.world = options.world > 0 ? options.world : default_world(loaded.config);
  if (!inputs.data.synthetic && inputs.tokenizer) {
    input.windows = inputs.data.windows;
    input.vocabulary = inputs.tokenizer->vocab_size();
  }
  const ResolvedRun run = resolve_run(loaded.config, input, loaded.problems, loaded.notes);
  loaded.problems.insert(loaded.problems.end(), inputs.problems.begin(), inputs.problems.end());
  throw_problems(loaded.problems);
  for (const std::string& note : loaded.notes) log_info_text(note);
  OpenedRun opened;
  opened.tokenizer = std::move(inputs.tokenizer);
  opened.samples = run.samples();
  opened.vocab_size = loaded.config.model.vocab_size;
  SourceRequest request;
  request.total_samples = opened.samples;
  request.vocab_size = opened.vocab_size;
  request.tokenizer_hashes = opened.tokenizer->hashes();
  opened.source = make_training_source(loaded.config, request);
  return opened;
}

void print_sample(const OpenedRun& run, std::int64_t sample, const Window& window, bool json) {
  const std::span<const std::int32_t> tokens = window.tokens;
  const std::string& source = run.source->source_name(sample);
  const std::string text = run.tokenizer->decode(tokens);
  if (!json) {
    fmt::print("sample {}, {}, {}\n{}\n\n", sample, source, counted(std::ssize(tokens), "token"),
               text);
    return;
  }
  Json line;
  line["sample"] = sample;
  line["source"] = source;
  Json& ids = line["tokens"] = Json::array();
  ids.as_array().reserve(tokens.size());
  for (const std::int32_t id : tokens) ids.push_back(std::int64_t{id});
  const bool masked = std::count(window.counted.begin(), window.counted.end(), 0) > 0;
  if (masked) {
    Json& mask = line["mask"] = Json::array();
    for (const std::uint8_t counts : window.counted) mask.push_back(std::int64_t{counts});
  }
  line["text"] = valid_utf8(text);
  fmt::print("{}\n", line.dump());
}

}  // namespace

int data_command(Arguments arguments) {
  Options options;
  CLI::App app("Shows the samples that a run will see, in order", "train data");
  declare(app, options);
  if (!parse_options(app, arguments)) return 0;

  const OpenedRun run = open_run(options);
  if (options.from >= run.samples && options.count > 0) {
    throw ConfigError(
        "--from {}: the run sees the samples 0 to {} (of all steps). Choose a smaller "
        "number",
        options.from, run.samples - 1);
  }
  const std::int64_t end = options.from + std::min(options.count, run.samples - options.from);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(run.source->length()) + 1);
  std::vector<std::uint8_t> counted(tokens.size());
  const Window window{tokens, {}, counted};
  for (std::int64_t sample = options.from; sample < end; ++sample) {
    run.source->read(sample, window);
    check_token_ids(*run.source, sample, tokens, run.vocab_size);
    print_sample(run, sample, window, options.json);
  }
  return 0;
}

}  // namespace trireme
