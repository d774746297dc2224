#include "store/joined_maxima.h"

#include <vector>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"

namespace trireme {

void join_maxima_of_ranks(Context& context, Communicator& ranks, const TensorView& maxima,
                          const TensorView& received) {
  const std::int64_t part = div_exact(maxima.count(), ranks.size()), mine = ranks.rank();
  const TensorView others = received.reshape({received.count()}).rows(0, part * (ranks.size() - 1));
  std::vector<Message> sends, receives;
  for (std::int64_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == mine) continue;
    const auto peer = static_cast<int>(rank);
    sends.push_back(message_of(peer, maxima.rows(rank * part, part)));
    receives.push_back(
        message_of(peer, others.rows(row_among_others(peer, ranks.rank()) * part, part)));
  }
  ranks.start_exchange(sends, receives).wait();
  join_maxima(context, maxima.rows(mine * part, part), others.reshape({ranks.size() - 1, part}));
  ranks.start_all_gather(maxima).wait();
}

std::int64_t joined_maxima_bytes_sent(std::int64_t count, int ranks) {
  if (ranks == 1 || count == 0) return 0;
  const std::int64_t bytes = 4 * count;
  return bytes / ranks * (ranks - 1) + one_way_bytes_sent(bytes, ranks);
}

}  // namespace trireme
