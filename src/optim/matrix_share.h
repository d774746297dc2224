#pragma once
// How ranks share the updates of whole matrices of which each holds a part, be it the tensor axis's
// or ZeRO's: each matrix has one worker among those ranks, to which all bring their parts and from
// which all get them back changed. Pure arithmetic, for the update and for its plan.

#include <cstdint>
#include <vector>

#include "store/param.h"

namespace trireme {

/// Of the matrices (ParamMeta::matrix) of one view that are trained. Ranks of the group are counted
/// by shards, within one by the tensor axis. Ranks that hold the same shards (replicas) each have a
/// group of their own, which does the same.
class MatrixShare {
 public:
  /// `params` must outlive it.
  MatrixShare(const std::vector<ParamMeta>& params, const ParamDistribution& distribution,
              MeshView view);

  [[nodiscard]] int ranks() const { return tensor_.extent * shard_.extent; }
  [[nodiscard]] int rank() const { return shard_.index * tensor_.extent + tensor_.index; }

  struct Task {
    ParamIndex index = kNoParam;
    int worker = 0;
  };
  /// In a round a rank works on one matrix at most. Workers are chosen by operations: the matrix
  /// with the most goes to who has the least so far.
  [[nodiscard]] const std::vector<std::vector<Task>>& rounds() const { return rounds_; }

  /// What a rank of the group holds of a matrix, and which boxes of the whole these are.
  struct Part {
    Shape shape;
    std::vector<CutPart> boxes;
  };
  [[nodiscard]] Part part(ParamIndex index, int rank) const;
  /// Who brings the worker the part that `rank` has, of those that have the same: each part comes
  /// once.
  [[nodiscard]] int source(const Task& task, int rank) const;

  /// Parts in memory begin at multiples of so many elements.
  static constexpr std::int64_t kAlignment = 32;
  /// Elements on this rank: the most of any round.
  struct Sizes {
    std::int64_t parts = 0;   ///< its parts of a round's matrices
    std::int64_t pieces = 0;  ///< others' parts of the one that it works on
    std::int64_t matrix = 0;  ///< that matrix
    std::int64_t gram = 0;    ///< of its shorter side
  };
  [[nodiscard]] Sizes sizes() const;
  /// What an update has of this rank.
  struct Cost {
    std::int64_t elements_sent = 0, transfers = 0;
    double operations = 0;
  };
  [[nodiscard]] Cost cost() const;

 private:
  void choose_workers();

  const std::vector<ParamMeta>& params_;
  AxisRank tensor_, shard_;
  std::vector<ParamIndex> matrices_;
  std::vector<std::vector<Task>> rounds_;
};

}  // namespace trireme
