#include "telemetry/prometheus_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

/// Families one after the other, the samples of each together.
class Writer {
 public:
  explicit Writer(std::string_view run) : run_(fmt::format("run=\"{}\"", label_value(run))) {}

  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP trireme_{0} {1}\n# TYPE trireme_{0} {2}\n", name, help, type);
  }
  void sample(double value, std::string_view label = "", std::string_view of = "") {
    text_ += fmt::format("trireme_{}{{{}", name_, run_);
    if (!label.empty()) text_ += fmt::format(",{}=\"{}\"", label, label_value(of));
    text_ += fmt::format("}} {}\n", number(value));
  }
  void gauge(std::string_view name, std::string_view help, double value) {
    family(name, "gauge", help);
    sample(value);
  }
  void counter(std::string_view name, std::string_view help, double value) {
    family(name, "counter", help);
    sample(value);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string run_, name_, text_;
};

double real(std::int64_t value) { return static_cast<double>(value); }

void write_step(Writer& out, const StepLine& step) {
  out.counter("steps_total", "Updates of the run, skipped ones included.", real(step.step));
  out.counter("tokens_total", "Tokens that the run has consumed.", real(step.consumed_tokens));
  out.counter("samples_total", "Samples that the run has consumed.", real(step.consumed_samples));
  out.gauge("loss", "Mean loss of the last step, in nats per token.", step.loss);
  out.gauge("gradient_norm", "Norm of all gradients of the last step, before clipping.",
            step.grad_norm);
  out.gauge("learning_rate", "Learning rate of the last step.", step.lr);
  out.gauge("step_seconds", "Time of the last step.", step.step_seconds);
  out.gauge("tokens_per_second", "Of the last step, all ranks.", step.tokens_per_second);
  out.gauge("flops_per_second", "Of the model in the last step, all ranks.",
            step.tflops_per_second * 1e12);
  if (step.mfu)
    out.gauge("mfu_ratio", "Model FLOPs utilisation of the last step, 0 to 1.", *step.mfu);
  out.gauge("memory_bytes", "Memory of the rank that has most.", real(step.memory_bytes));
  out.gauge("data_wait_seconds", "Waiting for data in the last step.", step.time.data_wait);
  out.gauge("optimizer_seconds", "The optimizer in the last step.", step.time.optimizer);
  if (!step.time.communication_exposed.empty()) {
    out.family("communication_exposed_seconds", "gauge",
               "Communication of the last step that nothing hid, by axis.");
    for (const auto& [axis, seconds] : step.time.communication_exposed)
      out.sample(seconds, "axis", axis);
  }
  if (!step.experts) return;
  out.gauge("expert_aux_loss", "Balancing loss of the last step.", step.experts->aux_loss);
  if (const std::vector<double>& load = step.experts->load; !load.empty())
    out.gauge("expert_load_ratio",
              "Most tokens of an expert over their mean, of the layer where that is largest.",
              *std::max_element(load.begin(), load.end()));
}

}  // namespace

std::string prometheus_text(const PrometheusState& state) {
  Writer out(state.run);
  out.family("info", "gauge", "The program of this run.");
  out.sample(1, "version", state.version);
  out.gauge("running", "1 while the run trains, 0 once it has ended.", state.running ? 1 : 0);
  out.gauge("ranks", "Ranks of the run.", real(state.world));
  out.gauge("planned_steps", "Steps of the whole run.", real(state.steps_planned));
  out.gauge("start_timestamp_seconds", "When this start began.", state.start_time);
  if (state.step) {
    write_step(out, *state.step);
    out.gauge("last_step_timestamp_seconds", "When the last step ended.", state.last_step_time);
  }
  out.counter("training_seconds_total", "Time of the steps of this start.", state.step_seconds);
  out.counter("skipped_steps_total", "Steps of this start without an update.", real(state.skips));
  if (state.joules)
    out.counter("energy_joules_total", "Measured in this start, all machines that tell.",
                *state.joules);
  out.counter("checkpoints_total", "Checkpoints saved in this start.", real(state.saves));
  out.counter("checkpoint_failures_total", "Saves of this start that failed.",
              real(state.failed_saves));
  out.counter("checkpoint_stall_seconds_total", "That training has waited for saves.",
              state.stall_seconds);
  if (state.saves > 0) {
    out.gauge("last_checkpoint_step", "Step of the last checkpoint.", real(state.last_saved_step));
    out.gauge("last_checkpoint_timestamp_seconds", "When it was saved.", state.last_save_time);
  }
  if (!state.evaluations.empty()) {
    out.family("validation_loss", "gauge", "Of the last evaluation, by set.");
    for (const auto& [set, line] : state.evaluations) out.sample(line.loss, "set", set);
  }
  return out.text();
}

}  // namespace trireme
