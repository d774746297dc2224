#include "kernels/common/parallel.h"
#include "kernels/common/philox.h"
#include "kernels/common/simd.h"
#include "kernels/dropout/dropout_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr int kGroups = kPhiloxNumbers;  // whose numbers are made together
constexpr int kBlock = kGroups * kDropoutGroup;

/// The factors of the kBlock columns from `first_group` on.
void factors_of(const DropoutArgs& args, std::int64_t row, std::int64_t first_group,
                float* factors) {
  PhiloxNumbers numbers;
  for (int i = 0; i < kGroups; ++i) {
    const auto group = static_cast<std::uint64_t>(first_group + i);
    numbers.words[0][i] = args.tokens[2 * row + 1];
    numbers.words[1][i] = args.tokens[2 * row];
    numbers.words[2][i] = static_cast<std::uint32_t>(group);
    numbers.words[3][i] = static_cast<std::uint32_t>(group >> 32);
  }
  numbers.draw(args.key);
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
