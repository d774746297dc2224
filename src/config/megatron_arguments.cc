#include "config/megatron_arguments.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "config/shell_commands.h"

namespace trireme {

namespace {

constexpr std::string_view kKernels = "kernels are chosen by themselves";
constexpr std::string_view kOverlap = "transfers and their overlap are arranged by themselves";
constexpr std::string_view kLogs =
    "metrics.jsonl, the console and TensorBoard files have the same fields always";
constexpr std::string_view kCheckpoints =
    "a checkpoint has one form here, whole state, read on any mesh";
constexpr std::string_view kLoading = "a thread reads ahead; masks are not stored";
constexpr std::string_view kScaling = "bf16 needs no loss scale";
constexpr std::string_view kAlways = "it is always so here";
constexpr std::string_view kMemory = "memory is laid out before the first step";
constexpr std::string_view kRouter = "routers compute in fp32 always";
constexpr std::string_view kNoDrop = "every token reaches all of its experts";
constexpr std::string_view kFp8 = "fp8 is set by precision alone";
constexpr std::string_view kLauncher = "the launcher (mpirun, srun) says it";

constexpr std::int64_t kSizeMax = std::int64_t{1} << 24;
constexpr bool kFlag = true, kValue = false;

constexpr MegatronRow kRows[] = {
    // The model: megatron_model.cc.
    {"--add-bias-linear", kFlag},
    {"--add-qkv-bias", kFlag},
    {"--apply-layernorm-1p", kFlag},
    {"--apply-residual-connection-post-layernorm", kFlag},
    {"--attention-dropout", kValue},
    {"--beta-fast", kValue},
    {"--beta-slow", kValue},
    {"--disable-bias-linear", kFlag},
    {"--ffn-hidden-size", kValue},
    {"--group-query-attention", kFlag},
    {"--hidden-dropout", kValue},
    {"--hidden-size", kValue},
    {"--init-method-std", kValue},
    {"--kv-channels", kValue},
    {"--kv-lora-rank", kValue},
    {"--layernorm-epsilon", kValue},
    {"--make-vocab-size-divisible-by", kValue},
    {"--max-position-embeddings", kValue},
    {"--moe-ffn-hidden-size", kValue},
    {"--moe-input-jitter-eps", kValue},
    {"--moe-layer-freq", kValue},
    {"--moe-router-enable-expert-bias", kFlag},
    {"--moe-router-group-topk", kValue},
    {"--moe-router-num-groups", kValue},
    {"--moe-router-pre-softmax", kFlag},
    {"--moe-router-score-function", kValue},
    {"--moe-router-topk", kValue},
    {"--moe-router-topk-scaling-factor", kValue},
    {"--moe-shared-expert-gate", kFlag},
    {"--moe-shared-expert-intermediate-size", kValue},
    {"--mscale", kValue},
    {"--mscale-all-dim", kValue},
    {"--mtp-num-layers", kValue},
    {"--multi-latent-attention", kFlag},
    {"--no-position-embedding", kFlag},
    {"--norm-epsilon", kValue},
    {"--normalization", kValue},
    {"--num-attention-heads", kValue},
    {"--num-experts", kValue},
    {"--num-layers", kValue},
    {"--num-query-groups", kValue},
    {"--openai-gelu", kFlag},
    {"--original-max-position-embeddings", kValue},
    {"--padded-vocab-size", kValue},
    {"--position-embedding-type", kValue},
    {"--q-lora-rank", kValue},
    {"--qk-head-dim", kValue},
    {"--qk-l2-norm", kFlag},
    {"--qk-layernorm", kFlag},
    {"--qk-pos-emb-head-dim", kValue},
    {"--quick-geglu", kFlag},
    {"--rope-scaling-factor", kValue},
    {"--rope-type", kValue},
    {"--rotary-base", kValue},
    {"--rotary-interleaved", kFlag},
    {"--rotary-percent", kValue},
    {"--rotary-scaling-factor", kValue},
    {"--rotary-seq-len-interpolation-factor", kValue},
    {"--squared-relu", kFlag},
    {"--swiglu", kFlag},
    {"--untie-embeddings-and-output-weights", kFlag},
    {"--use-rope-scaling", kFlag},
    {"--use-rotary-position-embeddings", kFlag},
    {"--v-head-dim", kValue},
    {"--vocab-size", kValue},
    {"--window-size", kValue},
    // The run: convert_megatron.cc.
    {"--account-for-embedding-in-pipeline-split", kFlag},
    {"--account-for-loss-in-pipeline-split", kFlag},
    {"--adam-beta1", kValue},
    {"--adam-beta2", kValue},
    {"--bf16", kFlag},
    {"--checkpoint-activations", kFlag},
    {"--ckpt-step", kValue},
    {"--cp-comm-type", kValue},
    {"--data-args-path", kValue},
    {"--data-parallel-sharding-strategy", kValue},
    {"--data-path", kValue},
    {"--dataloader-type", kValue},
    {"--decoder-first-pipeline-num-layers", kValue},
    {"--decoder-last-pipeline-num-layers", kValue},
    {"--deepspeed", kFlag},
    {"--deepspeed-config", kValue},
    {"--distributed-timeout-minutes", kValue},
    {"--encoder-seq-length", kValue},
    {"--eval-iters", kValue},
    {"--end-weight-decay", kValue},
    {"--exit-interval", kValue},
    {"--exp-avg-dtype", kValue},
    {"--exp-avg-sq-dtype", kValue},
    {"--finetune", kFlag},
    {"--fp16", kFlag},
    {"--fp8-format", kValue},
    {"--fp8-recipe", kValue},
    {"--grad-reduce-in-bf16", kFlag},
    {"--iterations-to-skip", kValue},
    {"--load", kValue},
    {"--lr-decay-samples", kValue},
    {"--lr-decay-style", kValue},
    {"--lr-warmup-fraction", kValue},
    {"--lr-warmup-init", kValue},
    {"--lr-warmup-samples", kValue},
    {"--lr-wsd-decay-samples", kValue},
    {"--lr-wsd-decay-style", kValue},
    {"--main-grads-dtype", kValue},
    {"--main-params-dtype", kValue},
    {"--merge-file", kValue},
    {"--mock-data", kFlag},
    {"--moe-router-load-balancing-type", kValue},
    {"--moe-token-dispatcher-type", kValue},
    {"--muon-coefficient-type", kValue},
    {"--muon-extra-scale-factor", kValue},
    {"--muon-momentum", kValue},
    {"--muon-nesterov", kFlag},
    {"--muon-no-split-qkv", kFlag},
    {"--muon-num-ns-steps", kValue},
    {"--muon-scalar-optimizer", kValue},
    {"--muon-scale-mode", kValue},
    {"--muon-split-qkv", kFlag},
    {"--muon-tp-mode", kValue},
    {"--muon-use-nesterov", kFlag},
    {"--num-distributed-optimizer-instances", kValue},
    {"--num-layers-per-virtual-pipeline-stage", kValue},
    {"--optimizer", kValue},
    {"--per-split-data-args-path", kValue},
    {"--pipeline-model-parallel-layout", kValue},
    {"--pretrained-checkpoint", kValue},
    {"--profile-step-end", kValue},
    {"--profile-step-start", kValue},
    {"--rampup-batch-size", kValue},
    {"--recompute-activations", kFlag},
    {"--recompute-granularity", kValue},
    {"--recompute-method", kValue},
    {"--recompute-num-layers", kValue},
    {"--reset-attention-mask", kFlag},
    {"--reset-position-ids", kFlag},
    {"--sequence-parallel", kFlag},
    {"--split", kValue},
    {"--start-weight-decay", kValue},
    {"--test-data-path", kValue},
    {"--tokenizer-model", kValue},
    {"--tokenizer-type", kValue},
    {"--train-data-path", kValue},
    {"--train-samples", kValue},
    {"--use-custom-fsdp", kFlag},
    {"--use-distributed-optimizer", kFlag},
    {"--use-megatron-fsdp", kFlag},
    {"--use-torch-fsdp2", kFlag},
    {"--valid-data-path", kValue},
    {"--vocab-file", kValue},
    {"--weight-decay-incr-style", kValue},
    {"--zero-stage", kValue},
    // No counterpart.
    {"--accumulate-allreduce-grads-in-fp32", kFlag, kAlways},
    {"--align-grad-reduce", kFlag, kOverlap},
    {"--apply-query-key-layer-scaling", kFlag,
     "a scale of fp16 that is taken back in the same place"},
    {"--attention-backend", kValue, kKernels},
    {"--attention-softmax-in-fp32", kFlag, kAlways},
    {"--auto-detect-ckpt-format", kFlag, kCheckpoints},
    {"--calculate-per-token-loss", kFlag, kAlways},
    {"--check-for-nan-in-loss-and-grad", kFlag, kAlways},
    {"--check-weight-hash-across-dp-replicas-interval", kValue, kAlways},
    {"--ckpt-assume-constant-structure", kFlag, kCheckpoints},
    {"--ckpt-format", kValue, kCheckpoints},
    {"--ckpt-fully-parallel-load", kFlag, kCheckpoints},
    {"--ckpt-fully-parallel-save", kFlag, kCheckpoints},
    {"--cross-entropy-fusion-impl", kValue, kKernels},
    {"--cross-entropy-loss-fusion", kFlag, kKernels},
    {"--cuda-graph-impl", kValue, kKernels},
    {"--cuda-graph-scope", kValue, kKernels},
    {"--cuda-graph-warmup-steps", kValue, kKernels},
    {"--data-impl", kValue, kLoading},
    {"--data-sharding", kFlag, kLoading},
    {"--ddp-average-in-collective", kFlag, kOverlap},
    {"--ddp-bucket-size", kValue, kOverlap},
    {"--ddp-impl", kValue, kOverlap},
    {"--ddp-num-buckets", kValue, kOverlap},
    {"--ddp-pad-buckets-for-high-nccl-busbw", kFlag, kOverlap},
    {"--defer-embedding-wgrad-compute", kFlag, kOverlap},
    {"--delay-grad-reduce", kFlag, kOverlap},
    {"--dist-ckpt-format", kValue, kCheckpoints},
    {"--dist-ckpt-strictness", kValue, kCheckpoints},
    {"--distribute-saved-activations", kFlag, kMemory},
    {"--distributed-backend", kValue, kLauncher},
    {"--empty-unused-memory-level", kValue, kMemory},
    {"--enable-cuda-graph", kFlag, kKernels},
    {"--enable-one-logger", kFlag, kLogs},
    {"--exit-on-missing-checkpoint", kFlag, kCheckpoints},
    {"--exit-signal-handler", kFlag, kAlways},
    {"--external-cuda-graph", kFlag, kKernels},
    {"--first-last-layers-bf16", kFlag, kFp8},
    {"--fp8-amax-compute-algo", kValue, kFp8},
    {"--fp8-amax-history-len", kValue, kFp8},
    {"--fp8-interval", kValue, kFp8},
    {"--fp8-margin", kValue, kFp8},
    {"--fp8-param-gather", kFlag, kFp8},
    {"--hysteresis", kValue, kScaling},
    {"--init-model-with-meta-device", kFlag, kMemory},
    {"--initial-loss-scale", kValue, kScaling},
    {"--keep-fp8-transpose-cache", kFlag, kFp8},
    {"--legacy-tokenizer", kFlag, kLoading},
    {"--local-rank", kValue, kLauncher},
    {"--log-batch-size-to-tensorboard", kFlag, kLogs},
    {"--log-device-memory-used", kFlag, kLogs},
    {"--log-energy", kFlag, kLogs},
    {"--log-learning-rate-to-tensorboard", kFlag, kLogs},
    {"--log-loss-scale-to-tensorboard", kFlag, kLogs},
    {"--log-memory-to-tensorboard", kFlag, kLogs},
    {"--log-num-zeros-in-grad", kFlag, kLogs},
    {"--log-params-norm", kFlag, kLogs},
    {"--log-progress", kFlag, kLogs},
    {"--log-straggler", kFlag, kLogs},
    {"--log-throughput", kFlag, kLogs},
    {"--log-timers-to-tensorboard", kFlag, kLogs},
    {"--log-validation-ppl-to-tensorboard", kFlag, kLogs},
    {"--log-world-size-to-tensorboard", kFlag, kLogs},
    {"--logging-level", kValue, kLogs},
    {"--loss-scale", kValue, kScaling},
    {"--loss-scale-window", kValue, kScaling},
    {"--manual-gc", kFlag, kMemory},
    {"--manual-gc-eval", kFlag, kMemory},
    {"--manual-gc-interval", kValue, kMemory},
    {"--min-loss-scale", kValue, kScaling},
    {"--mmap-bin-files", kFlag, kLoading},
    {"--moe-expert-capacity-factor", kValue, kNoDrop},
    {"--moe-grouped-gemm", kFlag, kKernels},
    {"--moe-pad-expert-input-to-capacity", kFlag, kNoDrop},
    {"--moe-per-layer-logging", kFlag, kLogs},
    {"--moe-permute-fusion", kFlag, kKernels},
    {"--moe-router-dtype", kValue, kRouter},
    {"--moe-router-fusion", kFlag, kKernels},
    {"--moe-shared-expert-overlap", kFlag, kOverlap},
    {"--moe-token-drop-policy", kValue, kNoDrop},
    {"--moe-token-dropping", kFlag, kNoDrop},
    {"--moe-use-legacy-grouped-gemm", kFlag, kKernels},
    {"--muon-fp32-matmul-prec", kValue, "matrices' products are of precision.compute's type"},
    {"--nccl-communicator-config-path", kValue, kOverlap},
    {"--nccl-ub", kFlag, kOverlap},
    {"--no-async-tensor-model-parallel-allreduce", kFlag, kOverlap},
    {"--no-bias-dropout-fusion", kFlag, kKernels},
    {"--no-bias-gelu-fusion", kFlag, kKernels},
    {"--no-bias-swiglu-fusion", kFlag, kKernels},
    {"--no-check-for-nan-in-loss-and-grad", kFlag, "that is always looked at here"},
    {"--no-create-attention-mask-in-dataloader", kFlag, kLoading},
    {"--no-gradient-accumulation-fusion", kFlag, kKernels},
    {"--no-initialization", kFlag, kMemory},
    {"--no-load-optim", kFlag, kCheckpoints},
    {"--no-load-rng", kFlag, kCheckpoints},
    {"--no-masked-softmax-fusion", kFlag, kKernels},
    {"--no-mmap-bin-files", kFlag, kLoading},
    {"--no-one-logger", kFlag, kLogs},
    {"--no-overlap-p2p-communication", kFlag, kOverlap},
    {"--no-persist-layer-norm", kFlag, kKernels},
    {"--no-query-key-layer-scaling", kFlag, kAlways},
    {"--no-rope-fusion", kFlag, kKernels},
    {"--no-save-optim", kFlag, kCheckpoints},
    {"--no-save-rng", kFlag, kCheckpoints},
    {"--no-scatter-gather-tensors-in-pipeline", kFlag, kOverlap},
    {"--no-use-tokenizer-model-from-checkpoint-args", kFlag, kCheckpoints},
    {"--num-dataset-builder-threads", kValue, kLoading},
    {"--num-workers", kValue, kLoading},
    {"--override-opt-param-scheduler", kFlag, kCheckpoints},
    {"--overlap-grad-reduce", kFlag, kOverlap},
    {"--overlap-p2p-communication", kFlag, kOverlap},
    {"--overlap-p2p-communication-warmup-flush", kFlag, kOverlap},
    {"--overlap-param-gather", kFlag, kOverlap},
    {"--overlap-param-gather-with-optimizer-step", kFlag, kOverlap},
    {"--profile", kFlag, kLogs},
    {"--profile-ranks", kValue, kLogs},
    {"--recompute-modules", kValue, kMemory},
    {"--rerun-mode", kValue, kAlways},
    {"--standalone-embedding-stage", kFlag, kMemory},
    {"--te-rng-tracker", kFlag, kKernels},
    {"--tensorboard-dir", kValue, "TensorBoard files stand in run.directory/tensorboard"},
    {"--tensorboard-log-interval", kValue, kLogs},
    {"--tensorboard-queue-size", kValue, kLogs},
    {"--timing-log-level", kValue, kLogs},
    {"--timing-log-option", kValue, kLogs},
    {"--tp-comm-bootstrap-backend", kValue, kOverlap},
    {"--tp-comm-overlap", kFlag, kOverlap},
    {"--tp-comm-overlap-cfg", kValue, kOverlap},
    {"--transformer-impl", kValue, kKernels},
    {"--use-checkpoint-args", kFlag, kCheckpoints},
    {"--use-checkpoint-opt-param-scheduler", kFlag, kCheckpoints},
    {"--use-cpu-initialization", kFlag, kMemory},
    {"--use-dist-ckpt", kFlag, kCheckpoints},
    {"--use-flash-attn", kFlag, kKernels},
    {"--use-flash-attn-v2", kFlag, kKernels},
    {"--use-legacy-models", kFlag, kKernels},
    {"--use-mcore-models", kFlag, kKernels},
    {"--use-nccl-ub", kFlag, kOverlap},
    {"--use-persistent-ckpt-worker", kFlag, kCheckpoints},
    {"--use-precision-aware-optimizer", kFlag, kMemory},
    {"--use-sharp", kFlag, kOverlap},
    {"--use-tp-pp-dp-mapping", kFlag, kOverlap},
    {"--wandb-entity", kValue, kLogs},
    {"--wandb-exp-name", kValue, kLogs},
    {"--wandb-project", kValue, kLogs},
    {"--wandb-save-dir", kValue, kLogs},
};

bool is_option(std::string_view word) {
  return word.size() > 2 && word.starts_with("--") &&
         std::isalpha(static_cast<unsigned char>(word[2])) != 0;
}

/// argparse takes both spellings of none, torchrun of all; Megatron-LM's own have '-'.
std::string normalised(std::string_view name) {
  std::string out(name.substr(0, name.find('=')));
  for (char& c : out)
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool is_known(std::string_view name) {
  return find_megatron_row(name) != nullptr || find_megatron_field(name) != nullptr;
}

bool takes_none(std::string_view name) {
  if (const MegatronRow* row = find_megatron_row(name)) return row->flag;
  const Field* field = find_megatron_field(name);
  const Json* type = field == nullptr ? nullptr : field->schema.find("type");
  return type != nullptr && *type == Json("boolean");
}

/// Of one value, unless the name is not known or takes a list.
bool takes_no_more(const MegatronArgument& argument) {
  constexpr std::string_view kLists[] = {
      "--cuda-graph-scope",         "--data-path",      "--iterations-to-skip",
      "--per-split-data-args-path", "--profile-ranks",  "--rampup-batch-size",
      "--recompute-modules",        "--test-data-path", "--train-data-path",
      "--valid-data-path",          "--window-size"};
  if (takes_none(argument.name)) return true;
  const bool list =
      std::find(std::begin(kLists), std::end(kLists), argument.name) != std::end(kLists);
  return !argument.values.empty() && !list && is_known(argument.name);
}

bool is_launcher_module(std::string_view name) {
  return name.starts_with("torch.distributed") || name == "torchrun";
}

/// Where the arguments of the program begin: behind its file or module, else at the first option.
std::size_t arguments_from(std::span<const std::string> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].ends_with(".py")) return i + 1;
    if (words[i] == "-m" && i + 1 < words.size() && !is_launcher_module(words[i + 1])) return i + 2;
  }
  const auto first = std::find_if(words.begin(), words.end(), is_option);
  return static_cast<std::size_t>(first - words.begin());
}

std::size_t count_known(std::span<const std::string> words) {
  std::set<std::string> names;
  for (const std::string& word : words.subspan(arguments_from(words))) {
    if (is_option(word) && is_known(normalised(word))) names.insert(normalised(word));
  }
  return names.size();
}

/// Lines that go on with options although nothing joins them, as in a file of arguments.
std::vector<ShellScript::Words> joined_commands(const ShellScript& script) {
  std::vector<ShellScript::Words> commands;
  for (const ShellScript::Words& words : script.commands) {
    if (!commands.empty() && is_option(words[0])) {
      commands.back().insert(commands.back().end(), words.begin(), words.end());
    } else {
      commands.push_back(words);
    }
  }
  return commands;
}

template <class Number>
std::optional<Number> parsed(std::string_view text) {
  Number number{};
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Python's int() takes 1_000 for 1000: an underscore between two digits.
std::string without_underscores(const std::string& text) {
  const auto digit = [&](std::size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] != '_' || i == 0 || !digit(i - 1) || !digit(i + 1)) plain += text[i];
  return plain;
}

}  // namespace

const MegatronRow* find_megatron_row(std::string_view name) {
  for (const MegatronRow& row : kRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

const Field* find_megatron_field(std::string_view name) {
  return find_field_of_other(&OtherNames::megatron, name);
}

MegatronArguments::MegatronArguments(std::string_view text, std::string_view source,
                                     ConversionDraft& draft)
    : source_(source), draft_(draft) {
  const ShellScript script = read_shell(text, source);
  for (const std::string& remark : script.remarks) draft.remark("{}", remark);
  std::vector<ShellScript::Words> commands = joined_commands(script);
  // A piece of a script that sets variables and starts nothing: what they hold together.
  ShellScript::Words variables;
  for (const ShellScript::Words& value : script.variables) {
    if (value.empty() || value[0].find("--") == std::string::npos) continue;
    for (const std::string& word : value) {
      std::string_view rest = word;
      while (!rest.empty()) {
        const std::string_view one = rest.substr(0, rest.find_first_of(" \t\n"));
        if (!one.empty()) variables.emplace_back(one);
        rest.remove_prefix(std::min(rest.size(), one.size() + 1));
      }
    }
  }
  std::size_t best = 0, most = 0;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const std::size_t known = count_known(commands[i]);
    if (known > most) best = i, most = known;
  }
  if (most == 0 && count_known(variables) > 0) {
    draft.remark("no command is started there: the arguments are those of all variables");
    best = commands.size();
    commands.push_back(std::move(variables));
    most = 1;
  }
  if (most == 0) {
    throw ConfigError(
        "{}: holds no argument of Megatron-LM's training program (a command line or shell script "
        "such as `torchrun pretrain_gpt.py --num-layers 24 ...`, or DeepSpeed's JSON object)",
        source);
  }
  const std::span<const std::string> words = commands[best];
  const std::size_t from = arguments_from(words);
  count_ranks(words.first(from));
  take(words.subspan(from));
}

void MegatronArguments::count_ranks(std::span<const std::string> launcher) {
  std::int64_t ranks = 0;
  for (std::size_t i = 0; i < launcher.size(); ++i) {
    const std::string name = normalised(launcher[i]);
    if (name != "--nproc-per-node" && name != "--nnodes") continue;
    const auto equals = launcher[i].find('=');
    const std::string value = equals != std::string::npos ? launcher[i].substr(equals + 1)
                              : i + 1 < launcher.size()   ? launcher[i + 1]
                                                          : "";
    const auto number = parsed<std::int64_t>(value);
    if (!number || *number < 1 || *number > (1 << 20)) return;
    ranks = (ranks == 0 ? 1 : ranks) * *number;
    if (ranks > (1 << 20)) return;
  }
  if (ranks > 0) ranks_ = ranks;
}

void MegatronArguments::take(std::span<const std::string> words) {
  std::vector<MegatronArgument> given;
  for (const std::string& word : words) {
    if (word.find_first_not_of(" \t\n") == std::string::npos) continue;
    if (is_option(word)) {
      given.push_back({normalised(word), {}});
      if (const auto equals = word.find('='); equals != std::string::npos)
        given.back().values.push_back(word.substr(equals + 1));
    } else if (given.empty() || takes_no_more(given.back())) {
      const bool machine = word.find(kUnknownMark) != std::string::npos;
      draft_.remark("{} {} and is not looked at", without_marks(word),
                    machine ? "is known on the machine only" : "belongs to no argument");
    } else {
      given.back().values.push_back(word);
    }
  }
  const auto shown_values = [](const MegatronArgument& argument) {
    std::string text;
    for (const std::string& value : argument.values) text += " " + without_marks(value);
    return text.empty() ? std::string(" nothing") : text;
  };
  for (MegatronArgument& argument : given) {
    const auto same =
        std::find_if(arguments_.begin(), arguments_.end(),
                     [&](const MegatronArgument& one) { return one.name == argument.name; });
    if (same == arguments_.end()) {
      arguments_.push_back(std::move(argument));
      continue;
    }
    if (same->values != argument.values) {
      draft_.remark("{} stands twice,{} and{}: the last holds, as in Megatron-LM", argument.name,
                    shown_values(*same), shown_values(argument));
    }
    *same = std::move(argument);
  }
}

const MegatronArgument* MegatronArguments::find(std::string_view name) const {
  const auto found =
      std::find_if(arguments_.begin(), arguments_.end(),
                   [&](const MegatronArgument& argument) { return argument.name == name; });
  return found == arguments_.end() ? nullptr : &*found;
}

void MegatronArguments::fault(std::string_view name, std::string_view what) const {
  throw ConfigError("{}: {}: {}", source_, name, what);
}

std::optional<std::string> MegatronArguments::text(std::string_view name) const {
  const MegatronArgument* argument = find(name);
  if (argument == nullptr) return std::nullopt;
  if (argument->values.empty()) fault(name, "has no value");
  const std::string& value = argument->values[0];
  if (value.find(kUnknownMark) == std::string::npos) return value;
  return std::nullopt;
}

std::int64_t MegatronArguments::whole_of(std::string_view name, const std::string& value) const {
  const auto number = parsed<std::int64_t>(without_underscores(value));
  if (!number) fault(name, fmt::format("{} is no whole number", Json(value).dump()));
  return *number;
}

std::optional<std::int64_t> MegatronArguments::whole(std::string_view name) const {
  const auto value = text(name);
  return value ? std::optional(whole_of(name, *value)) : std::nullopt;
}

std::optional<std::vector<std::int64_t>> MegatronArguments::wholes(std::string_view name) const {
  const MegatronArgument* argument = find(name);
  if (argument == nullptr) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const std::string& value : argument->values) {
    if (value.find(kUnknownMark) != std::string::npos) return std::nullopt;
    numbers.push_back(whole_of(name, value));
  }
  return numbers;
}

std::optional<std::int64_t> MegatronArguments::size(std::string_view name) const {
  const auto number = whole(name);
  if (number && (*number < 1 || *number > kSizeMax))
    fault(name, fmt::format("{} is not from 1 to {}", *number, kSizeMax));
  return number;
}

std::optional<double> MegatronArguments::real(std::string_view name) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const auto number = parsed<double>(*value);
  if (!number || !std::isfinite(*number))
    fault(name, fmt::format("{} is no number", Json(*value).dump()));
  return number;
}

}  // namespace trireme
