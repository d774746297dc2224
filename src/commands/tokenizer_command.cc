#include <CLI/CLI.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/human_format.h"
#include "base/progress.h"
#include "base/stop_flag.h"
#include "commands/commands.h"
#include "commands/every_rank.h"
#include "commands/output_files.h"
#include "commands/parse_options.h"
#include "tokenizer/bpe_trainer.h"
#include "tokenizer/corpus_reader.h"
#include "tokenizer/json_lines.h"

namespace trireme {

namespace {

struct Options {
  std::int64_t vocab_size = 0;
  std::string output, json_key, progress = "auto";
  bool overwrite = false;
  std::vector<std::string> inputs;
};

void declare(CLI::App& app, Options& options) {
  app.add_option("--vocab-size", options.vocab_size,
                 "tokens in all: 256 bytes, <|endoftext|>, merges")
      ->check(integer_from(0))
      ->required();
  app.add_option("--output", options.output, "the tokenizer.json to write")
      ->type_name("FILE")
      ->required();
  app.add_option("--jsonl", options.json_key, "one text per line of JSON, under KEY")
      ->type_name("KEY");
  app.add_flag("--overwrite", options.overwrite, "replace an existing output");
  app.add_option("--progress", options.progress,
                 "of long work; auto: where standard error is a terminal")
      ->type_name("{auto,always,never}");
  app.add_option("INPUT", options.inputs,
                 "files of plain text; - is standard input; gzip and Zstandard are unpacked")
      ->required();
  app.footer(
      "Ids: <|endoftext|> is 0, then the bytes, then the merges. Of equally frequent pairs the one "
      "of smaller ids is\n"
      "merged, as Hugging Face's BpeTrainer does; the result depends on the text alone. Text is "
      "split as GPT-2 does.");
}

/// The words of all inputs, counted.
BpeTrainer count_words(const Options& options, const std::optional<std::string>& json_key,
                       Show show) {
  BpeTrainer trainer;
  CorpusReader reader(
      options.inputs, json_key ? CorpusFormat::kJsonLines : CorpusFormat::kDocuments,
      [&](std::string_view text, std::size_t from) { return trainer.split_position(text, from); });
  Progress progress("count words", reader.total_bytes(), ProgressUnit::kBytes, show);
  CorpusBlock block;
  PlainTextCheck check;
  while (reader.next(block)) {
    if (json_key) {
      for_each_text(block, *json_key, [&](std::string_view text) { trainer.add(text); });
    } else {
      check.look_at(block);
      trainer.add(block.text);
    }
    progress.add(block.input_bytes);
  }
  return trainer;
}

}  // namespace

int tokenizer_command(Arguments arguments) {
  Options options;
  CLI::App app("Trains a byte-level BPE tokenizer that Hugging Face tokenizers loads.",
               "train tokenizer");
  declare(app, options);
  if (!parse_options(app, arguments)) return 0;
  require_alone("train tokenizer", "Start it without one.");
  constexpr std::int64_t kVocabSizeMax = 1 << 24;
  if (options.vocab_size < BpeTrainer::kVocabSizeMin || options.vocab_size > kVocabSizeMax) {
    throw ConfigError(
        "--vocab-size {}: legal is {} to {} (256 bytes and <|endoftext|> are always there)",
        options.vocab_size, BpeTrainer::kVocabSizeMin, kVocabSizeMax);
  }
  const Show show = parse_show(options.progress, "--progress");
  std::optional<std::string> json_key;
  if (app.count("--jsonl") > 0) json_key = options.json_key;
  check_output_files({options.output}, options.inputs, options.overwrite);
  const BpeTrainer trainer = count_words(options, json_key, show);
  if (trainer.empty())
    throw DataError("{}: no text in {} (there is nothing to learn from)", options.inputs.front(),
                    options.inputs.size() == 1
                        ? "it"
                        : fmt::format("it and {} more", options.inputs.size() - 1));
  const auto vocab_size = static_cast<std::int32_t>(options.vocab_size);
  Progress progress("learn merges", vocab_size - BpeTrainer::kVocabSizeMin, ProgressUnit::kItems,
                    show);
  const auto on_merge = [&] {
    progress.add(1);
    give_up_if_stopped("train tokenizer");
  };
  write_file_atomically(options.output, trainer.train(vocab_size, on_merge));
  fmt::print("{}: {} tokens\n", options.output, format_integer(vocab_size));
  return 0;
}

}  // namespace trireme
