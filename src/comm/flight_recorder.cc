#include "comm/flight_recorder.h"

#include <algorithm>

#include "base/trace.h"

namespace trireme {

std::uint32_t group_hash(std::string_view name, std::span<const int> job_ranks) noexcept {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  const auto add = [&](std::uint32_t value) { hash = (hash ^ value) * 16777619U; };
  for (const char each : name) add(static_cast<unsigned char>(each));
  for (const int rank : job_ranks) add(static_cast<std::uint32_t>(rank) + 256);
  return std::max(hash, 1U);
}

std::int64_t FlightRecorder::begin(const char* operation, std::int64_t bytes,
                                   std::string_view channel, const CollectiveId& id) noexcept {
  const std::int64_t now_ns = steady_now_ns();
  const std::lock_guard lock(mutex_);
  TransferRecord& record = ring_[static_cast<std::size_t>(++last_ % kRecords)];
  record = {last_, bytes, now_ns, 0, id, operation, {}};
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
    records.push_back(at(i));
  }
  return records;
}

std::size_t FlightRecorder::recent(std::span<TransferRecord> records) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto room = static_cast<std::int64_t>(records.size());
  const std::int64_t begin = std::max<std::int64_t>(1, last_ - room + 1);
  for (std::int64_t i = begin; i <= last_; ++i)
    records[static_cast<std::size_t>(i - begin)] = at(i);
  for (std::int64_t i = std::max<std::int64_t>(1, last_ - kRecords + 1); i < begin; ++i) {
    if (at(i).end_ns != 0) continue;
    records[0] = at(i);
    break;
  }
  return static_cast<std::size_t>(last_ - begin + 1);
}

TransferRecord FlightRecorder::current() const noexcept {
  const std::lock_guard lock(mutex_);
  for (std::int64_t i = std::max<std::int64_t>(1, last_ - kRecords + 1); i <= last_; ++i) {
    if (at(i).end_ns == 0) return at(i);
  }
  return last_ == 0 ? TransferRecord{} : at(last_);
}

}  // namespace trireme
