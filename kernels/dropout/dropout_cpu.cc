#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/dropout/dropout_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr int kGroups = 16;  // whose numbers are made together, for vectors of 8 and 16
constexpr int kBlock = kGroups * kDropoutGroup;

/// Philox-4x32-10 of counters (token, first_group + i) as base/random.h has it.
struct Numbers {
  std::uint32_t words[4][kGroups];

  Numbers(std::uint64_t key, const std::uint32_t* token, std::uint64_t first_group) {
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int i = 0; i < kGroups; ++i) {
      const std::uint64_t group = first_group + static_cast<std::uint64_t>(i);
      words[0][i] = token[1];
      words[1][i] = token[0];
      words[2][i] = static_cast<std::uint32_t>(group);
      words[3][i] = static_cast<std::uint32_t>(group >> 32);
    }
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kGroups; ++i) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53} * words[0][i];
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * words[2][i];
        words[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ words[1][i] ^ k0;
        words[1][i] = static_cast<std::uint32_t>(p1);
        words[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ words[3][i] ^ k1;
        words[3][i] = static_cast<std::uint32_t>(p0);
      }
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
  }
};

/// The factors of the kBlock columns from `first_group` on.
void factors_of(const DropoutArgs& args, std::int64_t row, std::int64_t first_group,
                float* factors) {
  const Numbers numbers(args.key, args.tokens + 2 * row, static_cast<std::uint64_t>(first_group));
  for (int i = 0; i < kGroups; ++i) {
    for (int word = 0; word < 4; ++word) {
      const std::uint32_t two = numbers.words[word][i];
      float* const to = factors + i * kDropoutGroup + 2 * word;
      to[0] = (two & 0xffffU) >= args.dropped ? args.factor : 0.0F;
      to[1] = (two >> 16) >= args.dropped ? args.factor : 0.0F;
    }
  }
}

template <class T>
void row_of(const DropoutArgs& args, std::int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.columns;
  T* y = static_cast<T*>(args.y) + row * args.columns;
  float factors[kBlock];
  std::int64_t column = 0;
  for (std::int64_t group = args.first_group(); column < args.columns; group += kGroups) {
    factors_of(args, row, group, factors);
    const std::int64_t skipped = args.first_column + column - group * kDropoutGroup;
    const std::int64_t count =
        kBlock - skipped < args.columns - column ? kBlock - skipped : args.columns - column;
    for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
      (F32::load(x + column + i, lanes) * F32::load(factors + skipped + i, lanes))
          .store(y + column + i, lanes);
    });
    column += count;
  }
}

void dropout(const DropoutArgs& args) {
  parallel_ranges(args.exec, args.rows, 8 * args.columns,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      if (args.dtype == DType::kF32)
                        row_of<float>(args, row);
                      else
                        row_of<BFloat16>(args, row);
                    }
                  });
}

}  // namespace

const DropoutKernels dropout_cpu = {dropout};

}  // namespace trireme::TRIREME_ISA
