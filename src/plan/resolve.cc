#include "plan/resolve.h"

#include <algorithm>
#include <cmath>

#include "base/human_format.h"
#include "base/math.h"
#include "base/nearest_word.h"
#include "kernels/attention/attention_backend.h"
#include "model/model_limits.h"
#include "pipeline/schedules/schedules.h"
#include "plan/group_rules.h"
#include "plan/mesh_rules.h"
#include "plan/zero_group.h"

namespace trireme {

namespace {

constexpr std::int64_t kLarge = std::int64_t{1}
                                << 50;  ///< tokens of a step, beyond which arithmetic is not sound

/// "12 or 18": the multiples of `unit` around a value that is none.
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below == 0 ? std::to_string(unit) : fmt::format("{} or {}", below, below + unit);
}

/// A part of a batch that all data ranks take: micro or accumulation.
struct BatchPart {
  std::string_view name;
  std::int64_t size, data_ranks;
};

/// global / (what each data rank takes at a time), or a fault of what stands at `path`.
std::int64_t quotient(std::int64_t global, const BatchPart& of, std::string path,
                      std::vector<Problem>& problems) {
  const auto& [part_name, part, data_ranks] = of;
  const std::int64_t unit = part * data_ranks;
  if (global % unit == 0) return global / unit;
  problems.push_back({std::move(path), std::to_string(global),
                      fmt::format("a multiple of {} x data ranks = {} x {} = {}", part_name, part,
                                  data_ranks, unit),
                      nearest_multiples(global, unit), "is not micro x accumulation x data ranks"});
  return 1;
}

/// What a backend of attention does not serve of this run.
std::vector<Problem> attention_problems(const RunConfig& config, const AttentionBackend& backend) {
  const AttentionBackend::Serves& serves = backend.serves;
  std::vector<Problem> problems;
  const auto report = [&](const char* other, std::string message) {
    problems.push_back({"model_backend.attention", fmt::format("\"{}\"", backend.name),
                        fmt::format("\"own\"{}", other), "\"own\"", std::move(message)});
  };
  if (!serves.f32 && config.precision.compute == ComputePrecision::kFp32)
    report(", or precision.compute \"bf16\"", "computes in bf16 only, not in fp32");
  if (!serves.documents && config.data.document_mask)
    report(", or data.document_mask false", "knows no documents");
  if (!serves.sequence_parts && config.parallel.context > 1) {
    report(", or parallel.context 1",
           "serves whole sequences, not the parts that context ranks have");
  }
  if (config.data.sequence_length < serves.tokens_min)
    report(", or data.sequence_length from 2 on", "serves no sequence of one token");
  const auto drops = [](const LayerConfig& layer) { return layer.attention_dropout > 0; };
  if (!serves.dropout && std::any_of(config.model.layers.begin(), config.model.layers.end(), drops))
    report(", or model_backend.dropout false", "knows no dropout of probabilities");
  const auto hides = [tokens = config.data.sequence_length](const LayerConfig& layer) {
    return layer.attention.seen(tokens) < tokens;
  };
  if (!serves.windows && std::any_of(config.model.layers.begin(), config.model.layers.end(), hides))
    report("", "knows no windows");
  for (const LayerConfig& layer : config.model.layers) {
    const std::int64_t of_keys = layer.attention.head_dim, of_values = layer.attention.value_dim(),
                       size = of_keys % serves.head_dim_step == 0 ? of_values : of_keys;
    if (size % serves.head_dim_step == 0) continue;
    report("", fmt::format("does not serve heads of {} (legal: a multiple of {})", size,
                           serves.head_dim_step));
    break;
  }
  return problems;
}

class Resolver {
 public:
  Resolver(const RunConfig& config, const ResolveInput& input, std::vector<Problem>& problems,
           std::vector<std::string>& notes)
      : config_(config),
        input_(input),
        problems_(problems),
        notes_(notes),
        faults_before_(problems) {}

  ResolvedRun run() {
    ResolvedRun result;
    result.sample_tokens = input_.sample_tokens;
    result.device = input_.device;
    result.compute = compute_type(config_, input_.device);
    if (config_.precision.compute == ComputePrecision::kFp8)
      result.fp8 = config_.precision.fp8.value_or(Fp8Precision());
    result.sums = reduction_order(config_, input_.device);
    const bool mesh_known = clean({"parallel"});
    const std::optional<std::int64_t> data = mesh_known ? resolve_mesh(result) : std::nullopt;
    if (data && clean({"batch"})) {
      const std::size_t faults = problems_.size();
      result.passes = result.batch = resolve_batch(config_.batch, *data, problems_);
      result.ramp = result.batch.global;
      if (config_.batch.global && config_.batch.global->is_ramp() && clean({"data"}))
        result.ramp = BatchRamp(*config_.batch.global, config_.data.sequence_length);
      if (clean({"moe"}) && problems_.size() == faults) check_scope(result.batch);
      if (clean({"run", "data"}) && problems_.size() == faults) {
        result.steps = resolve_steps(config_, result.ramp, input_.windows, problems_);
        check_total(result);
      }
    }
    if (result.steps > 0 && clean({"lr_schedule"})) check_schedule(result.steps);
    if (result.steps > 0) check_trace(result.steps);
    if (config_.has_model() && clean({"data", "model"})) check_model();
    if (config_.has_model() && clean({"optimizer", "lora", "model"}))
      check_groups(config_, problems_);
    if (clean({"model_backend", "parallel", "data", "model", "precision"})) check_attention();
    if (data && config_.has_model() && result.fp8 && clean({"parallel", "model", "precision"}))
      check_fp8(*result.fp8);
    if (data && clean({"parallel", "data", "model", "lora"}))
      check_mesh_rules(config_, *data, problems_);
    if (config_.has_model() && sound({"parallel", "model"})) read_placement(result);
    // Stages are laid out for it: what they stand on must be sound by now.
    if (data && config_.has_model() && sound({"parallel", "batch", "data", "model", "lora"}))
      resolve_pipeline(result);
    if (config_.stability.noise_scale && result.batch.global > 0) check_noise(result);
    if (problems_.empty() && config_.has_model() && input_.detail != PipelineDetail::kRules)
      choose_zero_group(config_, input_.node, result, notes_);
    const int copies = result.mesh.extent(Axis::kData) * result.mesh.extent(Axis::kContext);
    if (config_.optimizer.kind == OptimizerKind::kMuon && config_.parallel.zero_stage == 0 &&
        copies > 1) {
      notes_.push_back(fmt::format(
          "optimizer.kind: {} ranks orthogonalise the same matrices, which parallel.zero_stage 1 "
          "would share out among them",
          copies));
    }
    if (config_.evaluation.interval_steps > 0 && !config_.data.validation && !config_.data.split &&
        config_.evaluation.samples.empty()) {
      notes_.emplace_back(
          "evaluation.interval_steps has no effect: neither data.validation nor data.split is "
          "given, nor evaluation.samples");
    }
    return result;
  }

 private:
  [[nodiscard]] bool clean(std::initializer_list<std::string_view> sections) const {
    return std::none_of(sections.begin(), sections.end(), [&](std::string_view section) {
      return has_problem_in(faults_before_, section);
    });
  }

  [[nodiscard]] bool sound(std::initializer_list<std::string_view> sections) const {
    return std::none_of(sections.begin(), sections.end(), [&](std::string_view section) {
      return has_problem_in(problems_, section);
    });
  }

  /// For who forgot that several ranks need a launcher.
  [[nodiscard]] std::string how_to_start(std::int64_t ranks) const {
    if (input_.world > 1) return "";
    return fmt::format(" (one process was started, alone). `scripts/run.sh -n {} CONFIG` starts {}",
                       ranks, counted(ranks, "rank"));
  }

  /// The data extent, or nothing where the extents do not fit the world.
  std::optional<std::int64_t> resolve_mesh(ResolvedRun& result) {
    const auto& p = config_.parallel;
    const std::int64_t rest = p.tensor * p.context * p.pipeline;
    if (input_.world % rest != 0) {
      problems_.push_back(
          {"parallel", counted(input_.world, "rank"), fmt::format("a multiple of {} ranks", rest),
           nearest_multiples(input_.world, rest) + " ranks",
           fmt::format(
               "tensor {} x context {} x pipeline {} = {} does not divide the number of ranks{}",
               p.tensor, p.context, p.pipeline, rest, how_to_start(rest))});
      return std::nullopt;
    }
    const std::int64_t data = input_.world / rest;
    if (p.data && *p.data != data) {
      problems_.push_back(
          {"parallel.data", std::to_string(*p.data),
           fmt::format("{} = {} / ({} x {} x {}), or leave it out", data,
                       counted(input_.world, "rank"), p.tensor, p.context, p.pipeline),
           std::to_string(data),
           fmt::format("does not match the {} that {} started{}", counted(input_.world, "rank"),
                       input_.world == 1 ? "was" : "were", how_to_start(rest * *p.data))});
      return std::nullopt;
    }
    const auto extent = [](std::int64_t value) { return narrow<int>(value); };
    result.mesh =
        MeshShape({extent(p.pipeline), extent(data), extent(p.context), extent(p.tensor)});
    return data;
  }

  /// Samples and tokens of the whole run are counted in 64 bits.
  void check_total(ResolvedRun& run) {
    constexpr std::int64_t kTokensMax = std::int64_t{1} << 61;
    std::int64_t tokens = 0;
    if (multiply_checked(run.batch.global, config_.data.sequence_length, &tokens) &&
        multiply_checked(tokens, run.steps, &tokens) && tokens <= kTokensMax) {
      return;
    }
    const char* path = config_.run.steps    ? "run.steps"
                       : config_.run.tokens ? "run.tokens"
                                            : "run.epochs";
    problems_.push_back({path, std::to_string(run.steps) + " steps",
                         "up to 2^61 tokens of all steps together", "",
                         "is a run whose tokens cannot be counted"});
    run.steps = 0;
  }

  /// A backward pass needs the counts of all tokens that are balanced among themselves.
  void check_scope(const ResolvedBatch& batch) {
    if (config_.moe.scope != BalanceScope::kGlobal || batch.accumulation == 1) return;
    problems_.push_back(
        {"moe.scope", "\"global\"", "\"sequence\", or batch.accumulation 1", "\"sequence\"",
         fmt::format("counts the tokens of a whole step, which are known after the first of its {} "
                     "backward passes only",
                     batch.accumulation)});
  }

  void check_schedule(std::int64_t steps) {
    const auto& schedule = config_.lr_schedule;
    const std::int64_t warmup = schedule.warmup_steps;
    const auto report = [&](const char* path, std::int64_t found, std::string legal,
                            std::int64_t nearest, std::string message) {
      problems_.push_back({path, std::to_string(found), std::move(legal), std::to_string(nearest),
                           std::move(message)});
    };
    if (schedule.decay_end_step && *schedule.decay_end_step < warmup) {
      report("lr_schedule.decay_end_step", *schedule.decay_end_step,
             fmt::format("at least lr_schedule.warmup_steps = {}", warmup), warmup,
             "ends before the warm-up does");
    }
    if (schedule.decay_steps && *schedule.decay_steps > steps) {
      report("lr_schedule.decay_steps", *schedule.decay_steps,
             fmt::format("up to the {} steps of the run", steps),
             std::max<std::int64_t>(1, steps - warmup), "is longer than the run");
    }
    const std::int64_t decay = schedule.decay_steps_of(steps);
    if (schedule.kind == LrScheduleKind::kWsd && decay <= steps && warmup < steps &&
        decay > steps - warmup) {
      notes_.push_back(fmt::format(
          "lr_schedule: the decay over the last {} steps begins before the warm-up of {} ends",
          decay, warmup));
    }
    if (warmup > steps) {
      notes_.push_back(fmt::format(
          "lr_schedule.warmup_steps = {} is longer than the run of {} steps: the learning "
          "rate never reaches optimizer.lr",
          warmup, steps));
    }
  }

  void check_trace(std::int64_t steps) {
    const auto& traced = config_.log.trace_steps;
    if (!traced || traced->front() <= steps) return;
    notes_.push_back(
        fmt::format("log.trace_steps: the run of {} steps ends before step {}: there will be no "
                    "trace.json",
                    steps, traced->front()));
  }

  void check_model() {
    const ModelConfig& model = config_.model;
    const std::int64_t tokens = config_.data.sequence_length;
    if (auto problem = find_unbuilt(model)) problems_.push_back(*std::move(problem));
    if (!config_.evaluation.samples.empty()) {
      if (auto problem = find_ungenerated(model)) problems_.push_back(*std::move(problem));
    }
    if (tokens > model.max_positions) {
      if (model.learned_positions) {
        problems_.push_back(
            {"data.sequence_length", std::to_string(tokens),
             fmt::format("1 to {}, the positions that the model has learned embeddings for",
                         model.max_positions),
             std::to_string(model.max_positions), "is longer than the model's positions"});
      } else {
        notes_.push_back(fmt::format(
            "data.sequence_length = {} is longer than the model's max_position_embeddings = {}",
            tokens, model.max_positions));
      }
    }
    if (input_.vocabulary && *input_.vocabulary > model.vocab_size) {
      notes_.push_back(fmt::format(
          "the tokenizer has {} ids and the model a vocabulary of {}: data with larger ids is "
          "refused",
          *input_.vocabulary, model.vocab_size));
    }
  }

  /// What a backend of attention does not serve is never served by another.
  void check_attention() {
    std::vector<Problem> unserved =
        attention_problems(config_, attention_backend(config_, input_.device));
    std::move(unserved.begin(), unserved.end(), std::back_inserter(problems_));
  }

  void read_placement(ResolvedRun& run) {
    const RunConfig::Parallel& parallel = config_.parallel;
    if (!parallel.expert_placement) return;
    try {
      run.expert_placement =
          input_.expert_placement != nullptr
              ? *input_.expert_placement
              : read_expert_placement(*parallel.expert_placement, config_.model, parallel.expert);
    } catch (const Error& error) {
      problems_.push_back(problem_of(error, "parallel.expert_placement"));
    }
  }

  void resolve_pipeline(ResolvedRun& run) {
    run.passes = batch_of_passes(config_, run.batch, input_.world, input_.device);
    if (input_.detail == PipelineDetail::kRules) return;
    try {
      run.pipeline = make_pipeline(config_, run.mesh, run.passes_of_sizes(), run.compute,
                                   input_.schedules, input_.detail);
    } catch (const DataError& error) {
      const std::string& schedule = config_.parallel.pipeline_schedule;
      problems_.push_back({"parallel.pipeline_schedule", schedule,
                           "a kind of schedule or a schedule file that can be read",
                           nearest_word(schedule, schedule_names()).value_or(""), error.what()});
    } catch (const Error& error) {
      if (error.code() != ExitCode::kConfig) throw;
      problems_.push_back(problem_of(error, "parallel.pipeline_schedule"));
    }
    if (run.pipeline.steps.empty()) return;
    if (!run.pipeline.schedule().reproducible) {
      notes_.push_back(fmt::format(
          "parallel.pipeline_schedule: {} is not reproducible: it sums micro-batches in an order "
          "of its own, so this run has other bits than one with another schedule, and its "
          "checkpoints say so",
          config_.parallel.pipeline_schedule));
    }
    if (!config_.evaluation.samples.empty() &&
        run.pipeline.placement.size() > static_cast<std::size_t>(config_.parallel.pipeline)) {
      problems_.push_back(
          {"evaluation.samples", "prompts", "leave them out, or one stage a rank", "[]",
           fmt::format("not in this version with several virtual stages a rank ({})",
                       config_.parallel.pipeline_schedule)});
    }
    if (config_.parallel.speculative_step) check_speculation(run.pipeline);
    check_bubble(run.pipeline);
  }

  /// A schedule that was chosen for its bubble and has none of what makes it small.
  void check_bubble(const Pipeline& pipeline) {
    const std::string& name = config_.parallel.pipeline_schedule;
    const std::optional<ScheduleKind> kind = schedule_kind(name);
    const bool keeps_together = kind == ScheduleKind::kGpipe || kind == ScheduleKind::kOneFOneB ||
                                kind == ScheduleKind::kInterleaved;
    if (config_.parallel.pipeline == 1 || !kind || keeps_together) return;
    const int ranks = narrow<int>(config_.parallel.pipeline);
    for (int rank = 0; rank < ranks; ++rank) {
      if (pipeline.splits(rank)) return;
    }
    const ScheduleShape shape = shape_of(pipeline.schedule());
    const bool is_1f1b = shape.stages_per_rank() == 1 &&
                         pipeline.schedule().ranks == make_1f1b(ranks, shape.micro_batches).ranks;
    notes_.push_back(fmt::format(
        "parallel.pipeline_schedule: {} {}: B and W are one action on every rank, since a "
        "micro-batch whose W waits keeps {:.2f} activations, for which its memory has no room. A "
        "larger parallel.pipeline_memory_limit gives it room",
        name, is_1f1b ? "is exactly 1f1b here" : "fills no bubble here", pipeline.w_memory));
  }

  /// Tensor cores take sums and columns of products in sixteens.
  void check_fp8(const Fp8Precision& fp8) {
    const std::int64_t layers = config_.model.layer_count(), tensor = config_.parallel.tensor;
    const std::int64_t in_bf16 = fp8.bf16_layers[0] + fp8.bf16_layers[1];
    if (in_bf16 >= layers) {
      problems_.push_back({"precision.fp8", fmt::format("bf16_layers of {} layers", in_bf16),
                           fmt::format("fewer than the model's {} layers together", layers), "",
                           "leaves no layer in fp8: precision.compute \"bf16\" says that"});
      return;
    }
    for (std::int64_t i = fp8.bf16_layers[0]; i < layers - fp8.bf16_layers[1]; ++i) {
      const LayerConfig& layer = config_.model.layer(i);
      const AttentionConfig& attention = layer.attention;
      std::vector<std::pair<const char*, std::int64_t>> sizes = {
          {"the hidden size", config_.model.hidden},
          {"the MLP columns of a rank", layer.mlp.ffn / tensor},
          {"an expert's columns of a rank",
           layer.experts ? layer.experts->ffn / config_.parallel.expert_tensor : 0}};
      if (const auto& latent = attention.latent) {
        const std::int64_t heads = attention.heads / tensor;
        sizes.insert(sizes.end(), {{"the latent of queries", latent->q_rank},
                                   {"the latent of keys and values", latent->kv_rank},
                                   {"the keys' dims that rotate", latent->rope_dim},
                                   {"the queries of a rank", heads * latent->query_dim()},
                                   {"keys and values of a rank", heads * latent->key_value_dim()},
                                   {"what a rank attends", heads * latent->value_dim}});
      } else {
        sizes.insert(sizes.end(), {{"the heads of a rank", attention.q_size() / tensor},
                                   {"the KV heads of a rank",
                                    attention.k_size() / std::min(tensor, attention.kv_heads)}});
      }
      for (const auto& [name, size] : sizes) {
        if (size % 16 == 0) continue;
        problems_.push_back(
            {"precision.compute", "\"fp8\"",
             "\"bf16\", or sizes of the layers' products that are multiples of 16", "\"bf16\"",
             fmt::format("products in fp8 take multiples of 16, and {} (layer {}) come to {}", name,
                         i, size)});
        return;
      }
    }
  }

  /// The noise is seen in how a part of the batch differs from all of it.
  void check_noise(const ResolvedRun& run) {
    if (run.passes.micro < run.batch.global || config_.parallel.context > 1) return;
    problems_.push_back(
        {"stability.noise_scale", "true",
         "false, or a batch.global of several micro-batches or data ranks", "false",
         fmt::format("compares a micro-batch with the global batch, and both are {}",
                     counted(run.batch.global, "sample"))});
  }

  void check_speculation(const Pipeline& pipeline) {
    const Simulation simulated = simulate(pipeline.schedule(), pipeline.times);
    if (simulated.cost < simulated.step_span * (1 - 1e-9)) return;
    notes_.push_back(fmt::format(
        "parallel.speculative_step: {}, the rank that begins a step first ends it last, so that "
        "nobody waits for its norm: it costs memory and a copy of the state, and saves no time",
        config_.parallel.pipeline == 1 ? "without a pipeline"
                                       : "with " + config_.parallel.pipeline_schedule));
  }

  const RunConfig& config_;
  const ResolveInput& input_;
  std::vector<Problem>& problems_;
  std::vector<std::string>& notes_;
  const std::vector<Problem> faults_before_;
};

}  // namespace

std::vector<ResolvedBatch> ResolvedRun::passes_of_sizes() const {
  std::vector<ResolvedBatch> all;
  for (const std::int64_t size : ramp.sizes()) all.push_back(passes_of(size));
  return all;
}

std::int64_t default_world(const RunConfig& config) {
  const auto& p = config.parallel;
  return p.tensor * p.context * p.pipeline * p.data.value_or(1);
}

ResolvedBatch resolve_batch(const RunConfig::Batch& batch, std::int64_t data_ranks,
                            std::vector<Problem>& problems) {
  ResolvedBatch out;
  out.data_ranks = data_ranks;
  const std::size_t faults = problems.size();
  const auto& [global, micro, accumulation] = batch;
  if (global && accumulation && !micro) {
    out.accumulation = *accumulation;
    out.micro = quotient(global->largest(), {"accumulation", *accumulation, data_ranks},
                         "batch.global", problems);
  } else if (global && !accumulation) {
    out.micro = micro.value_or(1);
    for (std::size_t i = 0; i < global->phases.size(); ++i) {
      const std::int64_t passes = quotient(
          global->phases[i].size, {"micro", out.micro, data_ranks},
          global->is_ramp() ? fmt::format("batch.global[{}][1]", i) : "batch.global", problems);
      out.accumulation = std::max(out.accumulation, passes);
    }
  } else {
    out.micro = micro.value_or(1);
    out.accumulation = accumulation.value_or(1);
  }
  std::int64_t product = 0;
  if (!multiply_checked(out.micro, out.accumulation, &product) ||
      !multiply_checked(product, data_ranks, &product) || product > kLarge) {
    problems.push_back(
        {"batch", fmt::format("{} x {} x {}", out.micro, out.accumulation, data_ranks),
         fmt::format("a product up to {}", kLarge), "", "has more samples than can be counted"});
    return {1, 1, 1, data_ranks};
  }
  out.global = product;
  if (problems.size() == faults && global && global->largest() != product) {
    problems.push_back({"batch.global", std::to_string(global->largest()),
                        fmt::format("micro x accumulation x data ranks = {} x {} x {} = {}",
                                    out.micro, out.accumulation, data_ranks, product),
                        std::to_string(product), "contradicts the other two"});
  }
  return out;
}

std::int64_t resolve_steps(const RunConfig& config, const BatchRamp& ramp,
                           std::optional<std::int64_t> windows, std::vector<Problem>& problems) {
  const auto& run = config.run;
  if (run.steps) return *run.steps;
  if (run.tokens) {
    const std::int64_t length = config.data.sequence_length;
    std::int64_t per_step = 0;
    if (!multiply_checked(ramp.largest(), length, &per_step) || per_step > kLarge) {
      problems.push_back({"batch.global", std::to_string(ramp.largest()),
                          fmt::format("up to {} tokens in a step", kLarge), "",
                          "makes steps that cannot be counted"});
      return 0;
    }
    return ramp.steps_to(ceil_div(*run.tokens, length));
  }
  if (!run.epochs || !windows) return 0;
  const double samples = std::floor(*run.epochs * static_cast<double>(*windows));
  if (samples > static_cast<double>(kLarge)) {
    problems.push_back({"run.epochs", fmt::format("{}", *run.epochs),
                        fmt::format("up to {} windows", kLarge), "",
                        "is more windows than can be counted"});
    return 0;
  }
  return std::max<std::int64_t>(1, ramp.steps_within(static_cast<std::int64_t>(samples)));
}

ResolvedRun resolve_run(const RunConfig& config, const ResolveInput& input,
                        std::vector<Problem>& problems, std::vector<std::string>& notes) {
  expect(input.world >= 1, "a world of {} ranks", input.world);
  return Resolver(config, input, problems, notes).run();
}

const AttentionBackend& attention_backend(const RunConfig& config, DeviceKind device) {
  switch (config.model_backend.attention) {
    case AttentionKind::kOwn:
      return own_attention;
    case AttentionKind::kCudnn:
      return cudnn_attention;
    case AttentionKind::kAuto:
      break;
  }
  const bool both =
      device != DeviceKind::kCpu && attention_problems(config, cudnn_attention).empty();
  return both ? fastest_attention : own_attention;
}

DType compute_type(const RunConfig& config, DeviceKind device) {
  const ComputePrecision usual =
      device == DeviceKind::kCuda ? ComputePrecision::kBf16 : ComputePrecision::kFp32;
  return config.precision.compute.value_or(usual) == ComputePrecision::kFp32 ? DType::kF32
                                                                             : DType::kBF16;
}

std::string_view precision_name(const ResolvedRun& run) {
  return run.fp8 ? "fp8" : name_of(run.compute);
}

ReductionOrder reduction_order(const RunConfig& config, DeviceKind device) {
  return config.parallel.reduction_order.value_or(
      device == DeviceKind::kCuda ? ReductionOrder::kLibrary : ReductionOrder::kRank);
}

RunConfig with_defaults_written(const RunConfig& config, const ResolvedRun& run) {
  RunConfig out = config;
  if (!out.batch.global) out.batch.global = run.batch.global;
  out.batch.micro = run.batch.micro;
  out.data.seed = config.data_seed();
  const bool decays = config.lr_schedule.kind == LrScheduleKind::kCosine ||
                      config.lr_schedule.kind == LrScheduleKind::kLinear;
  if (run.steps > 0 && decays && !config.lr_schedule.decay_end_step) {
    out.lr_schedule.decay_end_step = std::max(run.steps, config.lr_schedule.warmup_steps);
  }
  if (run.steps > 0 && config.lr_schedule.kind == LrScheduleKind::kWsd &&
      !config.lr_schedule.decay_steps) {
    out.lr_schedule.decay_steps = config.lr_schedule.decay_steps_of(run.steps);
  }
  if (!out.precision.compute) {
    out.precision.compute =
        run.compute == DType::kBF16 ? ComputePrecision::kBf16 : ComputePrecision::kFp32;
  }
  if (run.fp8) out.precision.fp8 = run.fp8;
  out.parallel.reduction_order = run.sums;
  return out;
}

}  // namespace trireme
