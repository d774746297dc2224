#pragma once
// Where the parameters of one rank lie in its memory: pure arithmetic on their declarations and
// their distribution, for allocation, for the plan and for what moves them.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/shards/shards_table.h"
#include "store/param.h"

namespace trireme {

/// In which form the model reads a parameter: the compute type, codes in fp8, fp32 where the
/// compute type is bf16, or codes in NF4, whose blocks' magnitudes are a form beside them.
enum class WeightForm : std::uint8_t { kCompute, kFp8, kF32, kNf4, kNf4Absmax };
inline constexpr std::array kWeightForms = {WeightForm::kCompute, WeightForm::kFp8,
                                            WeightForm::kF32, WeightForm::kNf4,
                                            WeightForm::kNf4Absmax};
/// Never kNf4Absmax.
inline WeightForm form_of(const ParamMeta& param) {
  if (param.nf4) return WeightForm::kNf4;
  if (param.fp8) return WeightForm::kFp8;
  return param.in_f32 ? WeightForm::kF32 : WeightForm::kCompute;
}
/// Of its elements, where the model computes in `compute`.
inline DType type_of(WeightForm form, DType compute) {
  switch (form) {
    case WeightForm::kFp8:
      return DType::kF8E4M3;
    case WeightForm::kNf4:
      return DType::kU8;
    case WeightForm::kF32:
    case WeightForm::kNf4Absmax:
      return DType::kF32;
    case WeightForm::kCompute:
      return compute;
  }
  throw InternalError("weights of no form");
}
/// Whether it has memory of its own where the model computes in fp32: else the values are read.
inline bool is_coded(WeightForm form) {
  return form != WeightForm::kCompute && form != WeightForm::kF32;
}

/// Two flat layouts of the same parameters: *local*, whole as the tensor axis shards them, groups
/// aligned and fused ranges together; and *shard*, the rows that one rank owns under ZeRO. A
/// parameter's rows take the room of the largest shard there, so that offsets are the same for all
/// owners and a block of shards is one rank's part of a gather or a reduction. Parameters that are
/// owned whole (Ownership) go to the ranks in turn, and those of as many owners share a room; what
/// every rank has takes room on each.
///
/// Shapes and rows are in elements; offsets and sizes too but of NF4, where they are in bytes of
/// two codes, or blocks. Of those a row, or a few that each owner has a multiple of, is whole
/// blocks wherever ranks share a parameter (InternalError).
class StoreLayout {
 public:
  /// Which parameters have room: all for values, trained ones for gradients and states; for weights
  /// as the model reads them those of one form.
  enum class Of : std::uint8_t {
    kValues,
    kGradients,
    kComputeWeights,
    kFp8Weights,
    kF32Weights,
    kNf4Weights,
    kNf4Absmax
  };
  static Of of_form(WeightForm form);
  StoreLayout(const std::vector<ParamMeta>& params, const ParamDistribution& distribution,
              Of of = Of::kValues);

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
  /// Whether any parameter of that view has room, but for those that every rank has whole.
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

  /// Where the parameters of a block's view lie in its local span and in its shard span: what
  /// pack_shards and unpack_shards move. Those without room or without rows are left out, and those
  /// that every rank has whole.
  [[nodiscard]] std::vector<ShardedTensor> sharded_tensors(int block, MeshView view) const;

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  static constexpr int kEveryRank = -3, kNobody = -2, kAllRanks = -1;
  [[nodiscard]] Slice rows_of(ParamIndex index, AxisRank rank) const;
  /// Of a parameter that ranks share, rows that move together.
  [[nodiscard]] std::int64_t rows_together(const Shape& shape, int owners) const;
  [[nodiscard]] std::int64_t units_of(std::int64_t elements) const;
  /// Those of a block that are of a view; not given where there are none.
  [[nodiscard]] ParamRange params_of(int block, MeshView view) const;
  [[nodiscard]] Slice without_rows(Slice local) const;
  [[nodiscard]] Slice span_of(const std::vector<std::int64_t>& offsets, ParamRange range) const;
  [[nodiscard]] std::int64_t end_of(const std::vector<std::int64_t>& offsets) const {
    return offsets[at(blocks_[at(valued_blocks_ - 1)].last + 1)];
  }

  ParamDistribution distribution_;
  std::int64_t unit_;            // elements that offsets and sizes count
  std::vector<MeshView> views_;  // of each parameter
  std::vector<Fuse> fused_;
  std::vector<int> owners_;  // the rank that owns all of it; kAllRanks: each some rows; kEveryRank
  std::vector<Shape> shapes_, padded_;
  std::vector<std::int64_t> local_, shard_;  // one more than parameters: the last is the end
  std::vector<ParamRange> blocks_;
  int valued_blocks_ = 0;
  std::int64_t whole_gradients_begin_ = 0;
};

}  // namespace trireme
