#include "kernels/attention/attention_cpu.h"

#include "kernels/attention/attention_tile.h"
#include "kernels/common/parallel.h"

namespace trireme::TRIREME_ISA {
namespace {

/// body(token, head): each (token, head) on its own.
template <class Args, class Body>
TRIREME_INLINE void for_each_head(const Args& args, const Body& body) {
  parallel_ranges(args.exec, args.tokens, args.heads * args.head_dim,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      for (std::int64_t h = 0; h < args.heads; ++h) body(t, h);
                    }
                  });
}

template <class T>
void delta_of(const AttentionRowsArgs& args) {
  for_each_head(args, [&](std::int64_t t, std::int64_t h) {
    const T* d_o = row_of_head<const T>(args.d_o, t, h, args.head_dim);
    const T* o = row_of_head<const T>(args.o2, t, h, args.head_dim);
    F32 sum = F32::zero();
    for_each_vector(0, args.head_dim, [&](std::int64_t d, auto lanes) {
      sum = fma(F32::load(d_o + d, lanes), F32::load(o + d, lanes), sum);
    });
    args.delta[t * args.heads + h] = reduce_add(sum);
  });
}

void delta(const AttentionRowsArgs& args) {
  if (args.type == DType::kF32) return delta_of<float>(args);
  delta_of<BFloat16>(args);
}

template <class T>
void merge_of(const AttentionRowsArgs& args) {
  for_each_head(args, [&](std::int64_t t, std::int64_t h) {
    T* o = row_of_head<T>(args.o, t, h, args.head_dim);
    const T* o2 = row_of_head<const T>(args.o2, t, h, args.head_dim);
    float* lse = args.lse + t * args.heads + h;
    const F32 a = F32::broadcast(*lse), b = F32::broadcast(args.lse2[t * args.heads + h]);
    const F32 lowest = F32::broadcast(-kAttentionInfinity), larger = max(a, b);
    if (any(larger == lowest)) return;  // neither saw a key: O stays 0
    const F32 e = exp(a - larger), e2 = exp(b - larger), sum = e + e2;
    const F32 weight = e / sum, weight2 = e2 / sum;
    (larger + log(sum)).store(lse, Tail(1));
    for_each_vector(0, args.head_dim, [&](std::int64_t d, auto lanes) {
      const F32 part = F32::load(o2 + d, lanes) * weight2;
      fma(F32::load(o + d, lanes), weight, part).store(o + d, lanes);
    });
  });
}

void merge(const AttentionRowsArgs& args) {
  if (args.type == DType::kF32) return merge_of<float>(args);
  merge_of<BFloat16>(args);
}

template <class T>
void sinks_of(const AttentionSinksArgs& args) {
  for_each_head(args, [&](std::int64_t t, std::int64_t h) {
    T* o = row_of_head<T>(args.o, t, h, args.head_dim);
    float* lse = args.joined_lse + t * args.heads + h;
    const F32 sink = F32::load(static_cast<const T*>(args.sink) + h, Tail(1));
    const F32 a = F32::broadcast(*lse), b = F32::broadcast(reduce_add(sink));
    const F32 larger = max(b, a), e = exp(a - larger), sum = e + exp(b - larger);
    const F32 weight = e / sum;
    (larger + log(sum)).store(lse, Tail(1));
    for_each_vector(0, args.head_dim, [&](std::int64_t d, auto lanes) {
      (F32::load(o + d, lanes) * weight).store(o + d, lanes);
    });
  });
}

void sinks(const AttentionSinksArgs& args) {
  if (args.type == DType::kF32) return sinks_of<float>(args);
  sinks_of<BFloat16>(args);
}

template <class T>
void sink_terms_of(const AttentionSinksArgs& args) {
  const T* sink = static_cast<const T*>(args.sink);
  constexpr std::int64_t kWorkPerElement = 8;
  parallel_ranges(
      args.exec, args.tokens, args.heads * kWorkPerElement,
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          const std::int64_t row = t * args.heads;
          for_each_vector(0, args.heads, [&](std::int64_t h, auto lanes) {
            const F32 p = exp(F32::load(sink + h, lanes) - F32::load(args.lse + row + h, lanes));
            (-(p * F32::load(args.delta + row + h, lanes))).store(args.terms + row + h, lanes);
          });
        }
      });
}

void sink_terms(const AttentionSinksArgs& args) {
  if (args.type == DType::kF32) return sink_terms_of<float>(args);
  sink_terms_of<BFloat16>(args);
}

}  // namespace

const AttentionKernels attention_cpu = {attention_forward_scratch,
                                        attention_backward_scratch,
                                        attention_forward,
                                        attention_forward_few,
                                        attention_cached_scratch,
                                        attention_cached,
                                        attention_backward,
                                        merge,
                                        delta,
                                        sinks,
                                        sink_terms};

}  // namespace trireme::TRIREME_ISA
