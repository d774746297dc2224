#pragma once
// Where the parameters of one rank lie in its memory: pure arithmetic on their declarations and
// their distribution, for allocation, for the plan and for what moves them.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "store/param.h"

namespace trireme {

/// Two flat layouts of the same parameters: *local*, whole as the tensor axis shards them, groups
/// aligned and fused ranges together; and *shard*, the rows that one rank owns under ZeRO. A
/// parameter's rows take the room of the largest shard there, so that offsets are the same for all
/// owners and a block of shards is one rank's part of a gather or a reduction. Parameters that are
/// owned whole (Ownership) go to the ranks in turn, and those of as many owners share a room.
class StoreLayout {
 public:
  /// All parameters have room for weights, trained ones for gradients and states.
  enum class Of : std::uint8_t { kWeights, kGradients };
  StoreLayout(const std::vector<ParamMeta>& params, const ParamDistribution& distribution,
              Of of = Of::kWeights);

  [[nodiscard]] const ParamDistribution& distribution() const { return distribution_; }
  [[nodiscard]] const Distribution& distribution(MeshView view) const {
    return distribution_.of(view);
  }
  /// Of one parameter.
  [[nodiscard]] const Distribution& distribution(ParamIndex index) const {
    return distribution_.of(views_[at(index)]);
  }
  [[nodiscard]] int zero_stage() const { return distribution_.zero_stage; }
  [[nodiscard]] bool sharded() const { return distribution_.sharded(); }
  /// Whether any parameter is of that view.
  [[nodiscard]] bool has(MeshView view) const;
  [[nodiscard]] int block_count() const { return static_cast<int>(blocks_.size()); }
  /// Blocks with values; what comes behind them has gradients alone (ParamMeta::shares).
  [[nodiscard]] int valued_blocks() const { return valued_blocks_; }

  [[nodiscard]] const Shape& local_shape(ParamIndex index) const { return shapes_[at(index)]; }
  /// With the rows of zeros that follow (ParamMeta::row_alignment).
  [[nodiscard]] const Shape& padded_shape(ParamIndex index) const { return padded_[at(index)]; }
  /// Of a fused range as one tensor: the rows (sizes of vectors) of all.
  [[nodiscard]] Shape fused_shape(ParamRange range) const;
  [[nodiscard]] bool has_room(ParamIndex index) const { return owners_[at(index)] != kNobody; }
  /// Of rows that this rank owns, in the local tensor: all of them at stage 0.
  [[nodiscard]] Slice owned(ParamIndex index) const {
    return rows_of(index, distribution(index).shard);
  }
  [[nodiscard]] Shape owned_shape(ParamIndex index) const;

  [[nodiscard]] std::int64_t local_offset(ParamIndex index) const { return local_[at(index)]; }
  [[nodiscard]] std::int64_t shard_offset(ParamIndex index) const { return shard_[at(index)]; }
  [[nodiscard]] std::int64_t local_size() const { return local_.back(); }
  [[nodiscard]] std::int64_t shard_size() const { return shard_.back(); }
  /// Of the blocks with values, which come first.
  [[nodiscard]] std::int64_t valued_local_size() const { return end_of(local_); }
  [[nodiscard]] std::int64_t valued_shard_size() const { return end_of(shard_); }
  [[nodiscard]] ParamRange block_params(int block) const { return blocks_[at(block)]; }
  /// Of a block, elements [begin, begin + size) of the local layout.
  [[nodiscard]] Slice local_block(int block) const { return span_of(local_, blocks_[at(block)]); }
  /// The same for either layout and the parameters of one view.
  [[nodiscard]] Slice local_block(int block, MeshView view) const {
    return span_of(local_, params_of(block, view));
  }
  [[nodiscard]] Slice shard_block(int block, MeshView view) const {
    return span_of(shard_, params_of(block, view));
  }
  /// Where gradients held whole begin, behind those held as rows (ParamMeta::looked_up_most).
  [[nodiscard]] std::int64_t whole_gradients_begin() const { return whole_gradients_begin_; }
  /// Of local_block, the elements whose gradients are held whole.
  [[nodiscard]] Slice whole_gradients(int block) const { return without_rows(local_block(block)); }
  [[nodiscard]] Slice whole_gradients(int block, MeshView view) const {
    return without_rows(local_block(block, view));
  }
  /// The largest local block among those for which `counts` holds.
  [[nodiscard]] std::int64_t largest_block(const std::function<bool(int)>& counts) const;

  /// Calls f(local, shard, count) for every run of elements of `owner` inside [begin, begin + size)
  /// of a block's shard span of that view: offsets within the block's local span and within that.
  template <class F>
  void for_each_run(int block, MeshView view, int owner, Slice part, const F& f) const {
    const ParamRange range = params_of(block, view);
    if (!range.given()) return;
    const std::int64_t local_begin = local_block(block).begin,
                       shard_begin = shard_[at(range.first)];
    for (ParamIndex i = range.first; i <= range.last; ++i) {
      const Shape& shape = shapes_[at(i)];
      const std::int64_t row = shape[0] == 0 ? 0 : shape.count() / shape[0];
      const Slice rows = rows_of(i, {distribution_.of(view).shard.extent, owner});
      const std::int64_t at_shard = shard_[at(i)] - shard_begin;
      const std::int64_t begin = std::max(at_shard, part.begin),
                         end = std::min(at_shard + rows.size * row, part.begin + part.size);
      if (begin >= end) continue;
      f(local_[at(i)] - local_begin + rows.begin * row + begin - at_shard, begin, end - begin);
    }
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  static constexpr int kNobody = -2, kAllRanks = -1;
  [[nodiscard]] Slice rows_of(ParamIndex index, AxisRank rank) const;
  /// Those of a block that are of a view; not given where there are none.
  [[nodiscard]] ParamRange params_of(int block, MeshView view) const;
  [[nodiscard]] Slice without_rows(Slice local) const;
  [[nodiscard]] Slice span_of(const std::vector<std::int64_t>& offsets, ParamRange range) const;
  [[nodiscard]] std::int64_t end_of(const std::vector<std::int64_t>& offsets) const {
    return offsets[at(blocks_[at(valued_blocks_ - 1)].last + 1)];
  }

  ParamDistribution distribution_;
  std::vector<MeshView> views_;  // of each parameter
  std::vector<Fuse> fused_;
  std::vector<int> owners_;  // the rank that owns all of it, or one of the above
  std::vector<Shape> shapes_, padded_;
  std::vector<std::int64_t> local_, shard_;  // one more than parameters: the last is the end
  std::vector<ParamRange> blocks_;
  int valued_blocks_ = 0;
  std::int64_t whole_gradients_begin_ = 0;
};

}  // namespace trireme
