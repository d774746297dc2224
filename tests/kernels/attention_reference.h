#pragma once
// The formulas of kernels/attention/attention.h as scalar loops in double.

#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"

namespace trireme::reference {

/// q [B * Tq, H, D], k [B * Tk, G, D], v [B * Tk, G, Dv], dense.
struct AttentionCase {
  std::int64_t sequences = 1, heads = 1, kv_heads = 1, head_dim = 2, value_dim = 2;
  std::vector<PositionRange> q_ranges, kv_ranges;
  std::vector<std::int32_t> first_key;  ///< empty, or one for each of B * Tq queries
  double scale = 1;
  std::vector<double> q, k, v;
  std::int64_t window = 0;  ///< 0: no limit
  /// Of dropout; samples of the sequences, and all in an order of heads that begins with
  /// first_head.
  double share = 0;
  std::uint64_t key = 0;
  std::int64_t first_head = 0;
  std::vector<std::int64_t> samples = {};

  [[nodiscard]] std::int64_t q_tokens() const;   ///< Tq
  [[nodiscard]] std::int64_t kv_tokens() const;  ///< Tk
  /// Whether query i sees key j of sequence b.
  [[nodiscard]] bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const;
  /// P~ / P of a pair.
  [[nodiscard]] double factor(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
};

struct AttentionOutput {
  std::vector<double> o, lse;
};
AttentionOutput attention_forward(const AttentionCase& c);

std::vector<double> attention_delta(const AttentionCase& c, const std::vector<double>& d_o,
                                    const std::vector<double>& o);

struct AttentionGradients {
  std::vector<double> dq, dk, dv;
};
/// lse and delta may be over more keys than those of the case.
AttentionGradients attention_backward(const AttentionCase& c, const std::vector<double>& d_o,
                                      const std::vector<double>& lse,
                                      const std::vector<double>& delta);

}  // namespace trireme::reference
