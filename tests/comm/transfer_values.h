#pragma once
// What the tests of transfers send, and what must come of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "comm/communicator.h"
#include "comm/mpi_communicator.h"
#include "support/mpi_test.h"
#include "support/tree_sum.h"

namespace trireme {

inline std::vector<float> values_of(int rank, std::size_t count, std::uint64_t salt = 0) {
  const std::uint64_t key = stream_key(salt, "rank " + std::to_string(rank));
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::ldexp(normal(key, i), static_cast<int>(i % 30) - 15);
  return values;
}

inline std::vector<float> serial_sum(int ranks, std::size_t count, std::uint64_t salt = 0) {
  std::vector<std::vector<float>> terms;
  for (int rank = 0; rank < ranks; ++rank) terms.push_back(values_of(rank, count, salt));
  std::vector<float> sum(count);
  for (std::size_t i = 0; i < count; ++i)
    sum[i] = tree_sum(terms.size(), [&](std::size_t rank) { return terms[rank][i]; });
  return sum;
}

/// The first index whose bits differ, or -1.
inline std::int64_t first_difference(std::span<const float> a, std::span<const float> b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size() ||
        std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

/// The world with options of its own; null where this process is alone and has no MPI.
inline std::unique_ptr<Communicator> world_with(const TransferOptions& options) {
  auto* world = dynamic_cast<MpiCommunicator*>(&test_world());
  return world == nullptr ? nullptr : world->channel_with_options("test", options);
}

template <class T>
inline TensorView view(std::vector<T>& values) {
  return view_of(values.data(), {static_cast<std::int64_t>(values.size())});
}

/// The values of `rank` in bf16.
inline std::vector<BFloat16> halves_of(int rank, std::size_t count, std::uint64_t salt = 0) {
  std::vector<BFloat16> halves;
  for (const float value : values_of(rank, count, salt)) halves.push_back(to_bfloat16(value));
  return halves;
}

inline std::vector<BFloat16> serial_half_sum(int ranks, std::size_t count, std::uint64_t salt = 0) {
  std::vector<std::vector<BFloat16>> terms;
  for (int rank = 0; rank < ranks; ++rank) terms.push_back(halves_of(rank, count, salt));
  std::vector<BFloat16> sum(count);
  for (std::size_t i = 0; i < count; ++i)
    sum[i] = to_bfloat16(
        tree_sum(terms.size(), [&](std::size_t rank) { return to_float(terms[rank][i]); }));
  return sum;
}

inline std::int64_t first_difference(std::span<const BFloat16> a, std::span<const BFloat16> b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size() || a[i].bits != b[i].bits)
      return static_cast<std::int64_t>(i);
  }
  return -1;
}

template <class T>
inline std::span<T> piece_of(std::vector<T>& shards, int rank) {
  const std::size_t count = shards.size() / static_cast<std::size_t>(test_world().size());
  return std::span(shards).subspan(static_cast<std::size_t>(rank) * count, count);
}

template <class T>
inline Message message(int rank, std::span<T> values) {
  return {rank, std::as_writable_bytes(values)};
}

/// Calls `test` with segments from a value in a shard to more than any operand here, in shared
/// memory and without.
template <class Test>
void for_segments(const Test& test) {
  for (const bool shared : {true, false}) {
    for (const std::size_t segment_bytes : {4U, 1000U, 65536U, 1U << 22}) {
      const std::unique_ptr<Communicator> made =
          world_with({.segment_bytes = segment_bytes, .shared = shared});
      SCOPED_TRACE(std::to_string(segment_bytes) + (shared ? " shared" : " not shared"));
      test(made ? *made : test_world(), segment_bytes < 1000 ? std::size_t{2000} : SIZE_MAX);
    }
  }
}

}  // namespace trireme
