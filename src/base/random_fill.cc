// Many normal numbers at once: the arithmetic of normal() on four indices per instruction. Initial
// values of a large model are the longest part of a start; integers and one exact product give the
// same bits in either version. No std:: template in the vector version: the linker keeps one copy
// of those for the whole program, which must not be one that needs AVX2.

#include <immintrin.h>

#include "base/random.h"

namespace trireme {

namespace {

constexpr int kRounds = 10, kLanes = 4;

// State words lie in the low halves of 64-bit lanes; what is above them is never looked at.
struct Words {
  __m256i w0, w1, w2, w3;
};

#define TRIREME_AVX2 __attribute__((target("avx2"), always_inline)) inline

TRIREME_AVX2 Words philox_lanes(Words c, const __m256i* keys) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  for (int round = 0; round < kRounds; ++round) {
    const __m256i p0 = _mm256_mul_epu32(m0, c.w0), p1 = _mm256_mul_epu32(m1, c.w2);
    c.w0 = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c.w1, keys[2 * round]));
    c.w1 = p1;
    c.w2 = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c.w3, keys[2 * round + 1]));
    c.w3 = p0;
  }
  return c;
}

/// The two 16-bit halves of a word, added.
TRIREME_AVX2 __m256i halves(__m256i word) {
  const __m256i low = _mm256_set1_epi64x(0xffff);
  return _mm256_add_epi64(_mm256_and_si256(word, low),
                          _mm256_and_si256(_mm256_srli_epi64(word, 16), low));
}

__attribute__((target("avx2"))) void fill_vectors(std::uint64_t key, std::uint64_t first,
                                                  float scale, float* out, std::size_t vectors) {
  __m256i keys[2 * kRounds];
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    keys[2 * round] = _mm256_set1_epi64x(k0);
    keys[2 * round + 1] = _mm256_set1_epi64x(k1);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  const __m256i one = _mm256_set1_epi64x(1), zero = _mm256_setzero_si256();
  const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  __m256i index = _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(first)),
                                   _mm256_setr_epi64x(0, 1, 2, 3));
  for (std::size_t v = 0; v < vectors; ++v) {
    const Words counter = {index, _mm256_srli_epi64(index, 32), one, zero};
    const Words a = philox_lanes(counter, keys);
    const Words b = philox_lanes({counter.w0, counter.w1, _mm256_add_epi64(one, one), zero}, keys);
    __m256i sum = _mm256_add_epi64(halves(a.w0), halves(a.w1));
    sum = _mm256_add_epi64(sum, _mm256_add_epi64(halves(a.w2), halves(a.w3)));
    sum = _mm256_add_epi64(sum, _mm256_add_epi64(halves(b.w0), halves(b.w1)));
    sum = _mm256_add_epi64(sum, _mm256_set1_epi64x(6 - 6 * 65536));
    const __m128i sums = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(sum, even));
    const __m128 value = _mm_mul_ps(_mm_cvtepi32_ps(sums), _mm_set1_ps(0x1p-16F));
    _mm_storeu_ps(out + v * kLanes, _mm_mul_ps(_mm_set1_ps(scale), value));
    index = _mm256_add_epi64(index, _mm256_set1_epi64x(kLanes));
  }
}

#undef TRIREME_AVX2

}  // namespace

void fill_normal(std::uint64_t key, std::uint64_t first, float scale, std::span<float> out) {
  std::size_t done = 0;
  if (__builtin_cpu_supports("avx2")) {
    fill_vectors(key, first, scale, out.data(), out.size() / kLanes);
    done = out.size() / kLanes * kLanes;
  }
  for (; done < out.size(); ++done) out[done] = scale * normal(key, first + done);
}

void fill_uniform(std::uint64_t key, std::uint64_t first, float bound, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = bound * (2 * uniform(key, first + i) - 1);
}

}  // namespace trireme
