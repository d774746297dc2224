#include "tokenizer/packing.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "base/error.h"

namespace trireme {

std::vector<std::vector<std::int64_t>> pack_best_fit(std::span<const std::int32_t> lengths,
                                                     std::int32_t capacity) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto length_of = [&](std::int64_t document) {
    return lengths[static_cast<std::size_t>(document)];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return length_of(a) > length_of(b); });
  std::vector<std::vector<std::int64_t>> bins;
  std::map<std::int32_t, std::deque<std::size_t>> by_room;  // open bins
  for (const std::int64_t document : order) {
    const std::int32_t length = length_of(document);
    expect(length >= 1 && length <= capacity, "a document of {} in bins of {}", length, capacity);
    std::size_t bin = bins.size();
    std::int32_t room = capacity;
    if (const auto fullest = by_room.lower_bound(length); fullest != by_room.end()) {
      room = fullest->first;
      bin = fullest->second.front();
      fullest->second.pop_front();
      if (fullest->second.empty()) by_room.erase(fullest);
    } else {
      bins.emplace_back();
    }
    bins[bin].push_back(document);
    if (room > length) by_room[room - length].push_back(bin);
  }
  return bins;
}

}  // namespace trireme
