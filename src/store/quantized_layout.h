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

/// The scales of all fp8 copies of a rank, one after the other: of each parameter [rows.blocks(),
/// columns.blocks()], of its whole tensor-parallel shard on every rank. Those of a fused range are
/// one matrix.
class QuantizedLayout {
 public:
  QuantizedLayout(const std::vector<ParamMeta>& params, const ParamDistribution& distribution);

  [[nodiscard]] bool has(ParamIndex index) const { return dims_[at(index)].rows.part_count > 0; }
  [[nodiscard]] const QuantizedDims& dims(ParamIndex index) const { return dims_[at(index)]; }
  /// Of a fused range as one tensor.
  [[nodiscard]] QuantizedDims dims(ParamRange range) const;
  [[nodiscard]] std::int64_t offset(ParamIndex index) const { return offsets_[at(index)]; }
  /// Scales of all.
  [[nodiscard]] std::int64_t size() const { return offsets_.back(); }
  [[nodiscard]] const std::vector<ParamIndex>& params() const { return quantized_; }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  std::vector<QuantizedDims> dims_;
  std::vector<std::int64_t> offsets_;
  std::vector<ParamIndex> quantized_;
};

}  // namespace trireme
