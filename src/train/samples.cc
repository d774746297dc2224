#include "train/samples.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "generate/generator.h"
#include "guard/watchdog.h"

namespace trireme {

namespace {

Json json_of(const std::vector<std::vector<std::int32_t>>& prompts) {
  Json list = Json::array();
  for (const auto& ids : prompts) {
    Json one = Json::array();
    for (const std::int32_t id : ids) one.push_back(std::int64_t{id});
    list.push_back(std::move(one));
  }
  return list;
}

int first_rank_with_logits(const Runtime& runtime) {
  return runtime.mesh.rank_of({runtime.pipeline.placement.back(), 0, 0, 0});
}

}  // namespace

std::vector<std::int32_t> ids_of_prompt(const RunConfig& config, std::size_t index,
                                        const Tokenizer& tokenizer) {
  const ModelConfig& model = config.model;
  std::vector<std::int32_t> ids = tokenizer.encode(config.evaluation.samples[index]);
  const std::string path = fmt::format("evaluation.samples: prompt {}", index + 1);
  if (ids.empty()) throw ConfigError("{} has no tokens (there is nothing to continue)", path);
  for (const std::int32_t id : ids) {
    if (id >= model.vocab_size) {
      throw ConfigError("{}: token id {} is outside the model's vocabulary of {}", path, id,
                        model.vocab_size);
    }
  }
  const auto total = static_cast<std::int64_t>(ids.size()) + Samples::kNewTokens;
  if (model.learned_positions && total > model.max_positions) {
    throw ConfigError(
        "{}: its {} tokens and {} more need {} positions, the model has {} (they are learned). "
        "Shorten it",
        path, ids.size(), Samples::kNewTokens, total, model.max_positions);
  }
  return ids;
}

Samples::Samples(Runtime& runtime, const PreparedRun& prepared)
    : runtime_(runtime),
      prompts_(prepared.config.evaluation.samples),
      sampler_(first_rank_with_logits(runtime)) {
  Communicator& replica = runtime.replica();
  run_together(replica, [&] {
    if (replica.rank() != 0) return;
    tokenizer_ = load_tokenizer(prepared.config.tokenizer);
    for (std::size_t i = 0; i < prompts_.size(); ++i)
      ids_.push_back(ids_of_prompt(prepared.config, i, *tokenizer_));
  });
  const Json prompts = parse_json(replica.broadcast_text(json_of(ids_).dump(), 0), "prompts");
  ids_.clear();
  std::size_t longest = 0;
  for (const Json& one : prompts.as_array()) {
    std::vector<std::int32_t>& ids = ids_.emplace_back();
    for (const Json& id : one.as_array()) ids.push_back(static_cast<std::int32_t>(id.as_integer()));
    longest = std::max(longest, ids.size());
  }
  DecoderShape shape;
  shape.length = static_cast<std::int64_t>(longest) + kNewTokens;
  const Program& pass = runtime.pipeline.evaluation;
  run_together(replica, [&] {
    decoder_ = std::make_unique<Decoder>(
        runtime.context, runtime.model, runtime.params, runtime.store, shape,
        DecoderMesh{
            TensorAxis(*runtime.channels.tensor, false),
            runtime.channels.expert_axis(runtime.part.cut.expert, runtime.config.moe.dispatch),
            pass.ranks.at(static_cast<std::size_t>(runtime.channels.pipeline_group->rank())),
            &runtime.channels.links,
            expert_places(runtime.model, runtime.part.cut.expert.expert.extent,
                          runtime.part.expert_placement)});
  });
}

std::vector<SampleLine> Samples::continue_prompts(std::int64_t step, Watchdog* watchdog) {
  const Span span(runtime_.trace, Phase::kEvaluation);
  std::vector<SequenceRequest> requests;
  for (const std::vector<std::int32_t>& ids : ids_) requests.push_back({ids, kNewTokens});
  std::vector<std::vector<std::int32_t>> added(ids_.size());
  GenerationCalls calls;
  if (watchdog != nullptr) calls.between = [&] { watchdog->progress(); };
  calls.agree = [&](std::span<std::int32_t> tokens) {
    runtime_.replica().broadcast(std::as_writable_bytes(tokens), sampler_);
  };
  calls.added = [&](std::size_t i, std::int32_t token) { added[i].push_back(token); };
  SamplingOptions greedy;
  greedy.temperature = 0;
  generate(*decoder_, requests, greedy, std::span(&runtime_.model.end_token, 1), calls);
  std::vector<SampleLine> lines;
  for (std::size_t i = 0; i < ids_.size() && tokenizer_ != nullptr; ++i) {
    lines.push_back(
        {step, prompts_[i], valid_utf8(tokenizer_->decode(added[i], SpecialTokens::kSkip))});
  }
  return lines;
}

}  // namespace trireme
