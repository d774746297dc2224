#include "train/step_reports.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

namespace trireme {

static_assert(std::is_trivially_copyable_v<RankReport>);

StepReports::StepReports(Communicator& replica, Exchange exchange)
    : replica_(replica), reports_(static_cast<std::size_t>(replica.size())) {
  if (exchange == Exchange::kBeside) beside_ = replica.channel("reports");
}

void StepReports::start(const RankReport& mine) {
  if (!beside_) {
    return replica_.all_gather(std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(reports_)));
  }
  reports_[static_cast<std::size_t>(replica_.rank())] = mine;
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(reports_));
  constexpr DType kUnit = DType::kF64;
  static_assert(sizeof(RankReport) % size_of(kUnit) == 0);
  pending_ = beside_->start_all_gather(
      {bytes.data(), kUnit, {static_cast<std::int64_t>(bytes.size() / size_of(kUnit))}});
}

StepFacts StepReports::finish() {
  std::exchange(pending_, {}).wait();
  StepFacts facts;
  ExactSum squares;
  auto& words = squares.words();
  for (const RankReport& report : reports_) {
    for (std::size_t i = 0; i < words.size(); ++i) words[i] += report.squares[i];
    facts.loss_sum += report.loss_sum;
    facts.target_count += report.target_count;
    facts.stop_reason = std::max(facts.stop_reason, report.stop_reason);
    facts.save_is_late = facts.save_is_late || report.save_is_late != 0;
    facts.memory_bytes = std::max(facts.memory_bytes, report.memory_bytes);
    facts.longest_span_ns = std::max(facts.longest_span_ns, static_cast<double>(report.span_ns));
    facts.busy_ns += static_cast<double>(report.busy_ns) / static_cast<double>(reports_.size());
  }
  facts.norm = std::sqrt(squares.value());
  return facts;
}

}  // namespace trireme
