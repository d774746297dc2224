#pragma once
// In which rounds small pieces travel among many ranks: each rank meets the logarithm of their
// number of others, not all of them. Over TCP each one met is a descriptor. Pure.

#include <vector>

namespace trireme {

/// A round of an all-gather (Bruck et al. 1997): a rank that holds the pieces of itself and those
/// behind it, around the ring, sends the first `pieces` of them and gets as many to follow its own.
struct GatherRound {
  int to = 0, from = 0, pieces = 0;
  friend bool operator==(const GatherRound&, const GatherRound&) = default;
};
std::vector<GatherRound> gather_rounds(int rank, int ranks);

/// A binomial tree: what the children have, in this order, follows what a rank has.
struct ReductionTree {
  std::vector<int> children;
  int parent = -1;  ///< of rank 0: none
};
ReductionTree reduction_tree(int rank, int ranks);

}  // namespace trireme
