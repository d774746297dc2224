#include "kernels/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"

namespace trireme::reference {
namespace {

std::int64_t total(const std::vector<PositionRange>& ranges) {
  std::int64_t count = 0;
  for (const PositionRange& range : ranges) count += range.count;
  return count;
}

std::int64_t position(const std::vector<PositionRange>& ranges, std::int64_t index) {
  for (const PositionRange& range : ranges) {
    if (index < range.count) return range.first + index;
    index -= range.count;
  }
  return -1;
}

/// Where the heads of query i and key j of sequence b begin.
struct Offsets {
  std::size_t q, k, o, v, row;
};
Offsets offsets(const AttentionCase& c, std::int64_t b, std::int64_t h, std::int64_t i,
                std::int64_t j) {
  const std::int64_t g = h / (c.heads / c.kv_heads);
  const std::int64_t row = (b * c.q_tokens() + i) * c.heads + h;
  const std::int64_t key = (b * c.kv_tokens() + j) * c.kv_heads + g;
  const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
  return {at(row * c.head_dim), at(key * c.head_dim), at(row * c.value_dim), at(key * c.value_dim),
          at(row)};
}

double dot(const double* x, const double* y, std::int64_t count) {
  double sum = 0;
  for (std::int64_t d = 0; d < count; ++d) sum += x[d] * y[d];
  return sum;
}

template <class Body>
void for_each_query(const AttentionCase& c, Body body) {
  for (std::int64_t b = 0; b < c.sequences; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t i = 0; i < c.q_tokens(); ++i) body(b, h, i);
    }
  }
}

}  // namespace

std::int64_t AttentionCase::q_tokens() const { return total(q_ranges); }
std::int64_t AttentionCase::kv_tokens() const { return total(kv_ranges); }

bool AttentionCase::sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
  const std::int64_t p = position(q_ranges, i), r = position(kv_ranges, j);
  const std::int64_t first =
      first_key.empty() ? 0 : first_key[static_cast<std::size_t>(b * q_tokens() + i)];
  return first <= r && r <= p && (window == 0 || p - r < window);
}

double AttentionCase::factor(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  const double dropped = std::min(std::round(share * 65536), 65535.0);
  if (dropped == 0) return 1;
  const auto p = static_cast<std::uint64_t>(position(q_ranges, i)),
             r = static_cast<std::uint64_t>(position(kv_ranges, j));
  const auto sample = static_cast<std::uint64_t>(samples[static_cast<std::size_t>(b)]);
  const std::uint64_t head = static_cast<std::uint64_t>(first_head + h);
  const std::uint32_t word = philox(key, sample << 32 | (p / 32 * 8 + p % 8),
                                    head << 32 | (r / 16 * 8 + r % 8))[p / 8 % 4];
  const std::uint32_t number = r / 8 % 2 == 0 ? word & 0xffff : word >> 16;
  return number >= dropped ? 65536 / (65536 - dropped) : 0;
}

AttentionOutput attention_forward(const AttentionCase& c) {
  const std::size_t rows = c.q.size() / static_cast<std::size_t>(c.head_dim);
  AttentionOutput out{std::vector<double>(rows * static_cast<std::size_t>(c.value_dim)),
                      std::vector<double>(rows)};
  const std::int64_t keys = c.kv_tokens();
  for_each_query(c, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    std::vector<double> s(static_cast<std::size_t>(keys), -std::numeric_limits<double>::infinity());
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      if (!c.sees(b, i, j)) continue;
      const Offsets at = offsets(c, b, h, i, j);
      double& score = s[static_cast<std::size_t>(j)];
      score = c.scale * dot(&c.q[at.q], &c.k[at.k], c.head_dim);
      maximum = std::max(maximum, score);
    }
    const Offsets row = offsets(c, b, h, i, 0);
    out.lse[row.row] = maximum;
    if (std::isinf(maximum)) return;
    for (double score : s) sum += std::exp(score - maximum);
    out.lse[row.row] = maximum + std::log(sum);
    for (std::int64_t j = 0; j < keys; ++j) {
      const double p =
          std::exp(s[static_cast<std::size_t>(j)] - maximum) / sum * c.factor(b, h, i, j);
      const Offsets at = offsets(c, b, h, i, j);
      for (std::size_t d = 0; d < static_cast<std::size_t>(c.value_dim); ++d)
        out.o[at.o + d] += p * c.v[at.v + d];
    }
  });
  return out;
}

std::vector<double> attention_delta(const AttentionCase& c, const std::vector<double>& d_o,
                                    const std::vector<double>& o) {
  std::vector<double> delta(o.size() / static_cast<std::size_t>(c.value_dim));
  for (std::size_t row = 0; row < delta.size(); ++row) {
    const std::size_t at = row * static_cast<std::size_t>(c.value_dim);
    delta[row] = dot(&d_o[at], &o[at], c.value_dim);
  }
  return delta;
}

AttentionGradients attention_backward(const AttentionCase& c, const std::vector<double>& d_o,
                                      const std::vector<double>& lse,
                                      const std::vector<double>& delta) {
  AttentionGradients out{std::vector<double>(c.q.size()), std::vector<double>(c.k.size()),
                         std::vector<double>(c.v.size())};
  for_each_query(c, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t j = 0; j < c.kv_tokens(); ++j) {
      if (!c.sees(b, i, j)) continue;
      const Offsets at = offsets(c, b, h, i, j);
      const double s = c.scale * dot(&c.q[at.q], &c.k[at.k], c.head_dim);
      const double p = std::exp(s - lse[at.row]);
      const double dp = dot(&d_o[at.o], &c.v[at.v], c.value_dim), factor = c.factor(b, h, i, j);
      const double ds = p * (factor * dp - delta[at.row]) * c.scale;
      for (std::size_t d = 0; d < static_cast<std::size_t>(c.value_dim); ++d)
        out.dv[at.v + d] += factor * p * d_o[at.o + d];
      for (std::size_t d = 0; d < static_cast<std::size_t>(c.head_dim); ++d) {
        out.dq[at.q + d] += ds * c.k[at.k + d];
        out.dk[at.k + d] += ds * c.q[at.q + d];
      }
    }
  });
  return out;
}

}  // namespace trireme::reference
