#include "kernels/router_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trireme::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Row = std::vector<double>;
using Places = std::vector<std::size_t>;

double logsumexp(const Row& l) {
  const double most = *std::max_element(l.begin(), l.end());
  double sum = 0;
  for (const double x : l) sum += std::exp(x - most);
  return most + std::log(sum);
}

Row scores(RouterScore score, const Row& l) {
  const double lse = logsumexp(l);
  Row s(l.size());
  for (std::size_t e = 0; e < l.size(); ++e)
    s[e] = score == RouterScore::kSoftmax ? std::exp(l[e] - lse) : 1 / (1 + std::exp(-l[e]));
  return s;
}

/// The k largest, of equal ones the first; ascending.
Places largest(const Row& c, std::int64_t k) {
  Places order(c.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return c[a] > c[b]; });
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

Row outside_of_groups_nothing(Row c, const RouterRule& rule) {
  const std::size_t groups = static_cast<std::size_t>(rule.groups), size = c.size() / groups;
  Row of_groups(groups);
  for (std::size_t g = 0; g < groups; ++g) {
    Row members(c.begin() + static_cast<std::ptrdiff_t>(g * size),
                c.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(members.rbegin(), members.rend());
    of_groups[g] = size == 1 ? members[0] : members[0] + members[1];
  }
  const Places best = largest(of_groups, rule.groups_chosen);
  for (std::size_t e = 0; e < c.size(); ++e) {
    if (!std::binary_search(best.begin(), best.end(), e / size)) c[e] = -kInfinity;
  }
  return c;
}

double sum_of(const Row& s, const Row& chosen) {
  double sum = 0;
  for (const double e : chosen) sum += s[static_cast<std::size_t>(e)];
  return sum;
}
double norm_of(const RouterRule& rule, const Row& s, const Row& chosen) {
  if (!rule.normalized) return 1;
  return sum_of(s, chosen) + (rule.score == RouterScore::kSigmoid ? 1e-20 : 0);
}
double sum_of_all(const RouterRule& rule, const Row& s) {
  if (rule.score == RouterScore::kSoftmax) return 1;
  return std::accumulate(s.begin(), s.end(), 0.0) + 1e-20;
}

Row part(const Row& x, std::size_t t, std::size_t columns) {
  const auto begin = x.begin() + static_cast<std::ptrdiff_t>(t * columns);
  return {begin, begin + static_cast<std::ptrdiff_t>(columns)};
}

}  // namespace

RouterChoice router_forward(const RouterRule& rule, const Row& logits, std::size_t experts,
                            const Row& bias) {
  RouterChoice choice{{}, {}, Row(experts), Row(experts)};
  for (std::size_t t = 0; t < logits.size() / experts; ++t) {
    const Row s = scores(rule.score, part(logits, t, experts));
    Row c = s;
    for (std::size_t e = 0; e < bias.size(); ++e) c[e] += bias[e];
    const Places chosen = largest(outside_of_groups_nothing(c, rule), rule.chosen);
    const double norm = norm_of(rule, s, Row(chosen.begin(), chosen.end()));
    for (const std::size_t e : chosen) {
      choice.chosen.push_back(static_cast<double>(e));
      choice.weights.push_back(rule.scale * s[e] / norm);
      ++choice.load[e];
    }
    for (const std::size_t e : largest(s, rule.chosen)) ++choice.balance[e];
  }
  return choice;
}

RouterLosses router_losses(const RouterRule& rule, const RouterTerms& terms, const Row& logits,
                           std::size_t experts) {
  RouterLosses losses{};
  const auto k = static_cast<std::size_t>(rule.chosen);
  for (std::size_t t = 0; t < logits.size() / experts; ++t) {
    const Row l = part(logits, t, experts), s = scores(rule.score, l);
    const Row chosen = part(terms.chosen, t, k);
    const double norm = norm_of(rule, s, chosen), all = sum_of_all(rule, s);
    for (std::size_t i = 0; i < k; ++i)
      losses.weighted +=
          terms.dweights[t * k + i] * rule.scale * s[static_cast<std::size_t>(chosen[i])] / norm;
    for (std::size_t e = 0; e < terms.balance.size(); ++e)
      losses.balance += terms.balance[e] * s[e] / all;
    losses.z += terms.z * logsumexp(l) * logsumexp(l);
  }
  return losses;
}

Row router_backward(const RouterRule& rule, const RouterTerms& terms, const Row& logits,
                    std::size_t experts) {
  Row dlogits(logits.size());
  const auto k = static_cast<std::size_t>(rule.chosen);
  for (std::size_t t = 0; t < logits.size() / experts; ++t) {
    const Row l = part(logits, t, experts), s = scores(rule.score, l);
    const Row chosen = part(terms.chosen, t, k), dw = part(terms.dweights, t, k);
    const double norm = norm_of(rule, s, chosen), all = sum_of_all(rule, s);
    double mean = 0, balance = 0, inner = 0;
    for (std::size_t i = 0; i < k; ++i)
      mean += dw[i] * s[static_cast<std::size_t>(chosen[i])] / norm;
    for (std::size_t e = 0; e < terms.balance.size(); ++e) balance += terms.balance[e] * s[e] / all;
    Row ds(experts);
    for (std::size_t i = 0; i < k; ++i)
      ds[static_cast<std::size_t>(chosen[i])] =
          rule.scale / norm * (dw[i] - (rule.normalized ? mean : 0));
    const bool softmaxed = rule.score == RouterScore::kSoftmax;
    for (std::size_t e = 0; e < terms.balance.size(); ++e)
      ds[e] += softmaxed ? terms.balance[e] : (terms.balance[e] - balance) / all;
    for (std::size_t e = 0; e < experts; ++e) inner += s[e] * ds[e];
    const Row p = scores(RouterScore::kSoftmax, l);
    const double lse = logsumexp(l);
    for (std::size_t e = 0; e < experts; ++e)
      dlogits[t * experts + e] =
          s[e] * (softmaxed ? ds[e] - inner : (1 - s[e]) * ds[e]) + 2 * terms.z * lse * p[e];
  }
  return dlogits;
}

}  // namespace trireme::reference
