#include "train/step_reports.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace trireme {

void RankReport::add(const RankReport& higher) {
  for (std::size_t i = 0; i < squares.size(); ++i) squares[i] += higher.squares[i];
  loss_sum += higher.loss_sum;
  square_sum += higher.square_sum;
  micro_batch_square += higher.micro_batch_square;
  step_square += higher.step_square;
  target_count += higher.target_count;
  stop_reason = std::max(stop_reason, higher.stop_reason);
  save_is_late = std::max(save_is_late, higher.save_is_late);
  memory_bytes = std::max(memory_bytes, higher.memory_bytes);
  span_ns = std::max(span_ns, higher.span_ns);
  busy_ns += higher.busy_ns;
  microjoules += higher.microjoules;
  meters += higher.meters;
  writers.add(higher.writers);
}

void StepReports::start(const RankReport& mine, const Stage::ExpertTotals& experts) {
  start_experts(experts);
  report_ = mine;
  pending_ = replica_.start_combined(
      report_, [](RankReport& lower, const RankReport& higher) { lower.add(higher); });
}

namespace {

/// Whole numbers among them, up to 2^53, have one sum in any order.
void add_doubles(std::span<std::byte> lower, std::span<const std::byte> higher) {
  for (std::size_t at = 0; at < lower.size(); at += sizeof(double)) {
    double a = 0, b = 0;
    std::memcpy(&a, lower.data() + at, sizeof a);
    std::memcpy(&b, higher.data() + at, sizeof b);
    a += b;
    std::memcpy(lower.data() + at, &a, sizeof a);
  }
}

}  // namespace

void StepReports::start_experts(const Stage::ExpertTotals& mine) {
  layers_ = mine.losses.size();
  if (layers_ == 0) return;
  experts_.assign(2, 0);
  for (std::size_t layer = 0; layer < layers_; ++layer) {
    for (std::size_t i = 0; i < 2; ++i) experts_[i] += mine.losses[layer][i];
    for (const std::int64_t tokens : mine.load[layer])
      experts_.push_back(static_cast<double>(tokens));
  }
  experts_pending_ =
      replica_.start_combine(std::as_writable_bytes(std::span(experts_)), add_doubles);
}

ExpertReport StepReports::finish_experts() {
  std::exchange(experts_pending_, {}).wait();
  ExpertReport report{experts_[0], experts_[1], {}, {}};
  const auto experts = static_cast<std::ptrdiff_t>((experts_.size() - 2) / layers_);
  for (auto layer = experts_.begin() + 2; layer != experts_.end(); layer += experts) {
    const double sum = std::accumulate(layer, layer + experts, 0.0);
    const double most = *std::max_element(layer, layer + experts);
    report.tokens.emplace_back(layer, layer + experts);
    report.load.push_back(sum == 0 ? 0 : most * static_cast<double>(experts) / sum);
  }
  return report;
}

StepFacts StepReports::finish() {
  std::exchange(pending_, {}).wait();
  StepFacts facts;
  ExactSum squares;
  squares.words() = report_.squares;
  facts.norm = std::sqrt(squares.value());
  facts.loss_sum = report_.loss_sum;
  facts.square_sum = report_.square_sum;
  facts.micro_batch_square = report_.micro_batch_square;
  facts.step_square = report_.step_square;
  facts.target_count = report_.target_count;
  facts.stop_reason = report_.stop_reason;
  facts.save_is_late = report_.save_is_late != 0;
  facts.memory_bytes = report_.memory_bytes;
  facts.longest_span_ns = static_cast<double>(report_.span_ns);
  if (report_.meters > 0) facts.joules = static_cast<double>(report_.microjoules) * 1e-6;
  if (layers_ > 0) facts.experts = finish_experts();
  facts.busy_ns = static_cast<double>(report_.busy_ns) / replica_.size();
  return facts;
}

}  // namespace trireme
