#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <optional>

#include "base/human_format.h"
#include "base/log.h"
#include "base/program_files.h"
#include "base/stop_flag.h"
#include "commands/answers.h"
#include "commands/commands.h"
#include "commands/config_options.h"
#include "commands/every_rank.h"
#include "commands/parse_options.h"
#include "commands/prompts.h"
#include "device/cpu_info.h"
#include "device/gpu.h"
#include "generate/generator.h"
#include "guard/watch.h"
#include "model/model_limits.h"
#include "plan/generation_mesh.h"
#include "store/host_state.h"
#include "tokenizer/chat_template_choice.h"
#include "train/device_choice.h"
#include "train/generation_runtime.h"
#include "train/memory_check.h"
#include "train/model_source.h"

namespace trireme {

namespace {

struct Options {
  std::string checkpoint, base, precision, chat_template;
  PromptOptions prompts;
  std::int64_t max_new_tokens = 128, samples = 1;
  SamplingOptions sampling;
  bool json = false, chat = false;
  std::optional<std::int64_t> tensor, pipeline;
  double hang_timeout_seconds = 0;
};

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
  const DecoderShape& shape = sizes.shape;
  const std::int64_t weights = shared.weight_bytes_max(), cache = shared.cache_bytes_max(shape);
  return {sizes.device,
          fmt::format("weights {}, keys and values of {} {}: {} together", format_bytes(weights),
                      counted(shape.pages_of_all() * kAttentionPage, "token"), format_bytes(cache),
                      format_bytes(weights + cache)),
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
  runtime->store.refresh_copies(runtime->context);
}

/// What is generated from, checked.
struct Task {
  std::unique_ptr<Tokenizer> tokenizer;  ///< of texts
  std::vector<Prompt> prompts;
  std::vector<SequenceRequest> requests;  ///< of each prompt its samples
  std::vector<std::int64_t> end_tokens;   ///< any of them ends a sequence
  GenerationMesh shared;
};

/// Every rank gets what rank 0 reads: sizes first, then bytes, which need not be UTF-8.
std::vector<Prompt> share_prompts(const PromptOptions& options, Communicator& job) {
  Json sizes = Json::array();
  std::string bytes;
  run_together(job, [&] {
    if (job.rank() != 0) return;
    for (const Prompt& prompt : read_prompts(options)) {
      for (const std::string* part : {&prompt.where, &prompt.text}) {
        sizes.push_back(std::ssize(*part));
        bytes += *part;
      }
    }
  });
  sizes = parse_json(job.broadcast_text(sizes.dump(), 0), "sizes of prompts");
  bytes = job.broadcast_text(bytes, 0);
  std::size_t at = 0;
  const auto next = [&](const Json& size) {
    const auto count = static_cast<std::size_t>(size.as_integer());
    at += count;
    return bytes.substr(at - count, count);
  };
  const Json::Array& all = sizes.as_array();
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    std::string where = next(all[i]);
    prompts.push_back({std::move(where), next(all[i + 1]), {}});
  }
  return prompts;
}

/// A turn of the template's ends a sequence too.
ChatTemplate prepare_chat(Task& task, const Options& options) {
  ChatTemplate chat = choose_chat_template(*task.tokenizer, options.chat_template);
  const auto end = task.tokenizer->token_id(chat.end_of_turn());
  if (!end) {
    throw ConfigError(
        "--chat: {} has no token {}, which ends a turn of {}: no answer would end. Take the "
        "template that the model was trained with: --chat-template NAME",
        task.tokenizer->source(), chat.end_of_turn(), chat.name());
  }
  task.end_tokens.push_back(*end);
  return chat;
}

void prepare(Task& task, const ModelSource& source, const Options& options,
             GenerationRequest request) {
  require_generated(source.model());
  if (!options.prompts.as_ids()) {
    if (source.tokenizer().empty()) {
      throw DataError("{}: has no tokenizer.json. Give the prompt as --token-ids.",
                      source.path().string());
    }
    task.tokenizer = load_tokenizer(source.tokenizer());
  }
  task.end_tokens = source.end_tokens();
  std::optional<ChatTemplate> chat;
  if (options.chat) chat = prepare_chat(task, options);
  tokenize_prompts(task.prompts, {task.tokenizer.get(), chat ? &*chat : nullptr}, source.model(),
                   options.max_new_tokens);
  for (const Prompt& prompt : task.prompts) {
    for (std::int64_t sample = 0; sample < options.samples; ++sample)
      task.requests.push_back({prompt.tokens, options.max_new_tokens, sample});
  }
  request.tensor = options.tensor;
  request.pipeline = options.pipeline;
  task.shared = resolve_generation(source.model(), request);
}

/// Sequences at once: more make products no faster on a CPU, and logits large.
constexpr std::size_t kSequencesMost = 128;

/// Room for as many sequences as there are, or as have pages and rings in three quarters of the
/// memory that weights leave. Collective: all ranks have the same.
DecoderShape choose_shape(const Task& task, Launch& launch, Device device) {
  std::vector<std::int64_t> pages;
  DecoderShape shape;
  for (const SequenceRequest& request : task.requests) {
    const std::int64_t tokens = std::ssize(request.prompt) + request.new_tokens;
    shape.length = std::max(shape.length, tokens);
    pages.push_back(PageTable::pages_of(tokens));
  }
  std::sort(pages.rbegin(), pages.rend());
  pages.resize(std::min(pages.size(), kSequencesMost));
  const std::int64_t wanted = std::accumulate(pages.begin(), pages.end(), std::int64_t{0});
  const auto bytes_with = [&](std::int64_t sequences, std::int64_t count) {
    shape.sequences = sequences;
    shape.pages = count;
    return task.shared.cache_bytes_max(shape);
  };
  const std::int64_t free = device.kind == DeviceKind::kCuda
                                ? static_cast<std::int64_t>(gpu::free_bytes())
                                : memory_bytes_available() / launch.local_size();
  const std::int64_t left =
      std::max<std::int64_t>(0, free - task.shared.weight_bytes_max()) / 4 * 3;
  // Layers with windows keep a ring for each sequence, whatever its length; they may have half.
  std::int64_t sequences = std::ssize(pages);
  while (sequences > 1 && bytes_with(sequences, 1) > left / 2) sequences /= 2;
  const std::int64_t rings = bytes_with(sequences, 1),
                     of_page = bytes_with(sequences, 2) - rings;  // 0: all layers have windows
  const std::int64_t fitting =
      of_page == 0 ? wanted : std::max<std::int64_t>(0, left - rings) / of_page;
  std::int64_t least[] = {-sequences, -fitting};
  launch.job().maximum(least);
  shape.pages = std::clamp(-least[1], pages.front(), wanted);
  shape.sequences = std::min(-least[0], shape.pages);
  return shape;
}

struct Work {
  Launch& launch;
  Watch& watch;
  const ModelSource& source;
  const Task& task;
  const Options& options;
  const GenerationOptions& sizes;
  const MemoryWords& words;
};

/// All ranks of the job meet before each pass, so that a signal to any of them ends all and none
/// waits for another longer than a pass takes. True: there is one.
bool meet(Watch& watch, Communicator& job, bool pass_follows) {
  watch.watchdog().progress();
  run_together(job, [] { give_up_if_stopped("train generate"); });
  std::int32_t follows = pass_follows ? 1 : 0;
  job.broadcast(std::as_writable_bytes(std::span(&follows, 1)), 0);
  return follows != 0;
}

void report(const GenerationCounts& counts, std::int64_t sequences, double first, double seconds) {
  if (counts.new_tokens == 0) return;
  log_info(
      "generated {} of {} in {:.2f} s: {:.1f} tokens/s, the first after {:.2f} s; {} of "
      "prompts, up to {} at once{}",
      counted(counts.new_tokens, "token"), counted(sequences, "sequence"), seconds,
      static_cast<double>(counts.new_tokens) / seconds, first,
      counted(counts.prompt_tokens, "token"), counted(counts.sequences_most, "sequence"),
      counts.restarted == 0 ? ""
                            : fmt::format("; {} began again for want of memory",
                                          counted(counts.restarted, "sequence")));
}

/// Of a rank that has a part of the model.
void generate_with(const Work& work, Communicator& group, Decoder& decoder) {
  using Clock = std::chrono::steady_clock;
  const auto since = [begin = Clock::now()] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  Communicator& job = work.launch.job();
  const Task& task = work.task;
  std::optional<Answers> answers;
  if (job.rank() == 0) {
    const AnswerForm form = work.options.json   ? AnswerForm::kJson
                            : work.options.chat ? AnswerForm::kReply
                                                : AnswerForm::kPlain;
    answers.emplace(task.prompts, work.options.samples, form, task.tokenizer.get(),
                    task.end_tokens);
  }
  double first = 0;
  GenerationCalls calls;
  calls.between = [&] { meet(work.watch, job, true); };
  calls.agree = [&](std::span<std::int32_t> tokens) {
    group.broadcast(std::as_writable_bytes(tokens), task.shared.sampler());
  };
  calls.added = [&](std::size_t request, std::int32_t token) {
    if (first == 0) first = since();
    if (answers) answers->add(request, token);
  };
  calls.ended = [&](std::size_t request) {
    if (answers) answers->end(request);
  };
  SamplingOptions sampling = work.options.sampling;
  sampling.numbers_alone = true;
  const GenerationCounts counts =
      generate(decoder, task.requests, sampling, task.end_tokens, calls);
  meet(work.watch, job, false);
  if (job.rank() == 0) report(counts, std::ssize(task.requests), first, since());
}

/// From the memory that it takes to the last token.
void generate_from(const Work& work) {
  Communicator& job = work.launch.job();
  const bool has_part = job.rank() < work.task.shared.mesh.size();
  const std::unique_ptr<Communicator> group = job.split(has_part ? 0 : 1);
  std::optional<GenerationRuntime> runtime;
  std::optional<Watchdog::Following> following;
  run_together(job, [&] {
    if (!has_part) return;
    reporting_memory(work.launch, work.words,
                     [&] { runtime.emplace(work.launch, *group, work.task.shared, work.sizes); });
  });
  if (runtime) following.emplace(work.watch.watchdog(), runtime->decoder.trace());
  load(work.source, runtime, job);
  if (runtime) return generate_with(work, *group, runtime->decoder);
  while (meet(work.watch, job, false)) {
  }
}

int run(Launch& launch, LaunchGuard& guard, const Options& options) {
  Communicator& job = launch.job();
  Watch watch(launch, &guard, options.hang_timeout_seconds);
  const ModelSource source(options.checkpoint, job, options.base);
  const std::int64_t of_host = ranks_of_host(launch);
  GenerationOptions sizes;
  sizes.device = choose_device(DeviceChoice::kAuto, launch);
  sizes.threads = std::max(1, usable_cpu_count() / launch.local_size());
  const bool bf16 = options.precision.empty() ? sizes.device.kind == DeviceKind::kCuda
                                              : options.precision == "bf16";
  Task task;
  task.prompts = share_prompts(options.prompts, job);
  run_together(job, [&] {
    prepare(task, source, options,
            {job.size(), of_host, {}, {}, bf16 ? DType::kBF16 : DType::kF32});
  });
  report_ranks(task.shared, job.size());
  sizes.shape = choose_shape(task, launch, sizes.device);
  const MemoryWords words = memory_words(launch, task.shared, sizes);
  reporting_memory(launch, words, [&] {
    generate_from({launch, watch, source, task, options, sizes, words});
  });
  return 0;
}

void declare(CLI::App& app, Options& options) {
  app.add_option("--checkpoint", options.checkpoint,
                 "step folder, checkpoints folder, run folder (newest that verifies), Hugging "
                 "Face directory or folder of peft's")
      ->type_name("DIR")
      ->required();
  add_base(app, options.base);
  app.add_option("--prompt", options.prompts.text, "text to continue");
  app.add_option("--token-ids", options.prompts.ids,
                 "1,2,3 in place of a text; all ids are printed");
  app.add_option("--prompt-file", options.prompts.text_file,
                 "texts, one a line, continued together; - is standard input")
      ->type_name("FILE");
  app.add_option("--token-ids-file", options.prompts.ids_file, "the same, of ids")
      ->type_name("FILE");
  CLI::Option* chat = app.add_flag("--chat", options.chat,
                                   "a prompt is a message of the user, or a JSON array of {role, "
                                   "content}; the answer is printed");
  app.add_option("--chat-template", options.chat_template,
                 "how messages are written; default: the model's own template")
      ->type_name("NAME")
      ->needs(chat);
  app.add_option("--num-samples", options.samples, "continuations of each prompt; default 1")
      ->check(integer_from(1, 1 << 20));
  app.add_flag("--json", options.json,
               "print a line {prompt, text, token_ids, new_tokens} for each");
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
  app.add_option("--precision", options.precision,
                 "fp32 or bf16; default: bf16 on a GPU, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  const CLI::Validator extent = integer_from(1, std::int64_t{1} << 30);
  app.add_option("--tensor", options.tensor,
                 "cut every layer over N ranks; default: chosen, for as many ranks as can have a "
                 "part of the model")
      ->check(extent);
  app.add_option("--pipeline", options.pipeline, "put the layers on N stages; default: chosen")
      ->check(extent);
  add_hang_timeout(app, options.hang_timeout_seconds);
}

}  // namespace

int generate_command(Arguments arguments) {
  Options options;
  CLI::App app(
      "Continues prompts, many at once: prints prompt and continuation. Filters run in the order "
      "temperature, top-k, top-p, as in transformers. Several ranks share the model out, each "
      "keeping its own weights, keys and values. A prompt gets the same tokens alone and among "
      "others.",
      "train generate");
  declare(app, options);
  if (!parse_options(app, arguments)) return 0;
  const std::array<const char*, 4> sources = {"--prompt", "--token-ids", "--prompt-file",
                                              "--token-ids-file"};
  const auto given = std::count_if(sources.begin(), sources.end(),
                                   [&](const char* name) { return app.count(name) > 0; });
  if (given != 1) {
    throw ConfigError(
        "train generate: {}. Give one of --prompt, --token-ids, --prompt-file and "
        "--token-ids-file",
        given == 0 ? "there is nothing to continue" : "several sources of prompts");
  }
  if (options.chat && options.prompts.as_ids())
    throw ConfigError("--chat: writes messages of text. Give --prompt or --prompt-file");
  LaunchGuard guard([&] { return options.hang_timeout_seconds; });
  return on_every_rank([&](Launch& launch) { return run(launch, guard, options); }, &guard).code;
}

}  // namespace trireme
