#pragma once
// The parameters of one rank with their gradients and moments, each kind one flat buffer with the
// same offsets. The model reads weights through leases; gradients are fp32 and accumulate over the
// micro-batches of a step.

#include <cstdint>
#include <span>
#include <vector>

#include "device/context.h"
#include "parallel/param.h"
#include "parallel/state.h"
#include "tensor/buffer.h"

namespace trireme {

/// What the store must hold besides the values.
enum class StorePurpose : std::uint8_t { kInference, kTraining };

/// Which of the two accumulators of a tied parameter.
enum class Home : std::uint8_t { kOwner, kSecond };

class ParamStore {
 public:
  /// `compute`: the type that weights are read in; kBF16 adds a rounded form of every parameter.
  ParamStore(std::vector<ParamMeta> params, DType compute, StorePurpose purpose,
             Device device = {});

  [[nodiscard]] const std::vector<ParamMeta>& params() const { return params_; }
  /// Elements without the padding between groups.
  [[nodiscard]] std::int64_t element_count() const;
  [[nodiscard]] DType compute() const { return compute_; }

  /// Weights of one block for as long as the object lives, in the compute type.
  class Lease {
   public:
    /// One parameter, or a fused range as one tensor of their rows (sizes for vectors).
    [[nodiscard]] ConstTensorView weight(ParamRange range) const;
    [[nodiscard]] ConstTensorView weight(ParamIndex index) const { return weight({index, index}); }

   private:
    friend class ParamStore;
    explicit Lease(const ParamStore& store) : store_(store) {}
    const ParamStore& store_;
  };
  [[nodiscard]] Lease acquire([[maybe_unused]] int block) const { return Lease(*this); }

  /// The fp32 value, gradient and moments of a parameter (a fused range as one tensor for
  /// gradients).
  [[nodiscard]] TensorView value(ParamIndex index) const;
  [[nodiscard]] TensorView gradient(ParamRange range, Home home = Home::kOwner) const;
  [[nodiscard]] TensorView gradient(ParamIndex index) const { return gradient({index, index}); }
  [[nodiscard]] TensorView exp_avg(ParamIndex index) const;
  [[nodiscard]] TensorView exp_avg_sq(ParamIndex index) const;
  /// The bf16 form of a parameter; not given in fp32.
  [[nodiscard]] TensorView form(ParamIndex index) const;

  [[nodiscard]] int block_count() const { return block_count_; }
  /// All gradients of a block, as they lie: what one reduction sums.
  [[nodiscard]] std::span<float> block_gradients(int block) const;

  /// Initial values by (seed, name, global element index), made on the host: the same bits on every
  /// mesh and device.
  void initialise(Context& context, std::uint64_t seed);
  /// Rounds all values into their bf16 forms; nothing in fp32.
  void refresh_forms(Context& context);
  /// Those that are not set by a product.
  void clear_gradients(Context& context);
  /// Adds the second accumulator of tied parameters into the first.
  void add_tied_gradients(Context& context);

  /// "parameters/NAME", and in training "optimizer/NAME/exp_avg", ".../exp_avg_sq", as copy
  /// `replica` of `replicas`.
  [[nodiscard]] State state(int replica, int replicas) const;

  struct Bytes {
    std::int64_t parameters = 0, gradients = 0, optimizer = 0;
  };
  /// What a store of these parameters takes, without making it.
  static Bytes bytes_of(const std::vector<ParamMeta>& params, DType compute, StorePurpose purpose);

 private:
  [[nodiscard]] TensorView part_of(const Buffer& buffer, ParamRange range) const;

  std::vector<ParamMeta> params_;
  DType compute_;
  StorePurpose purpose_;
  std::vector<std::int64_t> offsets_;  // one more than parameters: the last is the end
  int block_count_ = 0;
  ParamIndex tied_ = kNoParam;
  Buffer values_, forms_, gradients_, second_gradient_, exp_avg_, exp_avg_sq_;
};

}  // namespace trireme
