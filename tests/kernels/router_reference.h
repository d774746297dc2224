#pragma once

#include <cstdint>
#include <vector>

#include "kernels/router/router_rule.h"

namespace trireme::reference {

/// Tokens of one sequence.
struct RouterChoice {
  std::vector<double> chosen, weights;  ///< [T, k]
  std::vector<double> load, balance;    ///< [E]
};
/// bias is empty or [E].
RouterChoice router_forward(const RouterRule& rule, const std::vector<double>& logits,
                            std::size_t experts, const std::vector<double>& bias = {});

struct RouterLosses {
  double weighted, balance, z;
};
/// The terms of the header's sum: <dweights, w>, <balance, p>, z sum logsumexp^2. balance is empty
/// or [E].
struct RouterTerms {
  std::vector<double> chosen, dweights, balance;
  double z = 0;
};
RouterLosses router_losses(const RouterRule& rule, const RouterTerms& terms,
                           const std::vector<double>& logits, std::size_t experts);
std::vector<double> router_backward(const RouterRule& rule, const RouterTerms& terms,
                                    const std::vector<double>& logits, std::size_t experts);

}  // namespace trireme::reference
