#pragma once
// The warp of the backward kernel for Hopper that brings what is known of queries: a number or a
// few each, which lie too far apart for TMA.

#include "kernels/attention/attention_backward.cuh"
#include "kernels/attention/attention_sm90.cuh"

namespace trireme::cuda::attention {

/// What weights depend on besides the scores, of a lane's queries of a tile.
template <class B>
struct QueryRows {
  static constexpr int kRows = B::kQueries / 32;
  float lse_log2[kRows], delta[kRows];
  int first_key[kRows];
};

template <class B>
__device__ __forceinline__ void load_query_rows(QueryRows<B>& rows,
                                                const AttentionGpuBackward& args,
                                                const typename B::Work& work,
                                                const BackwardStep& step) {
  const std::int64_t first = work.q_row + step.tile.index;
  const float* lses = args.lse + first * args.shape.heads + step.head;
  const float* deltas = args.delta + first * args.shape.heads + step.head;
#pragma unroll
  for (int i = 0; i < QueryRows<B>::kRows; ++i) {
    const int row = ptx::lane() + i * 32;
    float lse = 0, delta = 0;
    int first_key = 0x7fffffff;
    if (row < step.tile.count) {
      lse = lses[row * args.shape.heads] * kLog2E;
      delta = deltas[row * args.shape.heads];
      first_key = first_visible(args.first_key == nullptr ? 0 : args.first_key[first + row],
                                step.tile.position + row, args.reach);
    }
    rows.lse_log2[i] = lse;
    rows.delta[i] = delta;
    rows.first_key[i] = min(max(first_key, work.own.position) - work.own.position, B::kKeys);
  }
}

/// A tile's are asked for before its stage is free.
template <class B>
__device__ __forceinline__ void bring_query_rows(typename B::Smem& s,
                                                 const AttentionGpuBackward& args,
                                                 typename B::Work& work) {
  for (Ring<B::kStages> ring;; ring.advance()) {
    const BackwardStep step = work.next();
    QueryRows<B> rows;
    load_query_rows<B>(rows, args, work, step);
    ptx::mbarrier_wait(&s.empty[ring.stage], ring.parity ^ 1);
#pragma unroll
    for (int i = 0; i < QueryRows<B>::kRows; ++i) {
      const int row = ptx::lane() + i * 32;
      s.lse_log2[ring.stage][row] = rows.lse_log2[i];
      s.delta[ring.stage][row] = rows.delta[i];
      s.first_key[ring.stage][row] = static_cast<std::int16_t>(rows.first_key[i]);
    }
    release(&s.full[ring.stage]);
    if (step.tile.count == 0) return;
  }
}

}  // namespace trireme::cuda::attention
