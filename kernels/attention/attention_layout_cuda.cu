// Between the layouts and types of what makes gradients of attention and what reads them.

#include "kernels/attention/attention_cuda.h"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/turns.cuh"

namespace trireme::cuda::attention {
namespace {

constexpr int kTurns = 4;
constexpr int kVector = 4;  // 16 bytes of f32, 8 of bf16

/// to[b, i, j] = from[b, j, i]; item: an element of `to`, which is [B, rows, columns].
__global__ void __launch_bounds__(kTurnThreads)
    turn_kernel(float* to, const float* from, std::int64_t items, FastDivide rows,
                FastDivide columns, std::int64_t row_count, std::int64_t column_count) {
  for_each_item<kTurns>(
      items,
      [&](std::int64_t item) {
        const auto index = static_cast<unsigned>(item);
        const unsigned line = columns.quotient(index), column = columns.remainder(index, line);
        const unsigned sequence = rows.quotient(line), row = rows.remainder(line, sequence);
        return from[(sequence * column_count + column) * row_count + row];
      },
      [&](std::int64_t item, float value) { to[item] = value; });
}

template <int kWidth>
struct Summands {
  Vector<float, kWidth> sum;
  Vector<bf16, kWidth> more;
};

/// Item: kWidth neighbours of a token.
template <int kWidth>
__global__ void __launch_bounds__(kTurnThreads)
    add_heads_kernel(float* to, std::int64_t stride, const bf16* from, std::int64_t items,
                     FastDivide of_token) {
  const auto place = [&](std::int64_t item) {
    const auto index = static_cast<unsigned>(item);
    const unsigned token = of_token.quotient(index);
    return to + token * stride + std::int64_t{of_token.remainder(index, token)} * kWidth;
  };
  for_each_item<kTurns>(
      items,
      [&](std::int64_t item) {
        return Summands<kWidth>{load<kWidth>(static_cast<const float*>(place(item))),
                                load<kWidth>(from + item * kWidth)};
      },
      [&](std::int64_t item, const Summands<kWidth>& in) {
        Vector<float, kWidth> sum;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) sum.at[k] = in.sum.at[k] + to_float(in.more.at[k]);
        store(place(item), sum);
      });
}

template <int kWidth>
void launch_add_heads(const AttentionAddHeads& args) {
  const std::int64_t of_token = args.heads * args.head_dim / kWidth;
  const std::int64_t items = args.tokens * of_token;
  launch(add_heads_kernel<kWidth>, config_of_turns(args.exec, kTurns, items, "attention_backward"),
         args.to.data, args.to.stride, static_cast<const bf16*>(args.from), items,
         FastDivide(of_token));
}

/// Item: kWidth neighbours of a token.
template <int kWidth>
__global__ void __launch_bounds__(kTurnThreads)
    round_heads_kernel(AttentionHeads<void> to, AttentionHeads<const float> from,
                       std::int64_t items, FastDivide of_token) {
  const auto place = [&](std::int64_t item, std::int64_t stride) {
    const auto index = static_cast<unsigned>(item);
    const unsigned token = of_token.quotient(index);
    return token * stride + std::int64_t{of_token.remainder(index, token)} * kWidth;
  };
  for_each_item<kTurns>(
      items, [&](std::int64_t item) { return load<kWidth>(from.data + place(item, from.stride)); },
      [&](std::int64_t item, const Vector<float, kWidth>& in) {
        Vector<bf16, kWidth> rounded;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) rounded.at[k] = from_float<bf16>(in.at[k]);
        store(static_cast<bf16*>(to.data) + place(item, to.stride), rounded);
      });
}

template <int kWidth>
void launch_round_heads(const AttentionRoundHeads& args) {
  const std::int64_t of_token = args.heads * args.head_dim / kWidth;
  const std::int64_t items = args.tokens * of_token;
  launch(round_heads_kernel<kWidth>,
         config_of_turns(args.exec, kTurns, items, "attention_backward"), args.to, args.from, items,
         FastDivide(of_token));
}

}  // namespace

void transpose_lse(const AttentionTransposeLse& args) {
  const bool by_head = args.to_order == AttentionTransposeLse::Order::kByHead;
  const std::int64_t rows = by_head ? args.heads : args.tokens,
                     columns = by_head ? args.tokens : args.heads;
  const std::int64_t items = args.sequences * rows * columns;
  launch(turn_kernel, config_of_turns(args.exec, kTurns, items, "attention"), args.to, args.from,
         items, FastDivide(rows), FastDivide(columns), rows, columns);
}

void add_heads(const AttentionAddHeads& args) {
  const bool vectors = args.head_dim % kVector == 0 && args.to.stride % kVector == 0 &&
                       aligned_to_16(args.to.data, args.from);
  (vectors ? launch_add_heads<kVector> : launch_add_heads<1>)(args);
}

void round_heads(const AttentionRoundHeads& args) {
  const bool vectors = args.head_dim % kVector == 0 && args.from.stride % kVector == 0 &&
                       args.to.stride % kVector == 0 && aligned_to_16(args.to.data, args.from.data);
  (vectors ? launch_round_heads<kVector> : launch_round_heads<1>)(args);
}

}  // namespace trireme::cuda::attention
