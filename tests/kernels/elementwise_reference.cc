#include "kernels/elementwise_reference.h"

namespace trireme::reference {

std::vector<double> accumulate(std::vector<double> destination, const std::vector<double>& source) {
  for (std::size_t i = 0; i < source.size(); ++i) destination[i] += source[i];
  return destination;
}

std::vector<double> column_sum(std::vector<double> sum, const std::vector<double>& x) {
  for (std::size_t i = 0; i < x.size(); ++i) sum[i % sum.size()] += x[i];
  return sum;
}

}  // namespace trireme::reference
