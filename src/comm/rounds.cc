#include "comm/rounds.h"

#include <algorithm>

namespace trireme {

std::vector<GatherRound> gather_rounds(int rank, int ranks) {
  std::vector<GatherRound> rounds;
  for (int held = 1; held < ranks; held *= 2) {
    rounds.push_back(
        {(rank + ranks - held) % ranks, (rank + held) % ranks, std::min(held, ranks - held)});
  }
  return rounds;
}

ReductionTree reduction_tree(int rank, int ranks) {
  ReductionTree tree;
  for (int distance = 1; distance < ranks; distance *= 2) {
    if ((rank & distance) != 0) {
      tree.parent = rank - distance;
      break;
    }
    if (rank + distance < ranks) tree.children.push_back(rank + distance);
  }
  return tree;
}

}  // namespace trireme
