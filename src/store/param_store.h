#pragma once
// The parameters of one rank with their gradients and the optimizer's state. The model reads
// weights through leases and writes gradients (Gradients); the optimizer sees the rows that this
// rank owns (all of them without ZeRO).
//
//   ZeRO stage        0        1        2        3
//   weights           whole    whole    whole    owned, gathered block by block
//   fp8 scales        whole    whole    whole    whole
//   base              whole    whole    whole    owned, gathered block by block   (ParamMeta::base)
//   fp32 masters      whole    owned    owned    owned      (bf16; in fp32 the weights themselves)
//   gradients         whole    whole    owned    owned      (2, 3: one block whole at a time)
//   optimizer state   whole    owned    owned    owned
//
// "Whole" is this rank's tensor-parallel shard.

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/context.h"
#include "store/gradients.h"
#include "store/quantized_layout.h"
#include "store/state.h"
#include "store/store_layout.h"
#include "tensor/buffer.h"
#include "tensor/nf4_view.h"
#include "tensor/quantized_segments.h"

namespace trireme {

/// The name of averaged weights.
inline constexpr const char* kAverageState = "ema";

/// What a state has a value for.
enum class StateOf : std::uint8_t {
  kElements,
  kRows,          ///< of a matrix
  kColumns,       ///< likewise; all of them on each rank of ZeRO
  kMomentBlocks,  ///< store/moment_blocks.h
};

/// Values of the optimizer beside a parameter: declared by it, held, sharded and saved by the
/// store. Two of one name are of different parameters.
struct OptimizerState {
  std::string name;  ///< of the checkpoint: "optimizer/PARAMETER/NAME", or "ema/PARAMETER"
  DType dtype = DType::kF32;
  std::function<bool(const ParamMeta&)> has = {};  ///< which trained parameters; empty: all
  StateOf of = StateOf::kElements;
  bool begins_with_value = false;  ///< else with zeros
};
/// The name of a parameter's state in a checkpoint.
std::string state_name(const ParamMeta& param, const OptimizerState& state);

/// What a store holds besides the values.
struct StoreContents {
  bool gradients = false;
  std::vector<OptimizerState> states = {};
  /// Products read what the optimizer makes of a value: in fp32 too weights have memory of their
  /// own.
  bool weights_apart = false;
};

/// Brings the weights of blocks that are not whole on this rank, or not up to date.
class WeightProvider {
 public:
  virtual ~WeightProvider() = default;
  /// The block's weights are whole until `release`. `next`: the block after it, or -1.
  virtual void acquire(int block, int next) = 0;
  virtual void release(int block) = 0;
};

class ParamStore {
 public:
  /// `compute`: the type that weights are read in; kBF16 adds a copy of every parameter, in fp8 of
  /// those that are declared so (ParamMeta::fp8); kF32 where weights stand apart.
  ParamStore(std::vector<ParamMeta> params, DType compute, StoreContents contents,
             Device device = {}, const ParamDistribution& distribution = {});
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  [[nodiscard]] const std::vector<ParamMeta>& params() const { return params_; }
  [[nodiscard]] const StoreLayout& layout() const { return layout_; }
  /// Elements of the global parameters, each counted on one of the ranks that hold it.
  [[nodiscard]] std::int64_t element_count() const;
  [[nodiscard]] DType compute() const { return compute_; }
  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] const StoreContents& contents() const { return contents_; }

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
    /// Where parameters stand, whose shapes are those of this rank.
    [[nodiscard]] const StoreLayout& layout() const { return store_->layout_; }
    /// With the rows of zeros that follow (ParamMeta::row_alignment).
    [[nodiscard]] ConstTensorView padded_weight(ParamIndex index) const;
    /// Of parameters in fp8, which have no `weight`.
    [[nodiscard]] ConstQuantizedView quantized(ParamRange range) const;
    /// Its transpose, padded along what were rows: made when it is first asked for.
    [[nodiscard]] ConstQuantizedView turned(Context& context, ParamRange range) const;
    /// Of parameters in NF4, which have no `weight`. Of a fused range all but the last are whole
    /// blocks.
    [[nodiscard]] ConstNf4View nf4(ParamRange range) const;
    /// The same of a fused range that is many matrices of `each` parameters (experts).
    [[nodiscard]] ConstQuantizedMatrices quantized(ParamRange range, int each) const;
    [[nodiscard]] ConstQuantizedMatrices turned(Context& context, ParamRange range, int each) const;

   private:
    friend class ParamStore;
    Lease(const ParamStore& store, int block) : store_(&store), block_(block) {}
    const ParamStore* store_;
    int block_;
  };
  /// `next` (where given) is the block that is acquired after this one.
  [[nodiscard]] Lease acquire(int block, int next = -1) const;
  /// Leases ask `provider` from now on; it must outlive them.
  void set_provider(WeightProvider& provider) { provider_ = &provider; }

  /// The rows that this rank owns: a parameter's fp32 value, its copy that products read (not given
  /// where that is the value, nor of one in fp8), its fp8 codes, the optimizer's state `slot`. No
  /// rows in an empty shard, nor states if not trained.
  [[nodiscard]] TensorView value(ParamIndex index) const;
  [[nodiscard]] TensorView copy(ParamIndex index) const;
  [[nodiscard]] TensorView codes(ParamIndex index) const;
  [[nodiscard]] TensorView optimizer_state(std::size_t slot, ParamIndex index) const;
  /// Of the state of that name, which the parameter must have.
  [[nodiscard]] TensorView optimizer_state(std::string_view name, ParamIndex index) const;
  /// Where contents().gradients.
  [[nodiscard]] Gradients& gradients() { return *gradients_; }
  [[nodiscard]] const Gradients& gradients() const { return *gradients_; }
  /// False where a parameter is a gradient alone.
  [[nodiscard]] bool has_value(ParamIndex index) const {
    return params_[static_cast<std::size_t>(index)].shares == kNoParam;
  }

  [[nodiscard]] int block_count() const { return layout_.block_count(); }
  /// Where weights of a form lie, and their type.
  [[nodiscard]] const StoreLayout& layout(WeightForm form) const { return form_of(form).layout; }
  [[nodiscard]] DType type_of(WeightForm form) const { return trireme::type_of(form, compute_); }
  /// The weights of a block in that form, in the local layout. Stages 0 to 2.
  [[nodiscard]] TensorView block_weights(int block, WeightForm form) const;
  /// The owned weights of a block and view in that form, in the shard layout. Stage 3.
  [[nodiscard]] TensorView block_weight_shard(int block, MeshView view, WeightForm form) const;
  /// Stage 3: leases of `block` read `weights` (local layout of the block) from now on.
  void place_weights(int block, WeightForm form, TensorView weights);
  /// Stage 3: zeros behind the rows of the block's weights, where another block's may have stood.
  void clear_padding(Context& context, int block);

  /// Stage 3: where the transposes of a block's fp8 weights stand from now on.
  void place_turned(int block, TensorView codes);
  /// The codes of a block have changed, or of all: transposes are made anew.
  void codes_changed(int block);
  void codes_changed();

  /// Initial values by (seed, name, global index), made on the host: equal bits on any mesh. None
  /// of what stands in codes without an fp32 value.
  void initialise(Context& context, std::uint64_t seed);
  /// Rounds the owned values into their copies, where there are any.
  void refresh_copies(Context& context);

  /// Of parameters in fp8: the largest magnitudes of all blocks, as bits, and their scales. In the
  /// order of the layout.
  [[nodiscard]] const QuantizedLayout& quantized() const { return quantized_; }
  [[nodiscard]] TensorView largest() const { return largest_.view(); }
  [[nodiscard]] TensorView scales() const { return scales_.view(); }

  /// "parameters/NAME", and "optimizer/NAME/STATE" or "ema/NAME" of each state: the boxes that this
  /// rank owns, of all but the base; states of what is trained.
  [[nodiscard]] State state() const;
  /// "parameters/NAME" in fp32 of the base (ParamMeta::base): the boxes of this rank's rows, in
  /// memory that `rows_of` names.
  [[nodiscard]] State base_state(const std::function<std::byte*(ParamIndex)>& rows_of) const;
  [[nodiscard]] Shape base_shape(ParamIndex index) const {
    return base_layout(index).owned_shape(index);
  }
  /// Those rows as products read them: fp32, bf16, or codes in fp8; of parameters in NF4 the other.
  [[nodiscard]] TensorView base_rows(ParamIndex index) const;
  [[nodiscard]] Nf4View base_nf4(ParamIndex index) const;

  struct Bytes {
    std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  };
  /// What a store of these parameters takes, without making it.
  static Bytes bytes_of(const std::vector<ParamMeta>& params, DType compute,
                        const StoreContents& contents, const ParamDistribution& distribution = {});

 private:
  enum class In : std::uint8_t { kLocal, kShard };
  static TensorView owned_part(const StoreLayout& layout, const Buffer& buffer, In in,
                               ParamIndex index);
  /// One of the optimizer's states: parameters without it have no room.
  struct StoredState {
    std::vector<ParamMeta> params;  ///< params_ as the state lies
    StoreLayout layout;
    Buffer memory;
  };
  /// Weights of one form.
  struct Form {
    StoreLayout layout;
    Buffer memory;
    std::vector<TensorView> placed;  // stage 3: of each block
  };
  using Forms = std::array<Form, kWeightForms.size()>;
  static Forms make_forms(const std::vector<ParamMeta>& params,
                          const ParamDistribution& distribution);
  [[nodiscard]] const Form& form_of(WeightForm form) const {
    return forms_[static_cast<std::size_t>(form)];
  }
  /// Weights have memory beside the values.
  [[nodiscard]] bool apart() const;
  /// What leases read: where they are not apart the values.
  [[nodiscard]] TensorView weights(WeightForm form) const {
    const TensorView own = form_of(form).memory.view();
    return own.given() || is_coded(form) ? own : values_.view();
  }
  [[nodiscard]] TensorView leased(int block, WeightForm form, ParamRange range) const;
  /// The same, `shape` of that form's units from where `first` begins.
  [[nodiscard]] TensorView leased(int block, WeightForm form, ParamIndex first,
                                  const Shape& shape) const;
  [[nodiscard]] TensorView owned_weight(WeightForm form, ParamIndex index) const;
  [[nodiscard]] In masters() const;
  [[nodiscard]] const StoreLayout& base_layout(ParamIndex index) const;
  void make_values(float* values, ParamIndex index, std::uint64_t key, const CutPart& part) const;

  std::vector<ParamMeta> params_;
  DType compute_;
  Device device_;
  StoreContents contents_;
  StoreLayout layout_, trained_;
  WeightProvider* provider_ = nullptr;
  Buffer values_;
  Forms forms_;
  QuantizedLayout quantized_;
  Buffer largest_, scales_;
  Buffer turned_scales_, turned_;           // the latter to stage 2
  std::vector<TensorView> turned_blocks_;   // of each block
  mutable std::vector<char> turned_fresh_;  // of each of quantized_.turned()
  std::vector<StoredState> states_;         // of each that the optimizer has declared
  std::optional<Gradients> gradients_;
};

/// The parameters as a state of the optimizer lies, trained those that have it.
std::vector<ParamMeta> params_of_state(const std::vector<ParamMeta>& params,
                                       const OptimizerState& state,
                                       const ParamDistribution& distribution);
/// Where it lies: as gradients of these would.
StoreLayout state_layout(const std::vector<ParamMeta>& params, const OptimizerState& state,
                         const ParamDistribution& distribution);

/// What ParamStore::state() of such a store names, without its memory: for the plan.
State state_boxes(const std::vector<ParamMeta>& params, const std::vector<OptimizerState>& states,
                  const ParamDistribution& distribution = {});

}  // namespace trireme
