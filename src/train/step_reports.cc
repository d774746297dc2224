#include "train/step_reports.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme {

void RankReport::add(const RankReport& higher) {
  for (std::size_t i = 0; i < squares.size(); ++i) squares[i] += higher.squares[i];
  loss_sum += higher.loss_sum;
  target_count += higher.target_count;
  stop_reason = std::max(stop_reason, higher.stop_reason);
  save_is_late = std::max(save_is_late, higher.save_is_late);
  memory_bytes = std::max(memory_bytes, higher.memory_bytes);
  span_ns = std::max(span_ns, higher.span_ns);
  busy_ns += higher.busy_ns;
  writers.add(higher.writers);
}

void StepReports::start(const RankReport& mine) {
  report_ = mine;
  pending_ = replica_.start_combined(
      report_, [](RankReport& lower, const RankReport& higher) { lower.add(higher); });
}

StepFacts StepReports::finish() {
  std::exchange(pending_, {}).wait();
  StepFacts facts;
  ExactSum squares;
  squares.words() = report_.squares;
  facts.norm = std::sqrt(squares.value());
  facts.loss_sum = report_.loss_sum;
  facts.target_count = report_.target_count;
  facts.stop_reason = report_.stop_reason;
  facts.save_is_late = report_.save_is_late != 0;
  facts.memory_bytes = report_.memory_bytes;
  facts.longest_span_ns = static_cast<double>(report_.span_ns);
  facts.busy_ns = static_cast<double>(report_.busy_ns) / replica_.size();
  return facts;
}

}  // namespace trireme
