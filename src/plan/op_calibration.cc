#include "plan/op_calibration.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "plan/step_cost.h"
#include "plan/step_time.h"

namespace trireme {

namespace {

/// What is left of the kinds that are not asked for.
constexpr double kNothing = 1e-9;

double ratio(double measured, double predicted) {
  return measured > 0 && predicted > 0 ? measured / predicted : 1;
}

struct Times {
  double products = 1, attention = 1, passes = 1;
  double cold = 0;  ///< bytes of products a second, where these are left out
};
Cluster with_times(Cluster cluster, const Times& times) {
  for (ProductSeconds& product : cluster.gemm) product.seconds *= times.products;
  for (MemorySeconds& pass : cluster.memory) pass.seconds *= times.passes;
  cluster.efficiency.attention /= times.attention;
  return cluster;
}

}  // namespace

OpSeconds op_seconds(std::span<const OpTotal> totals) {
  OpSeconds seconds;
  double passes = 0, bytes = 0;
  for (const OpTotal& op : totals) {
    const double of_op = static_cast<double>(op.ns) * 1e-9;
    const StepPhase phase = step_phase_of(op.phase);
    if (phase == StepPhase::kOptimizer) {
      if (op.flops == 0) seconds.update += of_op;  // products are a matrix's, as any other's
    } else if (phase != StepPhase::kForward && phase != StepPhase::kBackward) {
      continue;
    } else if (std::string_view(op.op).starts_with("attention")) {
      seconds.attention += of_op;
    } else if (op.flops > 0) {
      seconds.products += of_op;
    } else {
      seconds.passes += of_op;
      passes += static_cast<double>(op.calls);
      bytes += static_cast<double>(op.bytes);
    }
  }
  seconds.pass_bytes = passes > 0 ? bytes / passes : 0;
  return seconds;
}

OpSeconds predicted_op_seconds(const ModelConfig& model, const StepLayout& layout,
                               const Cluster& cluster) {
  const auto predicted = [&](const Times& times) {
    Cluster of_kind = with_times(cluster, times);
    if (times.products == kNothing) {  // their operands come at the rate of the device
      of_kind.device.bytes_per_second /= kNothing;
      of_kind.shared_bytes_per_second = 0;
      of_kind.cold_bytes_per_second = times.cold;
    }
    return predict_step(model, layout, of_kind);
  };
  const PredictedStep of_passes = predicted({kNothing, kNothing, 1}),
                      of_nothing = predicted({kNothing, kNothing, kNothing});
  OpSeconds seconds;
  seconds.products = predicted({1, kNothing, kNothing}).compute;
  seconds.attention = predicted({kNothing, 1, kNothing}).compute;
  seconds.product_bytes = predicted({kNothing, kNothing, kNothing, 1}).compute;
  seconds.passes = of_passes.compute;
  seconds.update = of_passes.optimizer - of_nothing.optimizer;
  Cluster at_a_byte_a_second = cluster;
  at_a_byte_a_second.memory = {{1, 1}};
  seconds.update_bytes = predict_step(model, layout, at_a_byte_a_second).optimizer;
  return seconds;
}

void calibrate(Cluster& cluster, const OpSeconds& predicted, const OpSeconds& measured) {
  const double passes = ratio(measured.passes, predicted.passes),
               update = ratio(measured.update, predicted.update);
  const double longer = predicted.products > 0 ? measured.products - predicted.products : 0;
  if (longer > 0) cluster.cold_bytes_per_second = predicted.product_bytes / longer;
  cluster =
      with_times(std::move(cluster), {longer > 0 ? 1 : ratio(measured.products, predicted.products),
                                      ratio(measured.attention, predicted.attention), 1});
  double& attention = cluster.efficiency.attention;
  attention = std::min(attention, Cluster::kEfficiencyMax);
  const double from = measured.pass_bytes, to = predicted.update_bytes;
  for (MemorySeconds& pass : cluster.memory) {
    const double part =
        from > 0 && to > from ? std::log(pass.bytes / from) / std::log(to / from) : 0;
    pass.seconds *= passes * std::pow(update / passes, std::clamp(part, 0.0, 1.0));
  }
}

OpSeconds among_sharers(const OpSeconds& measured, double sharers, double unexplained) {
  OpSeconds waited = measured;
  if (measured.total() <= 0) return waited;
  const double times = 1 + std::clamp(unexplained / measured.total(), 0.0, sharers - 1);
  for (double* const each : {&waited.products, &waited.attention, &waited.passes, &waited.update})
    *each *= times;
  return waited;
}

}  // namespace trireme
