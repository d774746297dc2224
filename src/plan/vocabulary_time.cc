// Embedding and head of plan/layer_time.h.

#include <utility>

#include "base/math.h"
#include "config/adapters.h"
#include "plan/layer_time.h"

namespace trireme {

namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

double PartTimes::vocabulary_size() const {
  return real(ceil_div(model_.vocab_size, layout_.extent(Axis::kTensor)) * model_.hidden);
}

double PartTimes::head_adapter_size() const {
  return real(model_.head_adapter_rank *
              (model_.hidden + ceil_div(model_.vocab_size, layout_.extent(Axis::kTensor))));
}

/// us, its part of the logits; du and dB; dA and du's part of dn; with magnitudes passes over
/// logits, and each row's length.
double PartTimes::head_adapter_seconds(std::int64_t rows, std::int64_t columns,
                                       double logit) const {
  const std::int64_t ranks = model_.head_adapter_rank, hidden = model_.hidden;
  if (ranks == 0) return 0;
  const double element = real(static_cast<std::int64_t>(size_of(layout_.compute)));
  const auto product = [&](std::int64_t m, std::int64_t n, std::int64_t k, double written) {
    return ops_.product({m, n, k, layout_.compute, written});
  };
  double seconds = product(rows, ranks, hidden, element) + product(rows, columns, ranks, logit) +
                   product(rows, ranks, columns, element) + product(columns, ranks, rows, 8) +
                   product(ranks, hidden, rows, 8);
  if (trains_layers(model_)) seconds += product(rows, hidden, ranks, element);
  if (model_.adapters->dropout > 0) seconds += 3 * ops_.memory(2 * real(rows * hidden) * element);
  if (!model_.adapters->magnitudes) return seconds;
  return seconds + product(columns, hidden, ranks, 8) +
         ops_.memory(real(columns * hidden) * element +
                     real(rows * columns) * (3 * logit + 6 * element));
}

PartTime PartTimes::head() const {
  const LinkTime tensor(cluster_, layout_.extent(Axis::kTensor), 1);
  const std::int64_t rows = layout_.tokens(), hidden = model_.hidden;
  const std::int64_t columns = ceil_div(model_.vocab_size, tensor.ranks());
  const double element = real(static_cast<std::int64_t>(size_of(layout_.compute)));
  const double logit = layout_.device == DeviceKind::kCpu ? 4 : element;
  const bool goes_back = trains_layers(model_);
  PartTime time;
  PassTime& pass = time.forward;
  pass.compute = ops_.product({rows, columns, hidden, layout_.compute, logit}) +
                 head_adapter_seconds(rows, columns, logit);
  if (goes_back) pass.compute += ops_.product({rows, hidden, columns, layout_.compute, element});
  if (!model_.adapters) pass.compute += ops_.product({columns, hidden, rows, layout_.compute, 8});
  if (cluster_.program) {
    pass.compute += 3 * ops_.memory(cluster_.program->logit_bytes * real(rows * columns));
    return time;
  }
  pass.compute += ops_.memory(3 * logit * real(rows * columns)) +
                  ops_.memory(4 * element * real(layout_.residual_tokens() * hidden));
  const double times = goes_back ? 2 : 1;
  pass.exposed[Axis::kTensor] = tensor.rings(real(rows * hidden) * element, times);
  pass.bytes[Axis::kTensor] =
      times * real(rows * hidden) * element * (1 - 1 / real(tensor.ranks()));
  if (!goes_back) return time;
  const PassTime norm{ops_.memory(5 * element * real(layout_.residual_tokens() * hidden))};
  time.backward_input = time.backward = norm;
  return time;
}

PartTime PartTimes::embedding() const {
  const LinkTime tensor(cluster_, layout_.extent(Axis::kTensor), 1);
  const double row =
      real(model_.hidden) * real(static_cast<std::int64_t>(size_of(layout_.compute)));
  const double stream = real(layout_.residual_tokens()) * row, all = real(layout_.tokens()) * row;
  PartTime time;
  if (cluster_.program) {
    time.forward.compute =
        ops_.memory(cluster_.program->embedding_bytes * real(layout_.tokens() * model_.hidden));
    return time;
  }
  time.forward.compute = ops_.memory(2 * stream);
  if (!model_.adapters)
    time.backward_weight.compute = ops_.memory(all + 8 * real(layout_.tokens() * model_.hidden));
  const double times = layout_.sequence_parallel ? 1 : 2;
  for (const auto& [pass, count] : {std::pair{&time.forward, times},
                                    {&time.backward_weight, model_.adapters ? 0 : 2 - times}}) {
    pass->exposed[Axis::kTensor] = tensor.rings(all, count);
    pass->bytes[Axis::kTensor] = count * all * (1 - 1 / real(tensor.ranks()));
  }
  time.backward = time.backward_weight;
  return time;
}

}  // namespace trireme
