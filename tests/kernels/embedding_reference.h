#pragma once
// The formulas of kernels/embedding/embedding.h as scalar loops in double.

#include <cstdint>
#include <vector>

namespace trireme::reference {

/// positions may be empty. The table's rows begin at first_row of the vocabulary.
struct EmbeddingCase {
  std::size_t channels;
  std::vector<double> ids, table, positions, position_table;
  std::int64_t first_row = 0;
};
std::vector<double> embedding_forward(const EmbeddingCase& c);
std::vector<double> embedding_backward(const EmbeddingCase& c, std::vector<double> dtable,
                                       const std::vector<double>& dout);

}  // namespace trireme::reference
