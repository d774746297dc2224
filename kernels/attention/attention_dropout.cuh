#pragma once
// Which of its pairs a lane keeps (AttentionDropout). Of an accumulator a lane holds, of every
// eight rows and every eight columns, one row and two neighbouring columns (attention_mma.cuh): its
// pairs of 32 queries and 16 keys are those that two numbers are for, whichever side is the rows.

#include "kernels/attention/attention_gpu_table.h"
#include "kernels/common/philox.cuh"

namespace trireme::cuda::attention {

/// Of a lane's two columns bits[0] and bits[1].
struct KeptPairs {
  std::uint32_t bits[2];
  /// x, or 0 where the pair is dropped.
  [[nodiscard]] __device__ __forceinline__ float of(float x, int bit, int column) const {
    return (bits[column] >> bit & 1U) != 0 ? x : 0.0F;
  }
};

/// The pairs of a head of a sequence.
class HeadPairs {
 public:
  __device__ __forceinline__ HeadPairs(const AttentionDropping& dropping, std::uint32_t sample,
                                       int head)
      : dropping_(dropping),
        sample_(sample),
        head_(dropping.first_head + static_cast<std::uint32_t>(head)) {}

  /// Bit 4 n + a: query `query` + 8 a and key `key` + 8 n are kept, of some a < 4 and n < 8.
  template <int kQueries, int kKeys>
  [[nodiscard]] __device__ __forceinline__ std::uint32_t kept(int query, int key) const {
    static_assert(kQueries <= 4 && kKeys <= 8);
    const int first_query = query / 8, first_key = key / 8;
    std::uint32_t bits = 0;
#pragma unroll 1
    for (int b = first_key / 2; b <= (first_key + kKeys - 1) / 2; ++b) {
#pragma unroll 1
      for (int a = first_query / 4; a <= (first_query + kQueries - 1) / 4; ++a) {
        std::uint32_t words[4] = {static_cast<std::uint32_t>(8 * a + query % 8), sample_,
                                  static_cast<std::uint32_t>(8 * b + key % 8), head_};
        philox(dropping_.key, words);
        std::uint32_t block = 0;  // of chunks 4 a to 4 a + 3 and 2 b, 2 b + 1
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          if ((words[word] & 0xffffU) >= dropping_.dropped) block |= 1U << word;
          if (words[word] >> 16 >= dropping_.dropped) block |= 16U << word;
        }
        const int by_queries = 4 * a - first_query, by_keys = 2 * b - first_key;
        const std::uint32_t row = by_queries < 0 ? 0xfU >> -by_queries : 0xfU << by_queries & 0xfU;
        block = (by_queries < 0 ? block >> -by_queries : block << by_queries) & row * 0x11U;
        bits |= by_keys < 0 ? block >> 4 : block << (4 * by_keys);
      }
    }
    constexpr std::uint32_t kMask = kKeys < 8 ? (1U << (4 * (kKeys % 8))) - 1 : ~0U;
    return bits & kMask;
  }

  /// Rows are queries: bit 4 n + a of row `query` + 8 a, columns `key` + 8 n and the next.
  template <int kRows, int kColumns>
  [[nodiscard]] __device__ __forceinline__ KeptPairs of_query_rows(int query, int key) const {
    return {{kept<kRows, kColumns>(query, key), kept<kRows, kColumns>(query, key + 1)}};
  }
  /// Rows are keys, `key` and `key` + 8: bit 8 (n / 4) + 4 a + n % 4 of row a, columns `query` + 8
  /// n and the next.
  template <int kColumns>
  [[nodiscard]] __device__ __forceinline__ KeptPairs of_key_rows(int query, int key) const {
    constexpr int kPart = kColumns < 4 ? kColumns : 4;
    KeptPairs pairs = {{0, 0}};
#pragma unroll
    for (int first = 0; first < kColumns; first += kPart)
#pragma unroll
      for (int column = 0; column < 2; ++column)
        pairs.bits[column] |= kept<kPart, 2>(query + 8 * first + column, key) << (2 * first);
    return pairs;
  }

 private:
  const AttentionDropping& dropping_;
  std::uint32_t sample_, head_;
};

/// What kernels are made for: dropout, or none, of which nothing is left in their code.
struct Dropping {
  AttentionDropping args;
  static constexpr bool kDrops = true;
  using Kept = KeptPairs;

  [[nodiscard]] __device__ __forceinline__ std::uint32_t sample(std::int64_t sequence) const {
    return args.samples[sequence * args.stride];
  }
  [[nodiscard]] __device__ __forceinline__ float factor() const { return args.factor; }
};
struct NoDropping {
  static constexpr bool kDrops = false;
  struct Kept {
    [[nodiscard]] __device__ __forceinline__ float of(float x, int /*bit*/, int /*column*/) const {
      return x;
    }
  };
  [[nodiscard]] __device__ __forceinline__ std::uint32_t sample(std::int64_t /*sequence*/) const {
    return 0;
  }
  [[nodiscard]] __device__ __forceinline__ float factor() const { return 1; }
};

}  // namespace trireme::cuda::attention
