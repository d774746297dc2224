#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>

#include "base/cpu_mask.h"
#include "base/error.h"
#include "base/human_format.h"
#include "base/log.h"
#include "commands/commands.h"
#include "commands/every_rank.h"
#include "commands/output_files.h"
#include "commands/parse_options.h"
#include "tokenizer/chat_template_choice.h"
#include "tokenizer/tokenize_corpus.h"

namespace trireme {

namespace {

struct Options {
  std::string tokenizer, output, json_key, messages, chat_template, end_token, progress = "auto";
  std::string overflow = "truncate";
  bool no_end_token = false, overwrite = false;
  int workers = 0;
  std::int64_t pack = 0;
  std::vector<std::string> inputs;
};

void declare(CLI::App& app, Options& options) {
  app.add_option("--tokenizer", options.tokenizer, "byte, a tokenizer.json or a folder with one")
      ->type_name("{byte}|FILE")
      ->required();
  app.add_option("--output", options.output, "PREFIX of PREFIX.bin, PREFIX.idx, PREFIX.json")
      ->type_name("PREFIX")
      ->required();
  CLI::Option* jsonl = app.add_option("--jsonl", options.json_key,
                                      "one document per line of JSON, its text under KEY")
                           ->type_name("KEY");
  CLI::Option* messages =
      app.add_option(
             "--messages", options.messages,
             "one conversation per line of JSON, under KEY an array of {role, content}; the "
             "loss is the assistant's alone: PREFIX.mask")
          ->type_name("KEY")
          ->excludes(jsonl);
  app.add_option("--chat-template", options.chat_template,
                 "how conversations are written (default: the template beside the tokenizer)")
      ->type_name("NAME")
      ->needs(messages);
  CLI::Option* pack =
      app.add_option("--pack", options.pack,
                     "fill windows of N = data.sequence_length tokens with whole documents")
          ->type_name("N")
          ->check(integer_from(2, std::int64_t{1} << 30));
  app.add_option("--overflow", options.overflow, "what becomes of a document longer than --pack")
      ->check(one_of({"truncate", "split", "refuse"}))
      ->needs(pack);
  CLI::Option* eod =
      app.add_option(
             "--eod", options.end_token,
             "token that ends each document (default: the tokenizer's own); a number is an id")
          ->type_name("TOKEN|ID")
          ->excludes(messages);
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
      "document, or what\n"
      "the template of conversations writes. Bytes that are not UTF-8 are kept. Documents without "
      "text and blank lines of\n"
      "JSON are left out.\n"
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
  for (const char* suffix : {".bin", ".idx", ".json", ".mask"})
    written.emplace_back(options.output + suffix);
  check_output_files(written, read, options.overwrite);
}

Packing packing_of(const Tokenizer& tokenizer, const Options& options) {
  const Overflow overflow = options.overflow == "split"    ? Overflow::kSplit
                            : options.overflow == "refuse" ? Overflow::kRefuse
                                                           : Overflow::kTruncate;
  return {options.pack, overflow, tokenizer.end_token().value_or(0)};
}

/// Generation ends a turn where that is one token; written out it is many, and it goes on.
void warn_of_end_of_turn(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  if (tokenizer.token_id(chat.end_of_turn())) return;
  log_warning(
      "{}: has no token {}, which ends a turn of {}: it is written in several, and generate --chat "
      "will not stop there",
      tokenizer.source(), chat.end_of_turn(), chat.name());
}

void report(const Options& options, const IndexedTotals& totals) {
  if (totals.empty_documents > 0) {
    log_warning("{} without text left out", counted(totals.empty_documents, "document"));
  }
  if (totals.without_targets > 0 && !options.messages.empty()) {
    log_warning("{} without a message of the assistant: nothing of them counts in the loss",
                counted(totals.without_targets, "conversation"));
  }
  if (totals.too_long > 0) {
    log_warning("{} longer than {} tokens {}", counted(totals.too_long, "document"), options.pack,
                options.overflow == "split"
                    ? "split"
                    : fmt::format("truncated by {} in all", counted(totals.dropped, "token")));
  }
  std::string more;
  if (options.pack > 0) more += fmt::format(" of {}", counted(totals.packed_documents, "document"));
  if (!options.messages.empty())
    more += fmt::format(", {} in the loss", counted(totals.counted, "token"));
  fmt::print("{}: {}{}, {}, largest id {}\n", options.output,
             counted(totals.documents, options.pack > 0 ? "window" : "document"), more,
             counted(totals.tokens, "token"), totals.largest_id);
}

Json describe(const Tokenizer& tokenizer, const TokenizeOptions& work, const Options& options) {
  Json about = describe_tokenizer(tokenizer, work.end_token);
  if (work.chat) about["chat_template"] = work.chat->name();
  if (options.pack > 0) about["packed"] = options.pack;
  return about;
}

}  // namespace

int tokenize_command(Arguments arguments) {
  Options options;
  CLI::App app("Turns text into token files for training.", "train tokenize");
  declare(app, options);
  if (!parse_options(app, arguments)) return 0;
  require_alone("train tokenize", "Start it without one: its --workers take all cores.");
  TokenizeOptions work;
  work.progress = parse_show(options.progress, "--progress");
  work.inputs = options.inputs;
  work.workers = options.workers > 0 ? options.workers : cpus_of_this_thread();
  if (app.count("--jsonl") > 0) work.json_key = options.json_key;
  const auto tokenizer = load_tokenizer(options.tokenizer);
  if (app.count("--messages") > 0) {
    work.json_key = options.messages;
    work.chat = choose_chat_template(*tokenizer, options.chat_template);
    warn_of_end_of_turn(*tokenizer, *work.chat);
  }
  if (!work.chat) work.end_token = choose_end_token(*tokenizer, options);
  check_output(*tokenizer, options);
  const bool has_mask = work.chat || options.pack > 0;
  IndexedWriter writer(options.output, tokenizer->vocab_size(),
                       has_mask ? TargetMask::kWritten : TargetMask::kNone);
  tokenize_corpus(*tokenizer, work, writer);
  if (options.pack > 0) writer.pack(packing_of(*tokenizer, options));
  writer.finish(describe(*tokenizer, work, options));
  report(options, writer.totals());
  return 0;
}

}  // namespace trireme
