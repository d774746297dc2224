#include "kernels/common/philox.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/dropout/dropout_table.h"

namespace trireme::cuda {
namespace {

/// A thread: the columns of a row that one number serves. kWhole: all of them lie together,
/// aligned.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kTurnThreads)
    dropout_kernel(DropoutArgs args, std::int64_t first_group, std::int64_t groups) {
  const std::int64_t item = std::int64_t{blockIdx.x} * kTurnThreads + threadIdx.x;
  const std::int64_t row = item / groups;
  if (row >= args.rows) return;
  const std::int64_t group = first_group + item % groups;
  const std::int64_t column = group * kDropoutGroup - args.first_column;
  const T* x = static_cast<const T*>(args.x) + row * args.columns;
  T* y = static_cast<T*>(args.y) + row * args.columns;
  const auto counter = static_cast<std::uint64_t>(group);
  std::uint32_t words[4] = {args.tokens[2 * row + 1], args.tokens[2 * row],
                            static_cast<std::uint32_t>(counter),
                            static_cast<std::uint32_t>(counter >> 32)};
  philox(args.key, words);
  const auto kept = [&](int i) {
    const std::uint32_t number = i % 2 == 0 ? words[i / 2] & 0xffffU : words[i / 2] >> 16;
    return number >= args.dropped ? args.factor : 0.0F;
  };
  if constexpr (kWhole) {
    constexpr int kWidth = kWide<T>;
#pragma unroll
    for (int first = 0; first < kDropoutGroup; first += kWidth) {
      Vector<T, kWidth> values = load<kWidth>(x + column + first);
#pragma unroll
      for (int k = 0; k < kWidth; ++k)
        values.at[k] = from_float<T>(to_float(values.at[k]) * kept(first + k));
      store(y + column + first, values);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kDropoutGroup; ++i) {
      if (column + i < 0 || column + i >= args.columns) continue;
      y[column + i] = from_float<T>(to_float(x[column + i]) * kept(i));
    }
  }
}

void dropout(const DropoutArgs& args) {
  const bool whole = args.columns % kDropoutGroup == 0 && args.first_column % kDropoutGroup == 0 &&
                     aligned_to_16(args.y, args.x);
  const LaunchConfig config = config_of_turns(args.exec, 1, args.rows * args.groups(), "dropout");
  for_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    whole ? launch(dropout_kernel<T, true>, config, args, args.first_group(), args.groups())
          : launch(dropout_kernel<T, false>, config, args, args.first_group(), args.groups());
  });
}

}  // namespace

const DropoutKernels dropout_cuda = {dropout};

}  // namespace trireme::cuda
