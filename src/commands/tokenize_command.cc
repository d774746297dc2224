#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>

#include "base/cpu_mask.h"
#include "base/error.h"
#include "base/human_format.h"
#include "base/log.h"
#include "commands/commands.h"
#include "commands/output_files.h"
#include "commands/parse_options.h"
#include "tokenizer/tokenize_corpus.h"

namespace trireme {

namespace {

struct Options {
  std::string tokenizer, output, json_key, messages, chat_template, end_token, progress = "auto";
  bool no_end_token = false, overwrite = false;
  int workers = 0;
  std::vector<std::string> inputs;
};

void declare(CLI::App& app, Options& options) {
  app.add_option("--tokenizer", options.tokenizer, "byte, a tokenizer.json or a folder with one")
      ->type_name("{byte}|FILE")
      ->required();
  app.add_option("--output", options.output, "PREFIX of PREFIX.bin, PREFIX.idx, PREFIX.json")
      ->type_name("PREFIX")
      ->required();
  app.add_option("--jsonl", options.json_key, "one document per line of JSON, its text under KEY")
      ->type_name("KEY");
  app.add_option("--messages", options.messages, "not in this version")->type_name("KEY");
  app.add_option("--chat-template", options.chat_template, "not in this version")
      ->type_name("NAME");
  CLI::Option* eod =
      app.add_option(
             "--eod", options.end_token,
             "token that ends each document (default: the tokenizer's own); a number is an id")
          ->type_name("TOKEN|ID");
  app.add_flag("--no-eod", options.no_end_token, "documents end without a token")->excludes(eod);
  app.add_option("--workers", options.workers, "threads that encode (default: the cores given)")
      ->check(integer_from(1, 1024));
  app.add_flag("--overwrite", options.overwrite, "replace an existing output");
  app.add_option("--progress", options.progress,
                 "of long work; auto: where standard error is a terminal")
      ->type_name("{auto,always,never}");
  app.add_option(
         "INPUT", options.inputs,
         "text: one document per file; - is standard input; gzip and Zstandard are unpacked")
      ->required();
  app.footer(
      "The files are Megatron's (uint16 below a vocabulary of 65500, else int32), the same for any "
      "number of workers.\n"
      "Special tokens written out in the text become their ids; none is added but the end of each "
      "document. Bytes that\n"
      "are not UTF-8 are kept. Documents without text and blank lines of JSON are left out.\n"
      "A large file is encoded by several workers where its tokenizer is byte or splits as GPT-2, "
      "Llama 3, Qwen or Gemma.");
}

std::int32_t find_end_token(const Tokenizer& tokenizer, const std::string& text) {
  std::int32_t id = -1;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, id);
  if (fault == std::errc() && stop == end) {
    if (id >= 0 && id < tokenizer.vocab_size()) return id;
    throw ConfigError("--eod {}: the ids of this tokenizer are 0 to {}", text,
                      tokenizer.vocab_size() - 1);
  }
  if (const auto found = tokenizer.token_id(text)) return *found;
  throw ConfigError("--eod {}: {} has no such token", text, tokenizer.source());
}

std::optional<std::int32_t> choose_end_token(const Tokenizer& tokenizer, const Options& options) {
  if (options.no_end_token) return std::nullopt;
  if (!options.end_token.empty()) return find_end_token(tokenizer, options.end_token);
  if (const auto found = tokenizer.end_token()) return found;
  throw ConfigError(
      "{}: no token in it is known to end a document. Name it with --eod, or give --no-eod",
      tokenizer.source());
}

/// What is read is not written: the tokenizer of `--tokenizer x.json --output x` would be lost.
void check_output(const Tokenizer& tokenizer, const Options& options) {
  std::vector<std::string> read = options.inputs;
  if (tokenizer.source() != "byte") read.push_back(tokenizer.source());
  if (options.output.empty() || options.output.ends_with('/')) {
    throw ConfigError(
        "--output \"{}\": a prefix is needed, of the files PREFIX.bin, PREFIX.idx, PREFIX.json",
        options.output);
  }
  std::vector<std::filesystem::path> written;
  for (const char* suffix : {".bin", ".idx", ".json"})
    written.emplace_back(options.output + suffix);
  check_output_files(written, read, options.overwrite);
}

void refuse_unbuilt(const CLI::App& app) {
  for (const char* name : {"--messages", "--chat-template"}) {
    if (app.count(name) > 0)
      throw ConfigError("{}: not in this version. --jsonl KEY reads one text a line", name);
  }
}

}  // namespace

int tokenize_command(Arguments arguments) {
  Options options;
  CLI::App app("Turns text into token files for training.", "train tokenize");
  declare(app, options);
  if (!parse_options(app, arguments)) return 0;
  refuse_unbuilt(app);
  TokenizeOptions work;
  work.progress = parse_show(options.progress, "--progress");
  work.inputs = options.inputs;
  work.workers = options.workers > 0 ? options.workers : cpus_of_this_thread();
  if (app.count("--jsonl") > 0) work.json_key = options.json_key;
  const auto tokenizer = load_tokenizer(options.tokenizer);
  work.end_token = choose_end_token(*tokenizer, options);
  check_output(*tokenizer, options);
  IndexedWriter writer(options.output, tokenizer->vocab_size());
  tokenize_corpus(*tokenizer, work, writer);
  writer.finish(describe_tokenizer(*tokenizer, work.end_token));
  const IndexedTotals& totals = writer.totals();
  if (totals.empty_documents > 0) {
    log_warning("{} without text left out", counted(totals.empty_documents, "document"));
  }
  fmt::print("{}: {}, {}, largest id {}\n", options.output, counted(totals.documents, "document"),
             counted(totals.tokens, "token"), totals.largest_id);
  return 0;
}

}  // namespace trireme
