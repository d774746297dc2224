#pragma once
// The gradients of the parameters of one rank, f32. The model writes: it opens a block, writes, and
// closes it, for each micro-batch. What becomes of them it does not know:
//
//   ZeRO stage 0, 1   accumulated on this rank; complete with the last micro-batch
//   ZeRO stage 2, 3   of one block at a time; complete with each micro-batch, then reduce-scattered
//   tied weights      the head's gradient is added to the embedding's
//   row-sparse        an embedding's as the rows alone that were looked up (RowGradient)

#include <functional>
#include <optional>
#include <vector>

#include "device/context.h"
#include "kernels/gemm/gemm.h"
#include "store/row_gradient.h"
#include "store/store_layout.h"
#include "tensor/buffer.h"

namespace trireme {

class Gradients {
 public:
  /// References must outlive it. `layout` is of gradients.
  Gradients(const std::vector<ParamMeta>& params, const StoreLayout& layout, Device device);
  static std::int64_t bytes_of(const std::vector<ParamMeta>& params, const StoreLayout& layout);

  /// `complete(block)` is called when the gradients of a block are final on this rank: of the step,
  /// or from ZeRO stage 2 on of a micro-batch. It may be empty.
  void when_complete(std::function<void(int)> complete) { complete_ = std::move(complete); }
  /// `first(block)` is called where a block holds the gradients of the step's first micro-batch and
  /// nothing else. It may be empty.
  void when_first(std::function<void(int)> first) { first_ = std::move(first); }
  /// A step begins: gradients are zero, those of products are set by the first.
  void begin_step(Context& context);

  /// The model begins to write the gradients of `block`, of one micro-batch. From ZeRO stage 2 on
  /// the block before must be closed, or its gradients are lost.
  void open(Context& context, int block);
  /// Where a product writes (a fused range as one tensor), and whether it adds to what stands
  /// there. Not given, as the sums below, where the parameters are not trained.
  struct Product {
    TensorView gradient;
    Accumulate accumulate;
  };
  [[nodiscard]] Product product(ParamRange range) const;
  /// With the rows that follow (ParamMeta::row_alignment): what is written there must be zeros.
  [[nodiscard]] Product padded_product(ParamIndex index) const;
  /// Where all else is added.
  [[nodiscard]] TensorView sum(ParamRange range) const;
  [[nodiscard]] TensorView sum(ParamIndex index) const { return sum({index, index}); }
  /// Adds what tokens bring to the gradient of an embedding: the operands of embedding_backward.
  void add_looked_up(Context& context, ParamIndex embedding, ConstTensorView ids_T,
                     ConstTensorView dout_TC, std::int64_t first_row, std::int64_t vocabulary);
  /// The gradients of `block` are written, of the step's last micro-batch where `last`. What an
  /// earlier action of the same micro-batch has closed may be closed again.
  void close(Context& context, int block, bool last);

  [[nodiscard]] const StoreLayout& layout() const { return layout_; }
  /// The rows that this rank owns. A row-sparse one has slots: that of row r is row slots[r].
  [[nodiscard]] TensorView owned(ParamIndex index) const;
  [[nodiscard]] ConstTensorView slots(ParamIndex index) const;
  /// Of these the rows that this rank counts in sums over all ranks: each element counts once.
  [[nodiscard]] TensorView counted(ParamIndex index) const;
  /// The same of the owned rows of its value, of which there are `rows`.
  [[nodiscard]] Slice counted_rows(ParamIndex index, std::int64_t rows) const;
  /// What may not be zero: all of it, or the rows that were looked up.
  [[nodiscard]] ConstTensorView written(ParamIndex index) const;
  /// That which is row-sparse; null where there is none. It is of block 0.
  [[nodiscard]] RowGradient* rows() { return rows_ ? &*rows_ : nullptr; }

  /// Of a block as the model wrote them, in the local layout; without what is row-sparse.
  [[nodiscard]] TensorView block(int block) const;
  /// The part of that which is of one view.
  [[nodiscard]] TensorView block(int block, MeshView view) const;
  /// The owned ones of a block in the shard layout. From ZeRO stage 2 on.
  [[nodiscard]] TensorView block_shard(int block, MeshView view) const;
  /// Adds sums of tied gradients that are reduced alone (ParamMeta::reduced_alone) to the value's.
  void add_tied_sums(Context& context);

 private:
  [[nodiscard]] const ParamMeta& param(ParamIndex index) const {
    return params_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] bool accumulates() const { return layout_.distribution().accumulates_locally(); }
  [[nodiscard]] bool in_rows(ParamIndex index) const { return rows_ && index == 0; }
  /// The head's gradient of a tied model, which the embedding's close takes along.
  [[nodiscard]] bool waits_for_owner(ParamIndex index) const {
    return param(index).shares != kNoParam && (accumulates() || !param(index).reduced_alone);
  }
  void clear_sums(Context& context, ParamRange range);

  const std::vector<ParamMeta>& params_;
  const StoreLayout& layout_;
  std::function<void(int)> complete_, first_;
  int open_block_ = -1;
  std::vector<char> written_;  // of each block: a product has set its gradients in this step
  Buffer memory_, block_, tied_;
  std::optional<RowGradient> rows_;
};

}  // namespace trireme
