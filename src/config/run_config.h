#pragma once
// What a run is asked to do: the config file as plain data. Member names are the JSON names,
// section by section; an empty optional is "not given", and what then holds is in fields.cc (the
// documented default) or comes from the mesh, the model or the data (plan/resolve).

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "config/batch_ramp.h"
#include "config/model_config.h"

namespace trireme {

enum class DeviceChoice : std::uint8_t { kAuto, kCpu, kCuda, kCudaHost };
enum class CudaGraph : std::uint8_t { kAuto, kOff };
enum class ResumeKind : std::uint8_t { kAuto, kNever, kMust, kStep, kDirectory };
enum class SampleOrderKind : std::uint8_t { kShuffled, kMegatron, kSequential };
enum class AttentionKind : std::uint8_t { kAuto, kOwn, kCudnn };
enum class OptimizerKind : std::uint8_t { kAdamW, kLion, kScheduleFree, kMuon, kAdafactor };
enum class LrScheduleKind : std::uint8_t { kCosine, kLinear, kConstant, kWsd };
enum class DecayShape : std::uint8_t { kLinear, kSqrt, kCosine };
enum class ComputePrecision : std::uint8_t { kFp32, kBf16, kFp8 };
enum class Fp8Recipe : std::uint8_t { kTensor, kBlock };
enum class ContextMethod : std::uint8_t { kRing, kAllGather, kUlysses };
enum class ReductionOrder : std::uint8_t { kRank, kLibrary };
enum class Recompute : std::uint8_t { kNone, kSelective, kFull };
enum class WhenBusy : std::uint8_t { kWait, kSkip };
enum class MoeBalance : std::uint8_t { kAuto, kAux, kBias, kNone };
enum class BalanceScope : std::uint8_t { kSequence, kGlobal };
/// Of the optimizer's moments: fp32, or codes of blocks (kernels/update/moment_codes.h).
enum class MomentType : std::uint8_t { kFp32, k8bit };
enum class LoraBase : std::uint8_t { kCompute, kFp32, kNf4 };
enum class DispatchMethod : std::uint8_t { kAllToAll, kAllGather };

/// Where to go on from. `step` for kStep, `directory` for kDirectory.
struct ResumeChoice {
  ResumeKind kind = ResumeKind::kAuto;
  std::int64_t step = 0;
  std::string directory;
  friend bool operator==(const ResumeChoice&, const ResumeChoice&) = default;
};

/// One corpus or a weighted blend of them; a single PREFIX is a blend of one with weight 1.
struct DataSource {
  bool synthetic = false;
  std::vector<std::pair<double, std::string>>
      blend;  ///< weight > 0 as given, not normalised; PREFIX
  /// Written as a list. Under "split" megatron-core gives a weighted corpus other samples.
  bool weighted = false;
  friend bool operator==(const DataSource&, const DataSource&) = default;
};

/// What to evaluate on: one source whose name is empty, or several under names that differ.
struct ValidationSets {
  std::vector<std::pair<std::string, DataSource>> sets;  ///< name, source; in the order given
  friend bool operator==(const ValidationSets&, const ValidationSets&) = default;
};

/// What Prometheus reads of a run; one of them at least.
struct Prometheus {
  std::optional<std::int64_t> port;  ///< of 127.0.0.1; 0: the system chooses
  std::optional<std::string> file;   ///< for the textfile collector
  friend bool operator==(const Prometheus&, const Prometheus&) = default;
};

/// How products of layers go to fp8. Scales are those of the current values: one for a whole
/// tensor, or for 1 x 128 of activations and gradients and 128 x 128 of weights (DeepSeek-V3).
struct Fp8Precision {
  Fp8Recipe recipe = Fp8Recipe::kTensor;
  DType gradients = DType::kF8E5M2;  ///< activations and weights are e4m3
  std::array<std::int64_t, 2> bf16_layers = {0,
                                             0};  ///< the first and the last so many stay in bf16
  friend bool operator==(const Fp8Precision&, const Fp8Precision&) = default;
};

/// An update is left out where its loss or its norm stands above the mean of the last `window` by
/// `sigma` standard deviations (SpikeWatch).
struct SpikeRule {
  double sigma = 6;
  std::int64_t window = 128;
  friend bool operator==(const SpikeRule&, const SpikeRule&) = default;
};

/// First and last of each, both included.
using StepRanges = std::vector<std::array<std::int64_t, 2>>;
inline bool contains_step(const StepRanges& ranges, std::int64_t step) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [step](const auto& range) { return range[0] <= step && step <= range[1]; });
}

struct RunConfig {
  struct Run {
    std::string directory;
    std::optional<std::int64_t> steps;  ///< exactly one of steps, tokens, epochs
    std::optional<std::int64_t> tokens;
    std::optional<double> epochs;
    std::int64_t seed = 1234;
    DeviceChoice device = DeviceChoice::kAuto;
    CudaGraph cuda_graph = CudaGraph::kAuto;
    bool check_collectives = false;
    std::int64_t threads_per_rank =
        0;  ///< 0: the rank's share of the affinity mask or the cgroup quota
    bool deterministic = true;
    ResumeChoice resume;
    std::optional<std::int64_t> exit_at_step;
    std::optional<double> exit_after_minutes;
    double hang_timeout_seconds = 0;  ///< 0: max(60, 5 x the slowest of the last 20 steps)
    std::optional<double> peak_tflops;
    friend bool operator==(const Run&, const Run&) = default;
  } run;

  /// "model" as merged from files and overrides: null, a string or an object.
  Json model_json;
  /// Filled by the loader from model_json (and the file it names); without layers where the config
  /// has no "model" and it comes from init.weights.
  ModelConfig model;

  struct Init {
    std::string weights = "random";      ///< "random", a Hugging Face directory or a checkpoint
    std::optional<std::string> adapter;  ///< a folder of peft's to begin from, with `lora`
    friend bool operator==(const Init&, const Init&) = default;
  } init;

  std::string tokenizer = "byte";  ///< "byte" or the path of a tokenizer.json

  struct Data {
    DataSource train;
    std::optional<ValidationSets> validation;
    std::optional<std::string> split;  ///< "969,30,1", in place of validation
    std::int64_t sequence_length = 0;
    std::optional<std::int64_t> seed;  ///< run.seed
    SampleOrderKind order = SampleOrderKind::kShuffled;
    bool document_mask = false;
    bool mask_eod_loss = false;
    std::optional<std::string>
        cache_directory;          ///< beside the data, or in run.directory where that is read-only
    std::int64_t scan_bytes = 0;  ///< 0: chosen and printed
    friend bool operator==(const Data&, const Data&) = default;
  } data;

  struct ModelBackend {
    AttentionKind attention = AttentionKind::kAuto;
    bool dropout = false;  ///< of the model's config, in training
    friend bool operator==(const ModelBackend&, const ModelBackend&) = default;
  } model_backend;

  struct Batch {
    std::optional<GlobalBatch> global;
    std::optional<std::int64_t> micro;
    std::optional<std::int64_t> accumulation;
    friend bool operator==(const Batch&, const Batch&) = default;
  } batch;

  struct Optimizer {
    OptimizerKind kind = OptimizerKind::kAdamW;
    double lr = 0;
    /// Where not written; Lion's are kLionBetas. Adafactor has none.
    std::optional<std::array<double, 2>> betas = {{0.9, 0.95}};
    static constexpr std::array<double, 2> kLionBetas = {0.9, 0.99};
    std::optional<double> eps = 1e-8;  ///< Lion and Adafactor have none
    double weight_decay = 0.1;
    double clip_grad_norm = 1.0;  ///< 0: off
    MomentType state = MomentType::kFp32;
    ParamGroups groups;
    double ema = 0;  ///< decay of averaged weights; 0: none
    /// Muon's, of the matrices of layers; scheduled as lr is.
    std::optional<double> matrix_lr;
    friend bool operator==(const Optimizer&, const Optimizer&) = default;
  } optimizer;

  struct LrSchedule {
    LrScheduleKind kind = LrScheduleKind::kCosine;
    std::int64_t warmup_steps = 0;
    double min_lr = 0;
    std::optional<std::int64_t> decay_end_step;  ///< cosine, linear: run.steps
    std::optional<std::int64_t> decay_steps;     ///< wsd: a tenth of run.steps
    DecayShape decay_shape = DecayShape::kLinear;
    /// decay_steps of a run of so many.
    [[nodiscard]] std::int64_t decay_steps_of(std::int64_t steps) const {
      return decay_steps.value_or(std::max<std::int64_t>(1, steps / 10));
    }
    friend bool operator==(const LrSchedule&, const LrSchedule&) = default;
  } lr_schedule;

  struct Precision {
    std::optional<ComputePrecision> compute;  ///< bf16 on cuda, fp32 on cpu
    std::optional<Fp8Precision> fp8;          ///< with fp8 alone
    DType master = DType::kF32;
    DType accumulate = DType::kF32;
    DType wire = DType::kF32;
    friend bool operator==(const Precision&, const Precision&) = default;
  } precision;

  struct Parallel {
    std::int64_t tensor = 1;
    std::optional<bool> sequence_parallel;  ///< true when tensor > 1
    /// On a tensor axis of so many ranks.
    [[nodiscard]] bool cuts_tokens(std::int64_t ranks) const {
      return ranks > 1 && sequence_parallel.value_or(true);
    }
    std::int64_t context = 1;
    ContextMethod context_method = ContextMethod::kRing;
    std::int64_t pipeline = 1;
    std::string pipeline_schedule = "1f1b";      ///< a kind or the path of a schedule file
    std::optional<std::int64_t> virtual_stages;  ///< 1; 2 for interleaved and the V kinds
    std::vector<std::int64_t> pipeline_layers;   ///< empty: balanced
    std::optional<std::array<double, 4>> pipeline_times;
    std::optional<double> pipeline_memory_limit;
    std::optional<std::int64_t> pipeline_group_size;
    bool speculative_step = false;
    std::int64_t expert = 1;         ///< ranks that the experts of a layer are dealt out to
    std::int64_t expert_tensor = 1;  ///< ranks that the columns of an expert are
    std::optional<std::string> expert_placement;  ///< a file of `train plan --expert-load`
    std::optional<std::int64_t> data;             ///< world / the other extents
    std::int64_t zero_stage = 0;
    std::optional<std::int64_t> zero_group;         ///< 0: chosen
    std::optional<ReductionOrder> reduction_order;  ///< rank on cpu, library on cuda
    std::int64_t nccl_max_ctas = 0;                 ///< 0: NCCL's choice
    Recompute recompute = Recompute::kNone;
    friend bool operator==(const Parallel&, const Parallel&) = default;
  } parallel;

  /// What models with experts are trained with.
  struct Moe {
    MoeBalance balance = MoeBalance::kAuto;
    std::optional<double> aux_coefficient;  ///< router_aux_loss_coef
    BalanceScope scope = BalanceScope::kSequence;
    double z_loss = 0;
    double bias_rate = 1e-3;
    DispatchMethod dispatch = DispatchMethod::kAllToAll;
    friend bool operator==(const Moe&, const Moe&) = default;
  } moe;

  /// Adapters beside frozen weights (AdapterConfig), where a rank is given.
  struct Lora {
    std::optional<std::int64_t> rank;
    std::optional<double> alpha;  ///< rank
    double dropout = 0;           ///< of what the adapters read
    std::vector<std::string> targets;
    bool dora = false, rslora = false;
    LoraBase base = LoraBase::kCompute;

    [[nodiscard]] bool given() const { return rank.has_value(); }
    /// Of what an adapter adds: alpha / rank, rank-stabilised alpha / sqrt(rank) (Kalajdzievski
    /// 2023).
    [[nodiscard]] double scale() const;
    friend bool operator==(const Lora&, const Lora&) = default;
  } lora;

  /// What keeps a long run from diverging.
  struct Stability {
    std::optional<SpikeRule> skip_spikes;  ///< false where there is none
    StepRanges skip_steps;                 ///< passed over
    double z_loss = 0;                     ///< of the head's logits
    bool noise_scale = false;
    friend bool operator==(const Stability&, const Stability&) = default;
  } stability;

  struct Checkpoint {
    static constexpr std::int64_t kStagingBytesMin = std::int64_t{1} << 20;
    std::int64_t interval_steps = 1000;
    double interval_minutes = 0;
    std::int64_t keep_last = 3;  ///< 0: all
    std::int64_t keep_every_steps = 0;
    bool keep_best = false;
    bool async = true;
    WhenBusy when_busy = WhenBusy::kWait;
    std::int64_t staging_bytes = 0;  ///< 0: chosen and printed
    std::int64_t min_free_bytes = 0;
    std::optional<std::string> directory;  ///< run.directory/checkpoints
    friend bool operator==(const Checkpoint&, const Checkpoint&) = default;
  } checkpoint;

  struct Evaluation {
    std::int64_t interval_steps = 0;  ///< 0: at the end only
    std::int64_t batches = 20;
    std::optional<std::string> watch;  ///< of data.validation's names; the mean over them
    std::vector<std::string> samples;  ///< prompts
    std::int64_t stop_after = 0;       ///< evaluations without a better loss; 0: never
    friend bool operator==(const Evaluation&, const Evaluation&) = default;
  } evaluation;

  struct Log {
    std::int64_t interval_steps = 10;
    bool tensorboard = true;
    bool report = true;
    bool blocks = false;
    std::optional<Prometheus> prometheus;
    std::optional<std::array<std::int64_t, 2>> trace_steps;  ///< first and last step, both included
    std::optional<std::vector<std::string>> command;         ///< program and its arguments
    std::optional<std::string> cluster;  ///< a file, or a name of configs/clusters
    friend bool operator==(const Log&, const Log&) = default;
  } log;

  [[nodiscard]] bool has_model() const { return !model.layers.empty(); }
  /// What moe.balance comes to with the model: never kAuto.
  [[nodiscard]] MoeBalance balance() const {
    if (moe.balance != MoeBalance::kAuto) return moe.balance;
    if (!model.has_experts()) return MoeBalance::kNone;
    if (model.aux_loss) return MoeBalance::kAux;
    if (lora.given()) return MoeBalance::kNone;  // the bias of the choice stands still too
    return model.has_router_bias() ? MoeBalance::kBias : MoeBalance::kNone;
  }
  [[nodiscard]] double aux_coefficient() const {
    return moe.aux_coefficient.value_or(model.aux_coefficient);
  }
  [[nodiscard]] std::int64_t data_seed() const { return data.seed.value_or(run.seed); }
  [[nodiscard]] std::string checkpoint_directory() const {
    return checkpoint.directory.value_or(run.directory + "/checkpoints");
  }
  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

}  // namespace trireme
