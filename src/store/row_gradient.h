#pragma once
// The gradient of an embedding in far fewer rows than its vocabulary has: those that the tokens of
// a step look up. All other rows are zeros and take no memory.

#include <cstdint>

#include "comm/communicator.h"
#include "device/context.h"
#include "tensor/buffer.h"

namespace trireme {

/// In host memory. Row r of the gradient is row slots[r] of the table; others: the last, zeros.
class RowGradient {
 public:
  /// Of [rows, columns], f32; between two clears at most `most` rows may be looked up.
  RowGradient(std::int64_t rows, std::int64_t columns, std::int64_t most);
  static std::int64_t bytes_of(std::int64_t rows, std::int64_t columns, std::int64_t most);

  void clear(Context& context);
  /// gradient[ids[t] - first_row, c] += dout[t, c] with embedding_backward's bits; T may be `most`.
  void add(Context& context, ConstTensorView ids_T, ConstTensorView dout_TC, std::int64_t first_row,
           std::int64_t vocabulary);

  [[nodiscard]] std::int64_t most() const { return most_; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// The rows that have been looked up, [N, C] f32 in that order, and their indices, [N] i32.
  [[nodiscard]] TensorView looked_up() const { return table_.view().rows(0, count_); }
  [[nodiscard]] TensorView indices() const { return indices_.view().rows(0, count_); }
  /// [most + 1, C] f32 and [R] i32; neither ever moves.
  [[nodiscard]] TensorView table() const { return table_.view(); }
  [[nodiscard]] ConstTensorView slots() const { return slots_.view(); }

 private:
  std::int64_t most_, count_ = 0;
  Buffer table_, slots_, indices_, token_slots_;
};

/// Adds up the gradients of several ranks as a tree of neighbours (comm/rank_order_sum.h), with the
/// bits of an all-reduce of the whole: every rank sends the rows that its own tokens have looked up
/// to all others.
class RowSum {
 public:
  /// Each rank looks up most / ranks rows or fewer. References must outlive it.
  RowSum(Context& context, RowGradient& gradient, Communicator& ranks);
  static std::int64_t buffer_bytes(std::int64_t rows, std::int64_t columns, std::int64_t most,
                                   int ranks);
  /// What a rank sends in one sum.
  static std::int64_t bytes_sent(std::int64_t columns, std::int64_t most, int ranks);

  /// The gradient is final on this rank; nobody touches it until `finish`.
  void start();
  void finish();

 private:
  /// The rows of ranks [second, second + span) that ranks [first, first + span) have too are added
  /// to theirs, and end as index -1.
  void add_neighbours(int first, int second, int span);

  Context& context_;
  RowGradient& gradient_;
  Communicator& ranks_;
  Buffer indices_, rows_;  // [ranks, most of a rank]: -1 where there is none; [..., C]
  Buffer slots_;    // [R]: where each row stands among those of some ranks, from 1; 0: nowhere
  Buffer targets_;  // [ranks, most of a rank]
  Pending indices_sent_, rows_sent_;
};

}  // namespace trireme
