#pragma once
// Which parameters have fp8 copies, and where their scales lie: pure arithmetic on declarations.

#include <vector>

#include "store/store_layout.h"
#include "tensor/quantized_view.h"

namespace trireme {

/// The dims of a rank's tensor-parallel shard of a parameter, in blocks of `block` (0: whole
/// parts). Segments of its cut (ParamMeta::cut) are quantised apart.
struct QuantizedDims {
  ScaleDim rows, columns;
};
QuantizedDims quantized_dims(const ParamMeta& param, AxisRank tensor, std::int64_t block);

/// Whether ranks of a tensor axis of that extent have parts of the same blocks.
bool cut_crosses_blocks(const TensorCut& cut, int extent, std::int64_t block);

/// The scales of all fp8 copies of a rank, one after the other, view by view: of each parameter
/// [rows.blocks(), columns.blocks()], of its whole tensor-parallel shard on every rank. Those of a
/// fused range are one matrix; those of a view are cut in equal parts by the ranks that share them.
class QuantizedLayout {
 public:
  QuantizedLayout(const std::vector<ParamMeta>& params, const ParamDistribution& distribution);

  [[nodiscard]] bool has(ParamIndex index) const { return dims_[at(index)].rows.part_count > 0; }
  [[nodiscard]] const QuantizedDims& dims(ParamIndex index) const { return dims_[at(index)]; }
  /// Of a fused range as one tensor.
  [[nodiscard]] QuantizedDims dims(ParamRange range) const;
  [[nodiscard]] std::int64_t offset(ParamIndex index) const { return offsets_[at(index)]; }
  /// Scales of all, and of a view.
  [[nodiscard]] std::int64_t size() const { return views_.back().begin + views_.back().size; }
  [[nodiscard]] Slice of(MeshView view) const { return views_[static_cast<std::size_t>(view)]; }
  [[nodiscard]] const std::vector<ParamIndex>& params() const { return quantized_; }

  /// What a product reads (a fused range or, of experts, each one's part of it; a parameter alone),
  /// and where its transpose begins in those of its block: rows of the padded order of what were
  /// rows.
  struct Turned {
    ParamRange range;
    int block;
    std::int64_t begin;  ///< codes
  };
  [[nodiscard]] const std::vector<Turned>& turned() const { return turned_; }
  /// Which of turned() begins with a parameter.
  [[nodiscard]] std::size_t turned_of(ParamIndex first) const;
  /// Codes of the transposes of a block.
  [[nodiscard]] std::int64_t turned_size(int block) const {
    return block < static_cast<int>(turned_sizes_.size()) ? turned_sizes_[at(block)] : 0;
  }
  /// Of all blocks.
  [[nodiscard]] std::int64_t turned_size() const;

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  void place_scales(const std::vector<ParamMeta>& params, const ParamDistribution& distribution);
  void add_turned(const std::vector<ParamMeta>& params, ParamIndex index);
  std::vector<QuantizedDims> dims_;
  std::vector<std::int64_t> offsets_;
  std::array<Slice, kMeshViews.size()> views_ = {};
  std::vector<ParamIndex> quantized_;
  std::vector<Turned> turned_;
  std::vector<std::int64_t> turned_sizes_;  // of each block
};

}  // namespace trireme
