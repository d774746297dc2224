#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>

#include "base/log.h"
#include "base/stop_flag.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "generate/generator.h"
#include "model/model_limits.h"
#include "parallel/host_state.h"
#include "train/device_choice.h"
#include "train/model_source.h"
#include "train/watch.h"

namespace trireme {

namespace {

struct Options {
  std::string checkpoint, prompt, token_ids;
  std::int64_t max_new_tokens = 128;
  SamplingOptions sampling;
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

/// Prints text as soon as it is whole: bytes of a character that is still incomplete wait for the
/// rest.
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
  if (model.position == PositionKind::kLearned && total > model.max_positions) {
    throw ConfigError(
        "prompt and continuation need {} positions, the model has {} (its positions are learned). "
        "Use --max-new-tokens {} or less.",
        total, model.max_positions,
        std::max<std::int64_t>(0, model.max_positions - static_cast<std::int64_t>(prompt.size())));
  }
}

/// The ranks meet at each token, so that a signal to any of them ends all and none waits for
/// another longer than a token takes. False where rank 0, which alone generates, has no more.
bool meet(Communicator& world, Watchdog& watchdog, bool more) {
  std::int64_t goes_on = more ? 1 : 0;
  world.broadcast(std::as_writable_bytes(std::span(&goes_on, 1)), 0);
  watchdog.progress();
  if (goes_on == 0) return false;
  run_together(world, [] { give_up_if_stopped("train generate"); });
  return true;
}

int run(Launch& launch, LaunchGuard& guard, const Options& options) {
  Communicator& world = launch.world();
  Watch watch(launch, &guard, options.hang_timeout_seconds);
  const ModelSource source(options.checkpoint, world);
  const ModelConfig& model = source.model();
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::int32_t> prompt;
  run_together(world, [&] {
    require_built(model);
    if (options.token_ids.empty()) {
      if (source.tokenizer().empty()) {
        throw DataError("{}: has no tokenizer.json. Give the prompt as --token-ids.",
                        source.path().string());
      }
      tokenizer = load_tokenizer(source.tokenizer());
    }
    prompt = tokenizer ? tokenizer->encode(options.prompt) : parse_ids(options.token_ids);
    check_prompt(prompt, model, options);
  });

  const Device device = choose_device(DeviceChoice::kAuto, launch);
  Context context(device, std::max(1, usable_cpu_count() / launch.local_size()), detect_isa());
  const ModelParams params = declare_params(model);
  ParamStore store(params.metas, DType::kF32, StorePurpose::kInference, device);
  {
    HostState host(context, store.state());
    source.load(host.state(), world);
    host.store();
  }
  const auto meet_others = [&](bool more) { return meet(world, watch.watchdog(), more); };
  if (world.rank() != 0) {  // one rank has the whole model in this version
    while (meet_others(true)) {
    }
    return 0;
  }

  Decoder decoder(context, model, params, store,
                  static_cast<std::int64_t>(prompt.size()) + options.max_new_tokens, 256);
  if (tokenizer) {
    TextPrinter printer;
    printer.print(options.prompt);
    generate(decoder, prompt, options.max_new_tokens, model.end_token, options.sampling,
             [&](std::int32_t id) {
               meet_others(true);
               if (id != model.end_token) printer.print(tokenizer->token_text(id));
             });
    printer.finish();
  } else {
    std::vector<std::int32_t> ids = prompt;
    generate(decoder, prompt, options.max_new_tokens, model.end_token, options.sampling,
             [&](std::int32_t id) {
               meet_others(true);
               ids.push_back(id);
             });
    std::puts(fmt::format("{}", fmt::join(ids, ",")).c_str());
  }
  meet_others(false);
  return 0;
}

}  // namespace

int generate_command(Arguments arguments) {
  Options options;
  CLI::App app(
      "Continue a prompt: prints prompt and continuation. Filters run in the order temperature, "
      "top-k, top-p, as in "
      "transformers.",
      "train generate");
  app.add_option("--checkpoint", options.checkpoint,
                 "step folder, checkpoints folder, run folder (newest that verifies) or Hugging "
                 "Face directory")
      ->required();
  auto* prompt = app.add_option("--prompt", options.prompt, "text to continue");
  auto* ids = app.add_option("--token-ids", options.token_ids,
                             "1,2,3 in place of a text; all ids are printed");
  prompt->excludes(ids);
  app.add_option("--max-new-tokens", options.max_new_tokens, "tokens to add at most; default 128")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24));
  app.add_option("--temperature", options.sampling.temperature,
                 "0 takes the most likely token; default 1")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top-k", options.sampling.top_k, "keep the k most likely; default 0 = off")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top-p", options.sampling.top_p,
                 "keep the most likely that reach p together; default 1 = off")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.sampling.seed, "of the draws; default 1234");
  add_hang_timeout(app, options.hang_timeout_seconds);
  if (!parse_options(app, arguments)) return 0;
  if (prompt->count() + ids->count() == 0)
    throw ConfigError("train generate: --prompt or --token-ids is required");
  LaunchGuard guard([&] { return options.hang_timeout_seconds; });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); });
}

}  // namespace trireme
