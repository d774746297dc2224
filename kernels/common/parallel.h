#pragma once
// Shares work among the threads of an op. For files compiled per instruction set.

#include <cstdint>

#include "device/exec.h"

namespace trireme::TRIREME_ISA {

/// Below this many element operations a parallel region costs more than it saves.
inline constexpr std::int64_t kWorkPerThreadMin = 16384;

/// How many pieces `count` items are cut into: at most `threads`, each with enough work. A function
/// of its arguments alone: equal shape and threads give equal partial sums.
inline __attribute__((always_inline)) int piece_count(int threads, std::int64_t count,
                                                      std::int64_t work_per_item) {
  const std::int64_t by_work = count * work_per_item / kWorkPerThreadMin;
  std::int64_t pieces = threads < by_work ? threads : by_work;
  if (pieces > count) pieces = count;
  return pieces < 1 ? 1 : static_cast<int>(pieces);
}

/// body(piece, begin, end) for `pieces` even parts of [0, count), each on its own thread.
template <class Body>
inline __attribute__((always_inline)) void parallel_pieces(int pieces, std::int64_t count,
                                                           const Body& body) {
  if (pieces <= 1) {
    body(0, std::int64_t{0}, count);
    return;
  }
  const std::int64_t base = count / pieces, extra = count % pieces;
#pragma omp parallel for num_threads(pieces) schedule(static)
  for (int piece = 0; piece < pieces; ++piece) {
    const std::int64_t begin = piece * base + (piece < extra ? piece : extra);
    body(piece, begin, begin + base + (piece < extra ? 1 : 0));
  }
}

/// body(begin, end) over parts of [0, count).
template <class Body>
inline __attribute__((always_inline)) void parallel_ranges(const Exec& exec, std::int64_t count,
                                                           std::int64_t work_per_item,
                                                           const Body& body) {
  parallel_pieces(piece_count(exec.threads, count, work_per_item), count,
                  [&](int, std::int64_t begin, std::int64_t end) { body(begin, end); });
}

}  // namespace trireme::TRIREME_ISA
