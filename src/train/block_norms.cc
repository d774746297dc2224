#include "train/block_norms.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "model/model_blocks.h"

namespace trireme {

std::vector<BlockNorms> norms_of_blocks(Communicator& replica, std::vector<BlockSquares>& mine,
                                        const ModelConfig& model) {
  std::vector<std::int64_t> words;
  for (BlockSquares& block : mine) {
    words.push_back(block.elements);
    for (ExactSum* sum : {&block.gradient, &block.weights, &block.update})
      words.insert(words.end(), sum->words().begin(), sum->words().end());
  }
  replica.sum(std::span(words));
  const std::vector<std::string> names = block_names(model);
  std::vector<BlockNorms> norms;
  auto at = words.begin();
  for (std::size_t block = 0; block < mine.size(); ++block) {
    const std::int64_t elements = *at++;
    BlockNorms of{names[block]};
    for (double* norm : {&of.grad_norm, &of.weight_norm, &of.update_norm}) {
      ExactSum sum;
      std::copy_n(at, ExactSum::kWords, sum.words().begin());
      at += ExactSum::kWords;
      *norm = std::sqrt(sum.value());
    }
    if (elements > 0) norms.push_back(std::move(of));
  }
  return norms;
}

}  // namespace trireme
