#pragma once
// The parameters of one rank with their gradients and moments. The model reads weights through
// leases and writes fp32 gradients; the optimizer sees the rows that this rank owns (all of them
// without ZeRO).
//
//   ZeRO stage        0        1        2        3
//   weights           whole    whole    whole    owned, gathered block by block
//   fp32 masters      whole    owned    owned    owned      (bf16; in fp32 the weights themselves)
//   gradients         whole    whole    owned    owned      (2, 3: one block whole at a time)
//   moments           whole    owned    owned    owned
//
// "Whole" is what the tensor axis leaves to this rank.

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/context.h"
#include "parallel/row_gradient.h"
#include "parallel/state.h"
#include "parallel/store_layout.h"
#include "tensor/buffer.h"

namespace trireme {

/// What the store must hold besides the values.
enum class StorePurpose : std::uint8_t { kInference, kTraining };

/// Brings the weights of blocks that are not whole on this rank, or not up to date.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The block's weights are whole where the model reads them, until `release`. `next`, where not
  /// negative, is the block that is acquired after it.
  virtual void acquire(int block, int next) = 0;
  virtual void release(int block) = 0;
};

class ParamStore {
 public:
  /// `compute`: the type that weights are read in; kBF16 adds a rounded form of every parameter.
  ParamStore(std::vector<ParamMeta> params, DType compute, StorePurpose purpose, Device device = {},
             const StorePlace& place = {});

  [[nodiscard]] const std::vector<ParamMeta>& params() const { return params_; }
  [[nodiscard]] const StoreLayout& layout() const { return layout_; }
  /// Elements of the global parameters, each counted on one of the ranks that hold it.
  [[nodiscard]] std::int64_t element_count() const;
  [[nodiscard]] DType compute() const { return compute_; }
  [[nodiscard]] StorePurpose purpose() const { return purpose_; }

  /// Weights of one block for as long as the object lives, in the compute type.
  class Lease {
   public:
    ~Lease();
    Lease(Lease&& other) noexcept
        : store_(std::exchange(other.store_, nullptr)), block_(other.block_) {}
    Lease& operator=(Lease&&) = delete;
    /// One parameter, or a fused range as one tensor of their rows (sizes for vectors).
    [[nodiscard]] ConstTensorView weight(ParamRange range) const;
    [[nodiscard]] ConstTensorView weight(ParamIndex index) const { return weight({index, index}); }
    /// With the rows of zeros that follow (ParamMeta::row_alignment).
    [[nodiscard]] ConstTensorView padded_weight(ParamIndex index) const;

   private:
    friend class ParamStore;
    Lease(const ParamStore& store, int block) : store_(&store), block_(block) {}
    const ParamStore* store_;
    int block_;
  };
  /// `next` (where given) is the block that is acquired after this one.
  [[nodiscard]] Lease acquire(int block, int next = -1) const;
  /// Leases ask `source` from now on; it must outlive them.
  void set_source(WeightSource& source) { source_ = &source; }

  /// The rows that this rank owns: fp32 value, gradient and moments of a parameter, and the bf16
  /// form of its value (not given in fp32). No rows where a shard is empty. A gradient that is held
  /// as rows has gradient_slots: that of row r is row slots[r] of owned_gradient.
  [[nodiscard]] TensorView value(ParamIndex index) const;
  [[nodiscard]] TensorView form(ParamIndex index) const;
  [[nodiscard]] TensorView owned_gradient(ParamIndex index) const;
  [[nodiscard]] ConstTensorView gradient_slots(ParamIndex index) const;
  [[nodiscard]] TensorView exp_avg(ParamIndex index) const;
  [[nodiscard]] TensorView exp_avg_sq(ParamIndex index) const;
  /// Of the owned gradient the rows that this rank counts in sums over all ranks: every element of
  /// the model is counted by one of those that hold it.
  [[nodiscard]] TensorView counted_gradient(ParamIndex index) const;

  /// Where the model writes: the whole gradient of a parameter (a fused range as one tensor), which
  /// must not be held as rows. At stages 2 and 3 of the open block only.
  [[nodiscard]] TensorView gradient(ParamRange range) const;
  [[nodiscard]] TensorView gradient(ParamIndex index) const { return gradient({index, index}); }
  /// With the rows that follow: what is written there must be zeros.
  [[nodiscard]] TensorView padded_gradient(ParamIndex index) const;
  /// Adds what tokens bring to the gradient of an embedding, whole or in rows: the operands of
  /// embedding_backward.
  void add_looked_up(Context& context, ParamIndex embedding, ConstTensorView ids_T,
                     ConstTensorView dout_TC, std::int64_t first_row, std::int64_t vocabulary);
  /// That which is held as rows; null where there is none. It is of block 0.
  [[nodiscard]] RowGradient* row_gradient() { return row_gradient_ ? &*row_gradient_ : nullptr; }
  /// What of a gradient may not be zero: all of it, or the rows that were looked up.
  [[nodiscard]] ConstTensorView written_gradient(ParamIndex index) const;
  /// Whether the gradients of micro-batches add up here (stages 0 and 1), or each micro-batch's
  /// leave for their owners when their block is done.
  [[nodiscard]] bool keeps_gradients() const { return layout_.place().zero_stage < 2; }
  /// The model begins to write the gradients of `block`. Where gradients leave, that clears those
  /// that no product sets, and the block before must have left.
  void open_gradients(Context& context, int block);
  /// They have left, or nobody wants them: the same block may be opened anew.
  void close_gradients() { open_block_ = -1; }
  /// Of all blocks, those that are not set by a product. Nothing where gradients leave.
  void clear_gradients(Context& context);
  /// Adds the gradients of parameters that share a value (ParamMeta::shares) to the gradients of
  /// those that have it. Where gradients leave, the block of the latter is open, and what leaves
  /// alone is left out.
  void add_tied_gradients(Context& context);
  /// The same for what has left alone, once it is summed.
  void add_tied_sums(Context& context);
  /// Whether a gradient that leaves goes with that of the parameter that it shares the value of.
  [[nodiscard]] bool waits_for_owner(ParamIndex index) const {
    const ParamMeta& param = params_[static_cast<std::size_t>(index)];
    return param.shares != kNoParam && !param.leaves_alone;
  }
  /// False where a parameter is a gradient alone.
  [[nodiscard]] bool has_value(ParamIndex index) const {
    return params_[static_cast<std::size_t>(index)].shares == kNoParam;
  }

  [[nodiscard]] int block_count() const { return layout_.block_count(); }
  /// Gradients of a block as the model wrote them, as they lie in the local layout; without what is
  /// held as rows.
  [[nodiscard]] TensorView block_gradients(int block) const;
  /// The owned gradients of a block as they lie in the shard layout. Stages 2 and 3.
  [[nodiscard]] TensorView block_gradient_shard(int block) const;
  /// The weights of a block in the compute type, in the local layout. Stages 0 to 2.
  [[nodiscard]] TensorView block_weights(int block) const;
  /// The owned weights of a block in the compute type, in the shard layout. Stage 3.
  [[nodiscard]] TensorView block_weight_shard(int block) const;
  /// Stage 3: leases of `block` read `weights` (local layout of the block) from now on.
  void place_weights(int block, TensorView weights);
  /// Stage 3: zeros behind the rows of the block's weights, where another block's may have stood.
  void clear_padding(Context& context, int block);

  /// Initial values of the owned rows by (seed, name, global element index), made on the host: the
  /// same bits on every mesh and device.
  void initialise(Context& context, std::uint64_t seed);
  /// Rounds the owned values into their bf16 forms; nothing in fp32.
  void refresh_forms(Context& context);

  /// "parameters/NAME", and in training "optimizer/NAME/exp_avg", ".../exp_avg_sq": the boxes that
  /// this rank owns.
  [[nodiscard]] State state() const;

  struct Bytes {
    std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  };
  /// What a store of these parameters takes, without making it.
  static Bytes bytes_of(const std::vector<ParamMeta>& params, DType compute, StorePurpose purpose,
                        const StorePlace& place = {});

 private:
  enum class In : std::uint8_t { kLocal, kShard };
  [[nodiscard]] TensorView local_part(const TensorView& flat, std::int64_t origin,
                                      ParamRange range) const;
  [[nodiscard]] TensorView owned_part(const Buffer& buffer, In in, ParamIndex index) const;
  [[nodiscard]] In masters() const;
  [[nodiscard]] bool in_rows(ParamIndex index) const { return row_gradient_ && index == 0; }
  [[nodiscard]] TensorView kept_gradient(ParamRange range) const;
  void make_values(float* values, ParamIndex index, std::uint64_t key, const CutPart& part) const;

  std::vector<ParamMeta> params_;
  DType compute_;
  StorePurpose purpose_;
  StoreLayout layout_;
  WeightSource* source_ = nullptr;
  int open_block_ = -1;
  Buffer values_, forms_, gradients_, block_gradient_, shared_gradient_, exp_avg_, exp_avg_sq_;
  std::optional<RowGradient> row_gradient_;
  std::vector<TensorView> placed_;  // stage 3: of each block
};

}  // namespace trireme
