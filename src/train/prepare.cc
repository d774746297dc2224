#include "train/prepare.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "device/cpu_info.h"
#include "device/gpu.h"
#include "train/device_choice.h"
#include "train/inputs.h"
#include "train/run_files.h"
#include "train/runtime.h"
#include "train/samples.h"

namespace trireme {

namespace {

/// A model without an end token ends at the tokenizer's, as do generation and exported configs.
void take_end_token(RunConfig& config, std::int64_t end_token) {
  if (config.model.source.find("eos_token_id") != nullptr || end_token < 0) return;
  config.model.end_token = end_token;
  config.model.source["eos_token_id"] = end_token;
  if (config.model.source.find("bos_token_id") == nullptr) {
    config.model.bos_token = end_token;
    config.model.source["bos_token_id"] = end_token;
  }
}

/// Of every host, one after another in the job's order; 0 where that is not so. Collective.
std::int64_t ranks_of_each_host(const Launch& launch) {
  const std::int64_t here = launch.local_size();
  const bool in_order = launch.job().rank() % here == launch.local_rank();
  std::array<std::int64_t, 3> most{here, -here, in_order ? 0 : 1};
  launch.job().maximum(most);
  return most[0] == -most[1] && most[2] == 0 ? here : 0;
}

/// About what a rank here finds: a GPU's but for what the driver and libraries take, or its part of
/// the host's. 0 where there is no such GPU.
std::int64_t memory_of_rank(DeviceKind device, std::int64_t node_ranks) {
  if (device == DeviceKind::kCpu) return memory_bytes_available() / node_ranks;
  try {
    return static_cast<std::int64_t>(gpu::info(0).total_bytes) / 16 * 15;
  } catch (const Error&) {  // whoever needs one says so
    return 0;
  }
}

/// Tokens of the longest prompt and its continuation; 0 without prompts.
std::int64_t check_prompts(LoadedConfig& loaded, const Tokenizer& tokenizer) {
  std::int64_t longest = 0;
  if (!loaded.config.has_model()) return longest;
  for (std::size_t i = 0; i < loaded.config.evaluation.samples.size(); ++i) {
    try {
      const auto tokens = std::ssize(ids_of_prompt(loaded.config, i, tokenizer));
      longest = std::max<std::int64_t>(longest, tokens + Samples::kNewTokens);
    } catch (const ConfigError& error) {
      loaded.problems.push_back(problem_of(error, "evaluation.samples"));
    }
  }
  return longest;
}

}  // namespace

PreparedRun check_run(LoadedConfig loaded, Needs needs, std::int64_t world,
                      std::vector<std::string>& notes, std::int64_t node_ranks) {
  PreparedRun prepared;
  ResolveInput facts;
  facts.world = world;
  facts.device = device_kind(loaded.config.run.device);
  if (node_ranks > 0) facts.node = {node_ranks, memory_of_rank(facts.device, node_ranks)};
  const bool data = needs != Needs::kSynthetic;
  const Inputs inputs = check_inputs(loaded, data ? DataFiles::kOpened : DataFiles::kLeftOut);
  if (needs == Needs::kTraining) {
    if (auto fault = foreign_file(loaded.config)) loaded.problems.push_back(*std::move(fault));
  }
  if (data && inputs.tokenizer) {
    const bool tokenizer_known = needs != Needs::kData;
    if (tokenizer_known) {
      prepared.tokenizer_hashes = inputs.tokenizer->hashes();
      prepared.end_token = inputs.tokenizer->end_token().value_or(-1);
      facts.sample_tokens = check_prompts(loaded, *inputs.tokenizer);
    }
    prepared.data = inputs.data;
    // Synthetic tokens are below the model's vocabulary whatever the tokenizer.
    if (!prepared.data.synthetic && loaded.problems.empty() && inputs.problems.empty()) {
      if (tokenizer_known) facts.vocabulary = inputs.tokenizer->vocab_size();
      facts.windows = prepared.data.windows;
      take_end_token(loaded.config, prepared.end_token);
    }
  }
  prepared.run = resolve_run(loaded.config, facts, loaded.problems, loaded.notes);
  loaded.problems.insert(loaded.problems.end(), inputs.problems.begin(), inputs.problems.end());
  if (auto fault = device_fault(loaded.config)) loaded.problems.push_back(*std::move(fault));
  const std::optional<Cluster> cluster = cluster_of(loaded.config, loaded.problems, loaded.notes);
  throw_problems(loaded.problems);
  if (cluster && loaded.config.has_model())
    prepared.predicted = predict_time(loaded.config, prepared.run, *cluster);
  if (needs == Needs::kTraining) prepared.data_fingerprints = data_fingerprints(loaded.config);
  require_device_built(loaded.config.run.device);
  notes = std::move(loaded.notes);
  prepared.config = std::move(loaded.config);
  return prepared;
}

void take_model(PreparedRun& prepared, const ModelConfig& model) {
  prepared.config.model = model;
  if (!model.adapters) prepared.config.lora = {};
  ResolvedRun& run = prepared.run;
  if (!run.expert_placement.empty()) {
    const RunConfig::Parallel& parallel = prepared.config.parallel;
    (void)parse_expert_placement(expert_placement_json(run.expert_placement),
                                 *parallel.expert_placement, model, parallel.expert);
  }
  const std::vector<Schedule> schedules = run.pipeline.schedules();
  run.pipeline =
      make_pipeline(prepared.config, run.mesh, run.passes_of_sizes(), run.compute, &schedules);
}

BatchArithmetic arithmetic_of(const ResolvedRun& run, std::int64_t sequence_length) {
  BatchArithmetic batch;
  batch.micro = run.batch.micro;
  batch.accumulation = run.batch.accumulation;
  batch.data_ranks = run.batch.data_ranks;
  batch.sequence_length = sequence_length;
  batch.pass = run.passes.micro;
  batch.steps_of_sizes = run.ramp.stretches(0, run.steps);
  return batch;
}

PreparedRun prepare_run(const ConfigInput& input, Needs needs, const Launch& launch) {
  return prepare_run([&] { return read_config_with_model(input); }, needs, launch);
}

PreparedRun prepare_run(const std::function<LoadedConfig()>& read, Needs needs,
                        const Launch& launch) {
  Communicator& job = launch.job();
  const std::int64_t node_ranks = ranks_of_each_host(launch);
  PreparedRun prepared;
  Json shared;
  run_together(job, [&] {
    if (job.rank() != 0) return;
    std::vector<std::string> notes;
    prepared = check_run(read(), needs, launch.replica().size(), notes, node_ranks);
    for (const std::string& note : notes) log_info_text(note);
    shared["config"] = resolved_json(prepared.config);
    Json& hashes = shared["tokenizer_hashes"] = Json::array();
    for (const std::string& hash : prepared.tokenizer_hashes) hashes.push_back(hash);
    shared["end_token"] = prepared.end_token;
    shared["data_fingerprints"] = prepared.data_fingerprints;
    shared["synthetic"] = prepared.data.synthetic;
    shared["documents"] = prepared.data.documents;
    shared["tokens"] = prepared.data.tokens;
    shared["windows"] = prepared.data.windows;
    shared["sample_tokens"] = prepared.run.sample_tokens;
    shared["zero_group"] = prepared.run.zero_group;
    shared["expert_placement"] = expert_placement_json(prepared.run.expert_placement);
    for (const Schedule& schedule : prepared.run.pipeline.schedules())
      shared["schedules"].push_back(schedule_json(schedule));
  });
  shared = parse_json(job.broadcast_text(shared.dump(), 0), "the config sent by rank 0");
  LoadedConfig loaded = parse_run_config(*shared.find("config"));
  throw_problems(loaded.problems);
  prepared.config = std::move(loaded.config);
  prepared.tokenizer_hashes.clear();
  for (const Json& hash : shared.find("tokenizer_hashes")->as_array())
    prepared.tokenizer_hashes.push_back(hash.as_string());
  prepared.end_token = shared.find("end_token")->as_integer();
  prepared.data_fingerprints = *shared.find("data_fingerprints");
  prepared.data = {shared.find("synthetic")->as_bool(), shared.find("documents")->as_integer(),
                   shared.find("tokens")->as_integer(), shared.find("windows")->as_integer()};
  prepared.global_batch_given = prepared.config.batch.global.has_value();
  const DeviceKind device = device_kind(prepared.config.run.device);
  if (job.rank() != 0) {
    std::vector<Schedule> schedules;
    for (const Json& schedule : shared.find("schedules")->as_array())
      schedules.push_back(parse_schedule(schedule, "the schedule sent by rank 0"));
    ResolveInput facts;
    facts.world = launch.replica().size();
    facts.schedules = &schedules;
    ExpertPlacement placement;
    if (prepared.config.parallel.expert_placement) {
      placement =
          parse_expert_placement(*shared.find("expert_placement"), "the placement sent by rank 0",
                                 prepared.config.model, prepared.config.parallel.expert);
      facts.expert_placement = &placement;
    }
    facts.device = device;
    facts.sample_tokens = shared.find("sample_tokens")->as_integer();
    if (!prepared.data.synthetic) facts.windows = prepared.data.windows;
    std::vector<Problem> problems;
    std::vector<std::string> notes;  // reported once, by rank 0 above
    prepared.run = resolve_run(prepared.config, facts, problems, notes);
    throw_problems(problems);
    prepared.run.zero_group = shared.find("zero_group")->as_integer();
  }
  prepared.config = with_defaults_written(prepared.config, prepared.run);
  return prepared;
}

}  // namespace trireme
