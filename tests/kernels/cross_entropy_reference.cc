#include "kernels/cross_entropy_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::reference {

CrossEntropy cross_entropy(const CrossEntropyCase& c) {
  const std::size_t tokens = c.targets.size(), columns = static_cast<std::size_t>(c.columns);
  CrossEntropy out;
  out.dlogits.resize(tokens * columns);
  for (std::size_t t = 0; t < tokens; ++t) {
    const double* row = &c.logits[t * columns];
    double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t v = 0; v < c.valid; ++v) maximum = std::max(maximum, row[v]);
    for (std::int64_t v = 0; v < c.valid; ++v) sum += std::exp(row[v] - maximum);
    const auto target = static_cast<std::int64_t>(c.targets[t]) - c.first;
    const bool held = c.targets[t] >= 0 && target >= 0 && target < c.valid;
    out.maximum.push_back(maximum);
    out.sum.push_back(sum);
    out.target_logit.push_back(held ? row[target] : 0);
    const bool counted = c.targets[t] >= 0;
    const double lse = maximum + std::log(sum);
    out.loss.push_back(counted ? lse - out.target_logit.back() : 0);
    out.square.push_back(counted ? lse * lse : 0);
    for (std::int64_t v = 0; counted && v < c.valid; ++v) {
      const double one = held && v == target ? 1 : 0;
      out.dlogits[t * columns + static_cast<std::size_t>(v)] =
          (std::exp(row[v] - maximum) / sum * (1 + 2 * c.z_loss * lse) - one) * c.scale;
    }
  }
  return out;
}

}  // namespace trireme::reference
