#include "comm/flight_recorder.h"

#include <algorithm>

#include "base/trace.h"

namespace trireme {

std::int64_t FlightRecorder::begin(const char* operation, std::int64_t bytes,
                                   std::string_view channel) noexcept {
  const std::int64_t now_ns = steady_now_ns();
  const std::lock_guard lock(mutex_);
  TransferRecord& record = ring_[static_cast<std::size_t>(++last_ % kRecords)];
  record = {last_, bytes, now_ns, 0, operation, {}};
  std::copy_n(channel.begin(), std::min(channel.size(), record.channel.size() - 1),
              record.channel.begin());
  return last_;
}

void FlightRecorder::end(std::int64_t sequence) noexcept {
  const std::int64_t now_ns = steady_now_ns();
  const std::lock_guard lock(mutex_);
  TransferRecord& record = ring_[static_cast<std::size_t>(sequence % kRecords)];
  if (record.sequence == sequence) record.end_ns = now_ns;
}

std::int64_t FlightRecorder::last_sequence() const noexcept {
  const std::lock_guard lock(mutex_);
  return last_;
}

std::vector<TransferRecord> FlightRecorder::records() const {
  std::vector<TransferRecord> records;
  const std::lock_guard lock(mutex_);
  for (std::int64_t i = std::max<std::int64_t>(1, last_ - kRecords + 1); i <= last_; ++i) {
    records.push_back(ring_[static_cast<std::size_t>(i % kRecords)]);
  }
  return records;
}

TransferRecord FlightRecorder::current() const noexcept {
  const std::lock_guard lock(mutex_);
  for (std::int64_t i = std::max<std::int64_t>(1, last_ - kRecords + 1); i <= last_; ++i) {
    const TransferRecord& record = ring_[static_cast<std::size_t>(i % kRecords)];
    if (record.end_ns == 0) return record;
  }
  return last_ == 0 ? TransferRecord{} : ring_[static_cast<std::size_t>(last_ % kRecords)];
}

}  // namespace trireme
