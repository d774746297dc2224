#include "plan/layout_choice.h"

#include <string_view>

#include "config/fields.h"

namespace trireme {

namespace {

constexpr std::string_view kParallelKeys[] = {
    "tensor",         "context", "context_method", "pipeline",   "pipeline_schedule",
    "virtual_stages", "expert",  "expert_tensor",  "zero_stage", "recompute"};
constexpr std::string_view kOfOneLayout[] = {"data",
                                             "zero_group",
                                             "expert_placement",
                                             "pipeline_layers",
                                             "pipeline_times",
                                             "pipeline_memory_limit",
                                             "pipeline_group_size"};

/// The value of a key that a config with this choice has; null where it is not given.
Json value_of(std::string_view path, const RunConfig& config) {
  const Field* field = find_field(path);
  expect(field != nullptr, "{} is no field", path);
  return field->read(config);
}

void set_or_erase(Json& section, std::string_view key, Json value) {
  if (value.is_null()) {
    section.erase(key);
  } else {
    section[key] = std::move(value);
  }
}

}  // namespace

LayoutChoice choice_of(const RunConfig& config, std::int64_t micro) {
  const RunConfig::Parallel& from = config.parallel;
  LayoutChoice choice;
  choice.tensor = from.tensor;
  choice.context = from.context;
  choice.pipeline = from.pipeline;
  choice.context_method = from.context_method;
  choice.schedule = from.pipeline_schedule;
  choice.virtual_stages = from.virtual_stages;
  choice.expert = from.expert;
  choice.expert_tensor = from.expert_tensor;
  choice.micro = micro;
  choice.zero_stage = from.zero_stage;
  choice.recompute = from.recompute;
  return choice;
}

void take_choice(const LayoutChoice& choice, std::int64_t global, RunConfig& config) {
  RunConfig::Parallel& to = config.parallel;
  to.tensor = choice.tensor;
  to.context = choice.context;
  to.pipeline = choice.pipeline;
  to.context_method = choice.context_method;
  to.pipeline_schedule = choice.schedule;
  to.virtual_stages = choice.virtual_stages;
  to.expert = choice.expert;
  to.expert_tensor = choice.expert_tensor;
  to.zero_stage = choice.zero_stage;
  to.recompute = choice.recompute;
  to.data.reset();
  to.zero_group.reset();
  to.expert_placement.reset();
  to.pipeline_layers.clear();
  to.pipeline_times.reset();
  to.pipeline_memory_limit.reset();
  to.pipeline_group_size.reset();
  config.batch = {};
  config.batch.global = global;
  config.batch.micro = choice.micro;
}

void take_choice(const LayoutChoice& choice, std::int64_t global, Json& given) {
  RunConfig chosen;
  take_choice(choice, global, chosen);
  Json& parallel = given["parallel"];
  for (const std::string_view key : kParallelKeys)
    set_or_erase(parallel, key, value_of("parallel." + std::string(key), chosen));
  for (const std::string_view key : kOfOneLayout) parallel.erase(key);
  Json& batch = given["batch"];
  batch["global"] = global;
  batch["micro"] = choice.micro;
  batch.erase("accumulation");
}

Json parallel_json(const LayoutChoice& choice) {
  RunConfig chosen;
  take_choice(choice, 1, chosen);
  Json json = Json::object();
  for (const std::string_view key : kParallelKeys) {
    if (key != "recompute")
      set_or_erase(json, key, value_of("parallel." + std::string(key), chosen));
  }
  return json;
}

}  // namespace trireme
