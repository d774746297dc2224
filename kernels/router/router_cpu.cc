#include "kernels/common/parallel.h"
#include "kernels/common/simd.h"
#include "kernels/router/router_table.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr float kInfinity = __builtin_inff(), kLowest = -__FLT_MAX__;
constexpr std::int64_t kWorkPerScore = 8;
/// Two vectors at a time, so that one's comparison hides the other's.
constexpr std::int64_t kStep = 2 * F32::kWidth;

/// A value for each expert; behind them there is room for whole steps.
struct alignas(64) Row {
  float at[kRouterExpertsMax];
};

TRIREME_INLINE float log_of(float x) { return reduce_max(log(F32::broadcast(x))); }

/// s = softmax(logits); gives logsumexp. The shift keeps a NaN, and an infinity becomes one.
TRIREME_INLINE float softmax(float* s, const float* logits, std::int64_t experts) {
  const F32 lowest = F32::broadcast(-kInfinity);
  F32 best = lowest;
  for_each_vector(0, experts, [&](std::int64_t e, auto lanes) {
    best = max(select(lanes, F32::load(logits + e, lanes), lowest), best);
  });
  const float maximum = reduce_max(best), base = maximum == -kInfinity ? kLowest : maximum;
  for_each_vector(0, experts, [&](std::int64_t e, auto lanes) {
    exp(F32::load(logits + e, lanes) - F32::broadcast(base)).store(s + e, lanes);
  });
  const float sum =
      sum_over(0, experts, [&](std::int64_t e, auto lanes) { return F32::load(s + e, lanes); });
  const F32 inverse = F32::broadcast(1.0F) / F32::broadcast(sum);
  for_each_vector(0, experts, [&](std::int64_t e, auto lanes) {
    (F32::load(s + e, lanes) * inverse).store(s + e, lanes);
  });
  return base + log_of(sum);
}

TRIREME_INLINE void sigmoids(float* s, const float* logits, std::int64_t experts) {
  for_each_vector(0, experts, [&](std::int64_t e, auto lanes) {
    sigmoid(F32::load(logits + e, lanes)).store(s + e, lanes);
  });
}

/// 0, or NaN where one is among the values.
TRIREME_INLINE float nan_among(const float* values, std::int64_t count) {
  return sum_over(0, count, [&](std::int64_t e, auto lanes) {
    const F32 x = F32::load(values + e, lanes);
    return select(is_nan(x), x, F32::zero());
  });
}

/// c = s + bias for whole steps, none below kLowest, so that -inf can mean "none".
TRIREME_INLINE void candidates(float* c, const float* s, const float* bias, std::int64_t experts) {
  for_each_vector(0, experts, [&](std::int64_t e, auto lanes) {
    const F32 x = F32::load(s + e, lanes);
    const F32 sum = bias == nullptr ? x : x + F32::load(bias + e, lanes);
    max(sum, F32::broadcast(kLowest)).store(c + e, lanes);
  });
  for (std::int64_t e = experts; e % kStep != 0; ++e) c[e] = -kInfinity;
}

/// The place of the largest of c, the first of equal ones.
TRIREME_INLINE std::int64_t largest(const float* c, std::int64_t count) {
  F32 best[2] = {F32::broadcast(-kInfinity), F32::broadcast(-kInfinity)};
  F32 at[2] = {F32::zero(), F32::zero()};
  for (std::int64_t e = 0; e < count; e += kStep) {
    for (int i = 0; i < 2; ++i) {
      const std::int64_t first = e + i * F32::kWidth;
      const F32 x = F32::load(c + first);
      at[i] = select(best[i] < x, F32::broadcast(static_cast<float>(first)) + F32::iota(), at[i]);
      best[i] = max(x, best[i]);
    }
  }
  const F32 most = F32::broadcast(reduce_max(max(best[0], best[1])));
  // The least place is the largest distance from the end.
  const F32 end = F32::broadcast(static_cast<float>(kRouterExpertsMax));
  F32 distance = select(best[0] == most, end - at[0], F32::zero());
  distance = max(distance, select(best[1] == most, end - at[1], F32::zero()));
  return kRouterExpertsMax - static_cast<std::int64_t>(reduce_max(distance));
}

/// The `wanted` largest of c, of equal ones the first, in ascending order. They leave c.
TRIREME_INLINE void choose(std::int32_t* chosen, float* c, std::int64_t count,
                           std::int64_t wanted) {
  for (std::int64_t n = 0; n < wanted; ++n) {
    const auto place = static_cast<std::int32_t>(largest(c, count));
    c[place] = -kInfinity;
    std::int64_t i = n;
    for (; i > 0 && chosen[i - 1] > place; --i) chosen[i] = chosen[i - 1];
    chosen[i] = place;
  }
}

/// The sum of a group's two largest.
TRIREME_INLINE float group_score(const float* c, std::int64_t size) {
  float first = c[0], second = -kInfinity;
  for (std::int64_t e = 1; e < size; ++e) {
    const float low = c[e] < first ? c[e] : first;
    first = c[e] < first ? first : c[e];
    second = low < second ? second : low;
  }
  return size == 1 ? first : first + second;
}

/// c becomes kLowest outside the best groups.
TRIREME_INLINE void keep_best_groups(float* c, std::int64_t experts, const RouterRule& rule) {
  const std::int64_t size = experts / rule.groups;
  alignas(64) float scores[kRouterGroupsMax];
  std::int32_t kept[kRouterGroupsMax];
  for (std::int64_t g = 0; g < rule.groups; ++g) {
    const float score = group_score(c + g * size, size);
    scores[g] = score < kLowest ? kLowest : score;
  }
  for (std::int64_t g = rule.groups; g % kStep != 0; ++g) scores[g] = -kInfinity;
  choose(kept, scores, rule.groups, rule.groups_chosen);
  std::int64_t next = 0;
  for (std::int64_t g = 0; g < rule.groups; ++g) {
    if (next < rule.groups_chosen && kept[next] == g) {
      ++next;
      continue;
    }
    for (std::int64_t e = g * size; e < (g + 1) * size; ++e) c[e] = kLowest;
  }
}

/// How many of a piece's tokens of one sequence chose each expert.
struct Tally {
  std::int32_t counts[kRouterExpertsMax];

  TRIREME_INLINE void clear() { __builtin_memset(counts, 0, sizeof counts); }
  TRIREME_INLINE void add(const std::int32_t* chosen, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) ++counts[chosen[i]];
  }
  /// Whole numbers: in any order the same.
  TRIREME_INLINE void join(std::int32_t* to, std::int64_t experts) const {
    for (std::int64_t e = 0; e < experts; ++e) {
      if (counts[e] != 0) __atomic_fetch_add(to + e, counts[e], __ATOMIC_RELAXED);
    }
  }
};

/// Whether load counts the largest s.
TRIREME_INLINE bool chooses_by_score(const RouterForwardArgs& args) {
  return args.bias == nullptr && args.rule.groups_chosen == args.rule.groups;
}

TRIREME_INLINE float sum_of_chosen(const float* s, const std::int32_t* chosen,
                                   const RouterRule& rule) {
  float sum = 0;
  for (std::int64_t i = 0; i < rule.chosen; ++i) sum += s[chosen[i]];
  return rule.score == RouterScore::kSigmoid ? sum + kRouterSumMin : sum;
}

TRIREME_INLINE void forward_token(const RouterForwardArgs& args, std::int64_t t, Tally& load,
                                  Tally& balance) {
  const std::int64_t experts = args.rows.experts, k = args.rule.chosen;
  const float* logits = args.logits + t * experts;
  std::int32_t* chosen = args.chosen + t * k;
  Row s, c;
  float nan = 0;
  if (args.rule.score == RouterScore::kSoftmax) {
    softmax(s.at, logits, experts);
  } else {
    sigmoids(s.at, logits, experts);
    nan = nan_among(logits, experts);
  }
  candidates(c.at, s.at, args.bias, experts);
  if (args.rule.groups_chosen < args.rule.groups) keep_best_groups(c.at, experts, args.rule);
  choose(chosen, c.at, experts, k);
  load.add(chosen, k);
  const float scale = args.rule.scale;
  const float sum = args.rule.normalized ? sum_of_chosen(s.at, chosen, args.rule) : 1.0F;
  for (std::int64_t i = 0; i < k; ++i)
    args.weights[t * k + i] = scale * s.at[chosen[i]] / sum + nan;
  if (args.balance == nullptr || chooses_by_score(args)) return;
  std::int32_t best[kRouterChosenMax];
  candidates(c.at, s.at, nullptr, experts);
  choose(best, c.at, experts, k);
  balance.add(best, k);
}

void forward(const RouterForwardArgs& args) {
  const RouterRows& rows = args.rows;
  parallel_ranges(
      args.exec, rows.tokens, rows.experts * kWorkPerScore,
      [&](std::int64_t begin, std::int64_t end) {
        Tally load, balance;
        while (begin < end) {
          const std::int64_t sequence = (rows.first_token + begin) / rows.tokens_per_sequence;
          const std::int64_t behind = (sequence + 1) * rows.tokens_per_sequence - rows.first_token;
          const std::int64_t last = behind < end ? behind : end;
          load.clear();
          balance.clear();
          for (; begin < last; ++begin) forward_token(args, begin, load, balance);
          if (args.load != nullptr) load.join(args.load + sequence * rows.experts, rows.experts);
          if (args.balance == nullptr) continue;
          (chooses_by_score(args) ? load : balance)
              .join(args.balance + sequence * rows.experts, rows.experts);
        }
      });
}

/// ds of the chosen experts is added.
TRIREME_INLINE void add_weights_gradient(float* ds, const RouterBackwardArgs& args, std::int64_t t,
                                         const float* s) {
  const RouterRule& rule = args.rule;
  const std::int32_t* chosen = args.chosen + t * rule.chosen;
  const float* dweights = args.dweights + t * rule.chosen;
  float factor = rule.scale, mean = 0;
  if (rule.normalized) {
    const float sum = sum_of_chosen(s, chosen, rule);
    for (std::int64_t i = 0; i < rule.chosen; ++i) mean += dweights[i] * s[chosen[i]];
    mean /= sum;
    factor /= sum;
  }
  for (std::int64_t i = 0; i < rule.chosen; ++i) ds[chosen[i]] += factor * (dweights[i] - mean);
}

/// ds = balance's gradient to s; gives <balance, p>. That ds loses its mean leaves a softmax's
/// gradient as it is.
TRIREME_INLINE float balance_gradient(float* ds, const float* balance, const float* s,
                                      std::int64_t experts, RouterScore score) {
  const auto scores = [&](std::int64_t e, auto lanes) { return F32::load(s + e, lanes); };
  const float sum =
      score == RouterScore::kSoftmax ? 1.0F : sum_over(0, experts, scores) + kRouterSumMin;
  const float loss = sum_over(0, experts,
                              [&](std::int64_t e, auto lanes) {
                                return F32::load(balance + e, lanes) * F32::load(s + e, lanes);
                              }) /
                     sum;
  for_each_vector(0, experts, [&](std::int64_t e, auto lanes) {
    ((F32::load(balance + e, lanes) - F32::broadcast(loss)) / F32::broadcast(sum))
        .store(ds + e, lanes);
  });
  return loss;
}

template <class T>
TRIREME_INLINE void backward_token(const RouterBackwardArgs& args, std::int64_t t) {
  const std::int64_t experts = args.rows.experts;
  const bool softmaxed = args.rule.score == RouterScore::kSoftmax;
  const float* logits = args.logits + t * experts;
  T* dlogits = static_cast<T*>(args.dlogits) + t * experts;
  Row probabilities, gates, ds;
  float* s = softmaxed ? probabilities.at : gates.at;
  float lse = 0, loss = 0;
  if (softmaxed || args.z != 0) lse = softmax(probabilities.at, logits, experts);
  if (!softmaxed) sigmoids(s, logits, experts);
  const float* p = args.z != 0 ? probabilities.at : s;  // times 0 otherwise
  if (args.balance != nullptr) {
    const std::int64_t sequence = (args.rows.first_token + t) / args.rows.tokens_per_sequence;
    loss = balance_gradient(ds.at, args.balance + sequence * experts, s, experts, args.rule.score);
  } else {
    __builtin_memset(ds.at, 0, static_cast<std::size_t>(experts) * sizeof(float));
  }
  args.token_losses[t] = loss;
  args.token_losses[args.rows.tokens + t] = lse;
  add_weights_gradient(ds.at, args, t, s);
  const float mean = !softmaxed ? 0.0F : sum_over(0, experts, [&](std::int64_t e, auto lanes) {
    return F32::load(s + e, lanes) * F32::load(ds.at + e, lanes);
  });
  const F32 factor = F32::broadcast(args.z == 0 ? 0.0F : 2 * args.z * lse);
  const F32 one = F32::broadcast(1.0F);
  for_each_vector(0, experts, [&](std::int64_t e, auto lanes) {
    const F32 x = F32::load(s + e, lanes), d = F32::load(ds.at + e, lanes);
    const F32 routed = softmaxed ? x * (d - F32::broadcast(mean)) : x * (one - x) * d;
    fma(factor, F32::load(p + e, lanes), routed).store(dlogits + e, lanes);
  });
}

/// Tokens in order.
void add_losses(const RouterBackwardArgs& args) {
  double balance = 0, z = 0;
  for (std::int64_t t = 0; t < args.rows.tokens; ++t) {
    const double lse = args.token_losses[args.rows.tokens + t];
    balance += args.token_losses[t];
    z += lse * lse;
  }
  if (args.balance != nullptr) args.losses[0] += balance;
  if (args.z != 0) args.losses[1] += args.z * z;
}

void backward(const RouterBackwardArgs& args) {
  parallel_ranges(args.exec, args.rows.tokens, args.rows.experts * kWorkPerScore,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) {
                      if (args.type == DType::kF32) {
                        backward_token<float>(args, t);
                      } else {
                        backward_token<BFloat16>(args, t);
                      }
                    }
                  });
  if (args.losses != nullptr) add_losses(args);
}

}  // namespace

const RouterKernels router_cpu = {forward, backward};

}  // namespace trireme::TRIREME_ISA
