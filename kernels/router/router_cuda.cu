#include "kernels/common/activation.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/router/router_table.h"

namespace trireme::cuda {
namespace {

// A warp takes a token. Expert e stands in lane e % 32, in its register e / 32.
constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr float kLowest = -3.402823466e38F;

__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ std::int64_t token_of_warp() {
  return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
}

/// How many experts a lane has, as a type.
template <int kCount>
struct PerLane {
  static constexpr int value = kCount;
};

/// body(register, expert) for the experts of a lane.
template <int kValues, class Body>
__device__ __forceinline__ void for_each_expert(std::int64_t experts, Body body) {
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
    const int expert = v * 32 + lane_of_warp();
    if (expert < experts) body(v, expert);
  }
}

struct Softmax {
  float base, inverse, lse;

  [[nodiscard]] __device__ __forceinline__ float score(float logit) const {
    return expf(logit - base) * inverse;
  }
};
/// Where all is -inf or an infinity is among them, scores become NaN.
template <int kValues>
__device__ __forceinline__ Softmax softmax_of(const float (&logits)[kValues]) {
  float maximum = -INFINITY, sum = 0;
#pragma unroll
  for (int v = 0; v < kValues; ++v) maximum = fmaxf(maximum, logits[v]);
  maximum = warp_max(maximum);
  const float base = maximum == -INFINITY ? 0.0F : maximum;
#pragma unroll
  for (int v = 0; v < kValues; ++v) sum += expf(logits[v] - base);
  sum = warp_sum(sum);
  return {base, 1.0F / sum, base + logf(sum)};
}

/// -inf behind the last expert.
template <int kValues>
__device__ __forceinline__ void load_logits(float (&logits)[kValues], const float* of_token,
                                            std::int64_t experts) {
#pragma unroll
  for (int v = 0; v < kValues; ++v) logits[v] = -INFINITY;
  for_each_expert<kValues>(experts, [&](int v, int e) { logits[v] = of_token[e]; });
}

// ---- choice ----

/// The place of the largest of c, the first of equal ones, in all lanes.
template <int kValues>
__device__ __forceinline__ int largest(const float (&c)[kValues]) {
  float value = -INFINITY;
  int place = kValues * 32;
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
    if (c[v] > value) value = c[v], place = v * 32 + lane_of_warp();
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, offset);
    const int other_place = __shfl_xor_sync(kAllLanes, place, offset);
    if (other > value || (other == value && other_place < place))
      value = other, place = other_place;
  }
  return place;
}

/// Lane i gets the place of the i-th largest of c, for i < count. They leave c.
template <int kValues>
__device__ __forceinline__ int choose(float (&c)[kValues], std::int64_t count) {
  int chosen = 0;
  for (int i = 0; i < count; ++i) {
    const int place = largest(c);
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      if (place == v * 32 + lane_of_warp()) c[v] = -INFINITY;
    }
    if (lane_of_warp() == i) chosen = place;
  }
  return chosen;
}

/// The sum of a group's two largest.
__device__ __forceinline__ float group_score(const float* c, int size) {
  float first = c[0], second = -INFINITY;
  for (int e = 1; e < size; ++e) {
    second = fmaxf(second, fminf(first, c[e]));
    first = fmaxf(first, c[e]);
  }
  return size == 1 ? first : fmaxf(first + second, kLowest);
}

template <int kValues>
struct Candidates {
  float of_warp[kWarps][kValues * 32];
};

/// c becomes kLowest outside the best groups; a lane looks at one of them.
template <int kValues>
__device__ __forceinline__ void keep_best_groups(float (&c)[kValues], std::int64_t experts,
                                                 const RouterRule& rule) {
  float* all = smem<Candidates<kValues>>().of_warp[threadIdx.x / 32];
  for_each_expert<kValues>(experts, [&](int v, int e) { all[e] = c[v]; });
  __syncwarp();
  const int size = static_cast<int>(experts / rule.groups);
  float score[1] = {-INFINITY};
  if (lane_of_warp() < rule.groups) score[0] = group_score(all + lane_of_warp() * size, size);
  unsigned kept = 0;
  for (int i = 0; i < rule.groups_chosen; ++i) {
    const int group = largest(score);
    kept |= 1U << group;
    if (lane_of_warp() == group) score[0] = -INFINITY;
  }
  for_each_expert<kValues>(experts, [&](int v, int e) {
    if ((kept >> (e / size) & 1U) == 0) c[v] = kLowest;
  });
}

__device__ __forceinline__ float score_of(const RouterRule& rule, const Softmax& softmax,
                                          float logit) {
  return rule.score == RouterScore::kSoftmax ? softmax.score(logit) : sigmoid(logit);
}

/// Of the scores that lanes have of the chosen experts, 0 in other lanes.
__device__ __forceinline__ float sum_of_chosen(const RouterRule& rule, float score) {
  const float sum = warp_sum(score);
  return rule.score == RouterScore::kSigmoid ? sum + kRouterSumMin : sum;
}

template <class Values>
__global__ void __launch_bounds__(kThreads) forward_kernel(RouterForwardArgs args) {
  constexpr int kValues = Values::value;
  const std::int64_t t = token_of_warp(), experts = args.rows.experts, k = args.rule.chosen;
  if (t >= args.rows.tokens) return;
  const float* of_token = args.logits + t * experts;
  float logits[kValues], s[kValues], c[kValues];
  load_logits(logits, of_token, experts);
  const Softmax softmax = softmax_of(logits);
  bool nan = false;
#pragma unroll
  for (int v = 0; v < kValues; ++v) s[v] = c[v] = -INFINITY;
  for_each_expert<kValues>(experts, [&](int v, int e) {
    nan |= logits[v] != logits[v];
    s[v] = score_of(args.rule, softmax, logits[v]);
    c[v] = fmaxf(args.bias == nullptr ? s[v] : s[v] + args.bias[e], kLowest);
    s[v] = fmaxf(s[v], kLowest);
  });
  nan = __any_sync(kAllLanes, nan) != 0;
  const bool grouped = args.rule.groups_chosen < args.rule.groups;
  if (grouped) keep_best_groups(c, experts, args.rule);
  const int chosen = choose(c, k);
  const bool holds = lane_of_warp() < k;
  const float score = holds ? score_of(args.rule, softmax, of_token[chosen]) : 0.0F;
  const float sum = args.rule.normalized ? sum_of_chosen(args.rule, score) : 1.0F;
  int before = 0;  // chosen experts of lower index
  for (int i = 0; i < k; ++i) before += __shfl_sync(kAllLanes, chosen, i) < chosen ? 1 : 0;
  const std::int64_t sequence = (args.rows.first_token + t) / args.rows.tokens_per_sequence;
  if (holds) {
    args.chosen[t * k + before] = chosen;
    args.weights[t * k + before] = nan ? NAN : args.rule.scale * score / sum;
    if (args.load != nullptr) atomicAdd(&args.load[sequence * experts + chosen], 1);
  }
  if (args.balance == nullptr) return;
  const int best = grouped || args.bias != nullptr ? choose(s, k) : chosen;
  if (holds) atomicAdd(&args.balance[sequence * experts + best], 1);
}

// ---- gradient ----

/// ds = balance's gradient to s; gives <balance, p>. That ds loses its mean leaves a softmax's
/// gradient as it is.
template <int kValues>
__device__ __forceinline__ float balance_gradient(float (&ds)[kValues], const float (&s)[kValues],
                                                  const float* balance, std::int64_t experts,
                                                  RouterScore score) {
  float all = 0, loss = 0;
  for_each_expert<kValues>(experts, [&](int v, int e) {
    ds[v] = balance[e];
    all += s[v];
    loss = fmaf(ds[v], s[v], loss);
  });
  const float sum = score == RouterScore::kSoftmax ? 1.0F : warp_sum(all) + kRouterSumMin;
  loss = warp_sum(loss) / sum;
#pragma unroll
  for (int v = 0; v < kValues; ++v) ds[v] = (ds[v] - loss) / sum;
  return loss;
}

/// ds of the chosen experts is added: lane i has the i-th's.
template <int kValues>
__device__ __forceinline__ void add_weights_gradient(float (&ds)[kValues],
                                                     const RouterBackwardArgs& args, std::int64_t t,
                                                     const Softmax& softmax) {
  const RouterRule& rule = args.rule;
  const std::int64_t slot = t * rule.chosen + lane_of_warp();
  const bool holds = lane_of_warp() < rule.chosen;
  const int chosen = holds ? args.chosen[slot] : -1;
  const float dweight = holds ? args.dweights[slot] : 0.0F;
  float own = rule.scale * dweight;
  if (rule.normalized) {
    const float logit = holds ? args.logits[t * args.rows.experts + chosen] : 0.0F;
    const float score = holds ? score_of(rule, softmax, logit) : 0.0F;
    const float sum = sum_of_chosen(rule, score), mean = warp_sum(dweight * score) / sum;
    own = rule.scale / sum * (dweight - mean);
  }
  for (int i = 0; i < rule.chosen; ++i) {
    const int expert = __shfl_sync(kAllLanes, chosen, i);
    const float d = __shfl_sync(kAllLanes, own, i);
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      if (expert == v * 32 + lane_of_warp()) ds[v] += d;
    }
  }
}

template <class Values, class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(RouterBackwardArgs args) {
  constexpr int kValues = Values::value;
  const std::int64_t t = token_of_warp(), experts = args.rows.experts;
  if (t >= args.rows.tokens) return;
  const bool softmaxed = args.rule.score == RouterScore::kSoftmax;
  float logits[kValues], s[kValues] = {}, ds[kValues] = {};
  load_logits(logits, args.logits + t * experts, experts);
  const Softmax softmax = softmax_of(logits);
  for_each_expert<kValues>(experts,
                           [&](int v, int) { s[v] = score_of(args.rule, softmax, logits[v]); });
  float loss = 0, mean = 0;
  if (args.balance != nullptr) {
    const std::int64_t sequence = (args.rows.first_token + t) / args.rows.tokens_per_sequence;
    const float* balance = args.balance + sequence * experts;
    loss = balance_gradient(ds, s, balance, experts, args.rule.score);
  }
  add_weights_gradient(ds, args, t, softmax);
  if (softmaxed) {
#pragma unroll
    for (int v = 0; v < kValues; ++v) mean = fmaf(s[v], ds[v], mean);
    mean = warp_sum(mean);
  }
  const float factor = args.z == 0 ? 0.0F : 2 * args.z * softmax.lse;
  for_each_expert<kValues>(experts, [&](int v, int e) {
    const float routed = softmaxed ? s[v] * (ds[v] - mean) : s[v] * (1.0F - s[v]) * ds[v];
    const float p = args.z == 0 || softmaxed ? s[v] : softmax.score(logits[v]);
    static_cast<T*>(args.dlogits)[t * experts + e] = from_float<T>(fmaf(factor, p, routed));
  });
  if (lane_of_warp() != 0) return;
  args.token_losses[t] = loss;
  args.token_losses[args.rows.tokens + t] = softmax.lse;
}

constexpr int kSumThreads = 256;

struct Partials {
  double balance[kSumThreads / 32], z[kSumThreads / 32];
};

/// Each thread adds every kSumThreads-th token, a tree the threads.
__global__ void __launch_bounds__(kSumThreads) losses_kernel(RouterBackwardArgs args) {
  Partials& partials = smem<Partials>();
  double balance = 0, z = 0;
#pragma unroll 4
  for (std::int64_t t = threadIdx.x; t < args.rows.tokens; t += kSumThreads) {
    const double lse = args.token_losses[args.rows.tokens + t];
    balance += args.token_losses[t];
    z += lse * lse;
  }
  balance = block_sum<double, kSumThreads>(balance, partials.balance);
  z = block_sum<double, kSumThreads>(z, partials.z);
  if (threadIdx.x != 0) return;
  if (args.balance != nullptr) args.losses[0] += balance;
  if (args.z != 0) args.losses[1] += args.z * z;
}

// ---- launches ----

/// call(how many experts a lane has).
template <class Call>
void for_experts(std::int64_t experts, Call call) {
  if (experts <= 32) return call(PerLane<1>());
  if (experts <= 128) return call(PerLane<4>());
  if (experts <= 256) return call(PerLane<8>());
  if (experts <= 512) return call(PerLane<16>());
  call(PerLane<32>());
}

LaunchConfig config_of(const Exec& exec, std::int64_t tokens, const char* name) {
  return {.grid = static_cast<unsigned>(blocks_for(tokens, kWarps)),
          .block = kThreads,
          .stream = stream_of(exec),
          .name = name};
}

void forward(const RouterForwardArgs& args) {
  for_experts(args.rows.experts, [&](auto values) {
    constexpr int kValues = decltype(values)::value;
    LaunchConfig config = config_of(args.exec, args.rows.tokens, "router_forward");
    if (args.rule.groups_chosen < args.rule.groups) config.smem_bytes = sizeof(Candidates<kValues>);
    launch(forward_kernel<decltype(values)>, config, args);
  });
}

void backward(const RouterBackwardArgs& args) {
  for_experts(args.rows.experts, [&](auto values) {
    for_type(args.type, [&](auto type) {
      launch(backward_kernel<decltype(values), decltype(type)>,
             config_of(args.exec, args.rows.tokens, "router_backward"), args);
    });
  });
  if (args.losses == nullptr || (args.balance == nullptr && args.z == 0)) return;
  launch(losses_kernel,
         {.grid = 1,
          .block = kSumThreads,
          .smem_bytes = sizeof(Partials),
          .stream = stream_of(args.exec),
          .name = "router_backward"},
         args);
}

}  // namespace

const RouterKernels router_cuda = {forward, backward};

}  // namespace trireme::cuda
