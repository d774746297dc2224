#include "kernels/embedding_reference.h"

namespace trireme::reference {

std::vector<double> embedding_forward(const EmbeddingCase& c) {
  std::vector<double> out;
  for (std::size_t t = 0; t < c.ids.size(); ++t) {
    for (std::size_t i = 0; i < c.channels; ++i) {
      double value = c.table[static_cast<std::size_t>(c.ids[t]) * c.channels + i];
      if (!c.positions.empty()) {
        value += c.position_table[static_cast<std::size_t>(c.positions[t]) * c.channels + i];
      }
      out.push_back(value);
    }
  }
  return out;
}

std::vector<double> embedding_backward(const EmbeddingCase& c, std::vector<double> dtable,
                                       const std::vector<double>& dout) {
  for (std::size_t t = 0; t < c.ids.size(); ++t) {
    for (std::size_t i = 0; i < c.channels; ++i) {
      dtable[static_cast<std::size_t>(c.ids[t]) * c.channels + i] += dout[t * c.channels + i];
    }
  }
  return dtable;
}

}  // namespace trireme::reference
