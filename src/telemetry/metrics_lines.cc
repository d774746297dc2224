#include "telemetry/metrics_lines.h"

namespace trireme {

namespace {

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json time_json(const StepTime& time) {
  Json exposed = Json::object();
  for (const auto& [axis, seconds] : time.communication_exposed) exposed[axis] = seconds;
  return Json::Object{{"forward_backward", time.forward_backward},
                      {"communication_exposed", std::move(exposed)},
                      {"data_wait", time.data_wait},
                      {"optimizer", time.optimizer}};
}

Json price_json(const PredictedTime& predicted) {
  return Json::Object{{"device_hour", or_null(predicted.device_hour_price)},
                      {"kwh", or_null(predicted.kwh_price)}};
}

}  // namespace

std::string_view name_of(EndReason reason) {
  switch (reason) {
    case EndReason::kSteps:
      return "steps";
    case EndReason::kExitAtStep:
      return "exit_at_step";
    case EndReason::kTime:
      return "time";
    case EndReason::kSignal:
      return "signal";
    case EndReason::kStopFile:
      return "stop_file";
    case EndReason::kEarlyStop:
      return "early_stop";
    case EndReason::kDiverged:
      return "diverged";
    case EndReason::kError:
      return "error";
  }
  return "?";
}

Json to_json(const StartLine& line) {
  Json json = Json::Object{{"kind", "start"},
                           {"version", line.version},
                           {"world", line.world},
                           {"mesh", line.mesh},
                           {"parameters", line.parameters},
                           {"model_flops_per_token", line.model_flops_per_token},
                           {"peak_tflops", or_null(line.peak_tflops)},
                           {"config", line.config}};
  if (line.predicted) {
    json["predicted"] = Json::Object{{"cluster", line.predicted->cluster},
                                     {"step_seconds", line.predicted->step_seconds},
                                     {"time", time_json(line.predicted->time)},
                                     {"watts", or_null(line.predicted->watts)},
                                     {"price", price_json(*line.predicted)}};
  }
  return json;
}

Json to_json(const StepLine& line) {
  Json json = Json::Object{{"kind", "step"},
                           {"step", line.step},
                           {"loss", line.loss},
                           {"grad_norm", line.grad_norm},
                           {"lr", line.lr},
                           {"consumed_samples", line.consumed_samples},
                           {"consumed_tokens", line.consumed_tokens},
                           {"step_seconds", line.step_seconds},
                           {"tokens_per_second", line.tokens_per_second},
                           {"tflops_per_second", line.tflops_per_second},
                           {"mfu", or_null(line.mfu)},
                           {"memory_bytes", line.memory_bytes},
                           {"time", time_json(line.time)}};
  if (line.joules) json["joules"] = *line.joules;
  if (line.logit_z_loss) json["logit_z_loss"] = *line.logit_z_loss;
  if (line.noise_scale) json["noise_scale"] = *line.noise_scale;
  if (line.experts) {
    json["aux_loss"] = line.experts->aux_loss;
    json["z_loss"] = line.experts->z_loss;
    Json load = Json::array();
    for (const double of_layer : line.experts->load) load.push_back(of_layer);
    json["expert_load"] = std::move(load);
  }
  return json;
}

Json to_json(const EvaluationLine& line) {
  Json json = Json::Object{{"kind", "evaluation"},
                           {"step", line.step},
                           {"loss", line.loss},
                           {"perplexity", line.perplexity},
                           {"tokens", line.tokens}};
  if (!line.name.empty()) json["name"] = line.name;
  return json;
}

Json to_json(const SampleLine& line) {
  return Json::Object{
      {"kind", "sample"}, {"step", line.step}, {"prompt", line.prompt}, {"text", line.text}};
}

Json to_json(const CheckpointLine& line) {
  return Json::Object{{"kind", "checkpoint"},
                      {"step", line.step},
                      {"path", line.path},
                      {"bytes", line.bytes},
                      {"stall_seconds", line.stall_seconds},
                      {"save_seconds", line.save_seconds},
                      {"error", or_null(line.error)}};
}

Json to_json(const SkipLine& line) {
  const bool has_place = line.not_finite();
  return Json::Object{{"kind", "skip"},
                      {"step", line.step},
                      {"reason", line.reason},
                      {"rank", has_place ? Json(line.rank) : Json()},
                      {"tensor", has_place ? Json(line.tensor) : Json()}};
}

Json to_json(const BlocksLine& line) {
  Json blocks = Json::array();
  for (const BlockNorms& block : line.blocks) {
    blocks.push_back(Json::Object{{"name", block.name},
                                  {"grad_norm", block.grad_norm},
                                  {"weight_norm", block.weight_norm},
                                  {"update_norm", block.update_norm},
                                  {"update_ratio", block.update_norm / block.weight_norm}});
  }
  return Json::Object{{"kind", "blocks"}, {"step", line.step}, {"blocks", std::move(blocks)}};
}

Json to_json(const ResumeLine& line) {
  return Json::Object{{"kind", "resume"}, {"step", line.step}, {"path", line.path}};
}

Json to_json(const EndLine& line) {
  Json json = Json::Object{{"kind", "end"},
                           {"step", line.step},
                           {"reason", name_of(line.reason)},
                           {"failed_saves", line.failed_saves},
                           {"bubble_measured", or_null(line.bubble_measured)},
                           {"bubble_simulated", or_null(line.bubble_simulated)}};
  if (line.undone_steps) json["undone_steps"] = *line.undone_steps;
  if (line.step_seconds) json["step_seconds"] = *line.step_seconds;
  if (line.predicted_step_seconds) json["predicted_step_seconds"] = *line.predicted_step_seconds;
  if (line.joules) json["joules"] = *line.joules;
  return json;
}

}  // namespace trireme
