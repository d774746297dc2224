#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include "base/human_format.h"
#include "base/log.h"
#include "base/program_files.h"
#include "base/stop_flag.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "generate/generator.h"
#include "guard/watch.h"
#include "model/model_limits.h"
#include "plan/generation_mesh.h"
#include "store/host_state.h"
#include "train/device_choice.h"
#include "train/generation_runtime.h"
#include "train/memory_check.h"
#include "train/model_source.h"

namespace trireme {

namespace {

struct Options {
  std::string checkpoint, prompt, token_ids;
  std::int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::optional<std::int64_t> tensor, pipeline;
  double hang_timeout_seconds = 0;
};

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next != end && *next != ',') || next + 1 == end) {
      throw ConfigError("--token-ids: \"{}\" is not a list of ids such as 1,2,3", text);
    }
    ids.push_back(id);
    at = next == end ? end : next + 1;
  }
  return ids;
}

/// Prints text as soon as it is whole: bytes of an incomplete character wait for the rest.
class TextPrinter {
 public:
  void print(std::string_view bytes) {
    pending_ += bytes;
    const std::size_t whole = whole_characters();
    std::fwrite(pending_.data(), 1, whole, stdout);
    std::fflush(stdout);
    pending_.erase(0, whole);
  }
  void finish() {
    std::fwrite(pending_.data(), 1, pending_.size(), stdout);
    std::fputc('\n', stdout);
  }

 private:
  /// Bytes before a UTF-8 sequence that the end cuts off.
  [[nodiscard]] std::size_t whole_characters() const {
    const std::size_t size = pending_.size();
    for (std::size_t back = 1; back <= std::min<std::size_t>(3, size); ++back) {
      const auto byte = static_cast<unsigned char>(pending_[size - back]);
      if (byte < 0x80) break;
      if (byte < 0xC0) continue;  // within a sequence: look for its first byte
      const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
      return length > back ? size - back : size;
    }
    return size;
  }
  std::string pending_;
};

void check_prompt(const std::vector<std::int32_t>& prompt, const ModelConfig& model,
                  const Options& options) {
  if (prompt.empty()) throw ConfigError("the prompt has no tokens (there is nothing to continue)");
  for (const std::int32_t id : prompt) {
    if (id < 0 || id >= model.vocab_size) {
      throw ConfigError("token id {} of the prompt is outside of the vocabulary of {}", id,
                        model.vocab_size);
    }
  }
  const auto total = static_cast<std::int64_t>(prompt.size()) + options.max_new_tokens;
  if (model.learned_positions && total > model.max_positions) {
    throw ConfigError(
        "prompt and continuation need {} positions, the model has {} (its positions are learned). "
        "Use --max-new-tokens {} or less.",
        total, model.max_positions,
        std::max<std::int64_t>(0, model.max_positions - static_cast<std::int64_t>(prompt.size())));
  }
  // Nothing is computed from the last token.
  if (auto problem = window_fault(model, total - 1)) throw_problems({*std::move(problem)});
}

/// Of a prompt at a time: many chunks, as stages stand still where ranks meet.
constexpr std::size_t kFedTokens = 4096;

/// By rank 0: who does what; alone there is nothing to say.
void report_ranks(const GenerationMesh& shared, int ranks) {
  if (ranks == 1) return;
  const int sharers = shared.mesh.size(), others = ranks - sharers;
  log_info("generating with pipeline {} x tensor {}, up to {} of weights on a rank{}",
           shared.mesh.extent(Axis::kPipeline), shared.mesh.extent(Axis::kTensor),
           format_bytes(shared.weight_bytes_max()),
           others == 0 ? ""
                       : fmt::format("; {} of {} {} idle", others, counted(ranks, "rank"),
                                     others == 1 ? "is" : "are"));
}

MemoryWords memory_words(const Launch& launch, const GenerationMesh& shared,
                         const GenerationOptions& sizes) {
  const std::int64_t tokens = sizes.shape.capacity;
  const std::int64_t weights = shared.weight_bytes_max(), cache = shared.cache_bytes_max(tokens);
  return {sizes.device,
          fmt::format("weights {}, keys and values of {} {}: {} together", format_bytes(weights),
                      counted(tokens, "token"), format_bytes(cache), format_bytes(weights + cache)),
          [&launch, weights](std::int64_t available) {
            const int ranks = 2 * launch.job().size();
            const std::string share =
                fmt::format("more ranks, which share the model out: {} -n {} generate ...",
                            program_file_to_type("scripts/run.sh"), ranks);
            return weights > available
                       ? fmt::format(". Take {}", share)
                       : fmt::format(". Take a smaller --max-new-tokens, or {}", share);
          }};
}

/// Ranks of a host, the least of all; 0 where one host has all.
std::int64_t ranks_of_host(Launch& launch) {
  std::int64_t least = -launch.local_size();
  launch.job().maximum(std::span(&least, 1));
  return -least == launch.job().size() ? 0 : -least;
}

/// Each rank its own boxes; those that have no part of the model take part in the reading.
void load(const ModelSource& source, std::optional<GenerationRuntime>& runtime, Communicator& job) {
  State nothing;
  if (!runtime) return source.load(nothing, job);
  HostState host(runtime->context, runtime->store.state());
  source.load(host.state(), job);
  host.store();
}

/// What is generated from, checked.
struct Task {
  std::unique_ptr<Tokenizer> tokenizer;  ///< of a text
  std::vector<std::int32_t> prompt;
  GenerationMesh shared;
};

Task prepare(const ModelSource& source, const Options& options, GenerationRequest request) {
  Task task;
  require_built(source.model());
  if (options.token_ids.empty()) {
    if (source.tokenizer().empty()) {
      throw DataError("{}: has no tokenizer.json. Give the prompt as --token-ids.",
                      source.path().string());
    }
    task.tokenizer = load_tokenizer(source.tokenizer());
  }
  task.prompt =
      task.tokenizer ? task.tokenizer->encode(options.prompt) : parse_ids(options.token_ids);
  check_prompt(task.prompt, source.model(), options);
  request.tensor = options.tensor;
  request.pipeline = options.pipeline;
  task.shared = resolve_generation(source.model(), request);
  return task;
}

/// Writes prompt and continuation: text as it comes, ids when all are there.
class Output {
 public:
  Output(const Task& task, const Options& options, std::vector<std::int64_t> end_tokens)
      : tokenizer_(task.tokenizer.get()), end_tokens_(std::move(end_tokens)), ids_(task.prompt) {
    if (tokenizer_ != nullptr) printer_.print(options.prompt);
  }
  void add(std::int32_t id) {
    if (tokenizer_ == nullptr) {
      ids_.push_back(id);
    } else if (std::find(end_tokens_.begin(), end_tokens_.end(), id) == end_tokens_.end()) {
      printer_.print(tokenizer_->token_text(id));
    }
  }
  void finish() {
    if (tokenizer_ != nullptr) return printer_.finish();
    std::puts(fmt::format("{}", fmt::join(ids_, ",")).c_str());
  }

 private:
  const Tokenizer* tokenizer_;
  std::vector<std::int64_t> end_tokens_;
  std::vector<std::int32_t> ids_;
  TextPrinter printer_;
};

struct Work {
  Launch& launch;
  Watch& watch;
  const ModelSource& source;
  const Task& task;
  const Options& options;
  const GenerationOptions& sizes;
  const MemoryWords& words;
};

/// From the memory that it takes to the last token.
void generate_from(const Work& work) {
  Launch& launch = work.launch;
  Watch& watch = work.watch;
  const ModelSource& source = work.source;
  const Task& task = work.task;
  const Options& options = work.options;
  Communicator& job = launch.job();
  const bool has_part = job.rank() < task.shared.mesh.size();
  const std::unique_ptr<Communicator> group = job.split(has_part ? 0 : 1);
  std::optional<GenerationRuntime> runtime;
  std::optional<Watchdog::Following> following;
  run_together(job, [&] {
    if (!has_part) return;
    reporting_memory(launch, work.words,
                     [&] { runtime.emplace(launch, *group, task.shared, work.sizes); });
  });
  if (runtime) following.emplace(watch.watchdog(), runtime->decoder.trace());
  load(source, runtime, job);

  std::optional<Output> output;
  if (job.rank() == 0) output.emplace(task, options, source.end_tokens());
  // The ranks meet at each token and between chunks of a long prompt, so that a signal to any of
  // them ends all and none waits for another longer than that takes.
  const Feed feed = [&](std::span<const std::int32_t> ids) {
    std::span<const float> logits;
    while (!ids.empty()) {
      const std::size_t count = std::min(ids.size(), kFedTokens);
      if (runtime) logits = runtime->decoder.feed(ids.first(count));
      ids = ids.subspan(count);
      watch.watchdog().progress();
      run_together(job, [] { give_up_if_stopped("train generate"); });
    }
    return logits;
  };
  const Agree agree = [&](std::int32_t token) {
    job.broadcast(std::as_writable_bytes(std::span(&token, 1)), task.shared.sampler());
    if (output) output->add(token);
    return token;
  };
  generate(feed, task.prompt, options.max_new_tokens, source.end_tokens(), options.sampling, agree);
  if (output) output->finish();
}

int run(Launch& launch, LaunchGuard& guard, const Options& options) {
  Communicator& job = launch.job();
  Watch watch(launch, &guard, options.hang_timeout_seconds);
  const ModelSource source(options.checkpoint, job);
  const std::int64_t of_host = ranks_of_host(launch);
  Task task;
  run_together(job, [&] { task = prepare(source, options, {job.size(), of_host, {}, {}}); });
  report_ranks(task.shared, job.size());

  GenerationOptions sizes;
  sizes.device = choose_device(DeviceChoice::kAuto, launch);
  sizes.threads = std::max(1, usable_cpu_count() / launch.local_size());
  sizes.shape.capacity = static_cast<std::int64_t>(task.prompt.size()) + options.max_new_tokens;
  const MemoryWords words = memory_words(launch, task.shared, sizes);
  reporting_memory(launch, words, [&] {
    generate_from({launch, watch, source, task, options, sizes, words});
  });
  return 0;
}

}  // namespace

int generate_command(Arguments arguments) {
  Options options;
  CLI::App app(
      "Continue a prompt: prints prompt and continuation. Filters run in the order temperature, "
      "top-k, top-p, as in transformers. Several ranks share the model out, each keeping its own "
      "weights, keys and values.",
      "train generate");
  app.add_option("--checkpoint", options.checkpoint,
                 "step folder, checkpoints folder, run folder (newest that verifies) or Hugging "
                 "Face directory")
      ->type_name("DIR")
      ->required();
  auto* prompt = app.add_option("--prompt", options.prompt, "text to continue");
  auto* ids = app.add_option("--token-ids", options.token_ids,
                             "1,2,3 in place of a text; all ids are printed");
  prompt->excludes(ids);
  app.add_option("--max-new-tokens", options.max_new_tokens, "tokens to add at most; default 128")
      ->check(integer_from(0, std::int64_t{1} << 24));
  app.add_option("--temperature", options.sampling.temperature,
                 "0 takes the most likely token; default 1")
      ->check(number_from(0));
  app.add_option("--top-k", options.sampling.top_k, "keep the k most likely; default 0 = off")
      ->check(integer_from(0));
  app.add_option("--top-p", options.sampling.top_p,
                 "keep the most likely that reach p together; default 1 = off")
      ->check(number_from(0, 1));
  app.add_option("--seed", options.sampling.seed, "of the draws; default 1234")
      ->check(integer_from(0));
  const CLI::Validator extent = integer_from(1, std::int64_t{1} << 30);
  app.add_option("--tensor", options.tensor,
                 "cut every layer over N ranks; default: chosen, for as many ranks as can have a "
                 "part of the model")
      ->check(extent);
  app.add_option("--pipeline", options.pipeline, "put the layers on N stages; default: chosen")
      ->check(extent);
  add_hang_timeout(app, options.hang_timeout_seconds);
  if (!parse_options(app, arguments)) return 0;
  if (prompt->count() + ids->count() == 0)
    throw ConfigError("train generate: --prompt or --token-ids is required");
  LaunchGuard guard([&] { return options.hang_timeout_seconds; });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); }, &guard).code;
}

}  // namespace trireme
