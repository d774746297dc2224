#include "kernels/embedding_reference.h"

namespace trireme::reference {
namespace {

/// Where row `id` begins in a table of `size` elements; `size` where it stands in another part.
std::size_t begin_of(const EmbeddingCase& c, double id, std::size_t size) {
  const std::int64_t row = static_cast<std::int64_t>(id) - c.first_row;
  const std::size_t begin = static_cast<std::size_t>(row) * c.channels;
  return row < 0 || begin >= size ? size : begin;
}

}  // namespace

std::vector<double> embedding_forward(const EmbeddingCase& c) {
  std::vector<double> out;
  for (std::size_t t = 0; t < c.ids.size(); ++t) {
    const std::size_t begin = begin_of(c, c.ids[t], c.table.size());
    const bool held = begin < c.table.size();
    for (std::size_t i = 0; i < c.channels; ++i) {
      double value = held ? c.table[begin + i] : 0;
      if (held && !c.positions.empty()) {
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
    const std::size_t begin = begin_of(c, c.ids[t], dtable.size());
    for (std::size_t i = 0; begin < dtable.size() && i < c.channels; ++i) {
      dtable[begin + i] += dout[t * c.channels + i];
    }
  }
  return dtable;
}

}  // namespace trireme::reference
