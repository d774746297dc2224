#pragma once
// The layers of one stage, with the buffers of their passes. The only place that holds weight
// leases.

#include <functional>
#include <span>
#include <vector>

#include "device/memory.h"
#include "model/block.h"
#include "model/head.h"
#include "pipeline/device_batches.h"
#include "pipeline/stage_program.h"

namespace trireme {

enum class StagePurpose : std::uint8_t {
  kEvaluation,     ///< forward only: the activations of two layers suffice
  kTraining,       ///< backward layer by layer (BW)
  kTrainingSplit,  ///< B and W apart: each layer keeps what W needs
};

/// What a stage has of the model and of a sequence.
struct StageCut {
  AxisPlace tensor;
  bool sequence_parallel = false;
  AxisPlace context;
  ContextMethod context_method = ContextMethod::kRing;
};

struct StageShape {
  std::int64_t sequences = 1, tokens = 1;  ///< of a micro-batch; whole sequences
  int in_flight = 1;  ///< micro-batches between their F and their last backward action
  StagePurpose purpose = StagePurpose::kTraining;
  StageCut cut = {};
  Recompute recompute = Recompute::kNone;

  /// Of a micro-batch, those that are computed here.
  [[nodiscard]] std::int64_t local_tokens() const {
    return sequences * div_exact(tokens, cut.context.extent);
  }
};

/// Where the stage meets the others that compute the same micro-batches; alone by default.
struct StageAxes {
  TensorAxis tensor;
  ContextAxis context;
};

class Stage final : public StageProgram {
 public:
  /// References must outlive the stage. `axes` are those of shape.cut. Everything is allocated
  /// here.
  Stage(Context& context, const ModelConfig& config, const ModelParams& params, ParamStore& store,
        const StageShape& shape, StageAxes axes = {});

  /// Bytes that the buffers of such a stage take.
  static std::int64_t buffer_bytes(const ModelConfig& config, const StageShape& shape,
                                   DType compute);

  /// The micro-batches that the actions of the next step speak of, and how many targets the whole
  /// global batch counts. `gradients_ready(block)` is called when a block's gradients are final
  /// here: of the step, or of a micro-batch where the store does not keep them.
  void begin_step(std::span<const MicroBatch> micro_batches, std::int64_t target_count,
                  const std::function<void(int)>& gradients_ready);
  /// Where the context reads those micro-batches.
  [[nodiscard]] std::span<const MicroBatch> batches_of_step() const { return micro_batches_; }
  /// The actions of the step begin, once more: sums are set anew.
  void rewind();
  void forward(int chunk, int micro_batch) override;
  void backward_input(int chunk, int micro_batch) override;
  void backward_weight(int chunk, int micro_batch, Pass pass) override;
  void backward(int chunk, int micro_batch, Pass pass) override;
  /// Sum of the token losses of the forwards since begin_step, micro-batches in the order they ran.
  /// Waits for them.
  [[nodiscard]] double loss_sum();

  /// Sum of the token losses, no gradients. Not between a forward and its backward.
  double evaluate(const MicroBatch& micro_batch);

 private:
  struct Slot {                            // what one micro-batch in flight keeps
    std::vector<BlockActivations> blocks;  // with the shared ones joined
    TensorView final_s_TC, final_n_TC, final_mean_T, final_rstd_T;
    TensorView dn_TC;
  };
  struct Buffers {
    std::vector<Slot> slots;
    std::vector<BlockGradients> gradients;
    BlockForwardScratch forward;
    HeadBuffers head;
    BlockBackwardScratch backward;
  };
  static Buffers lay_out(ArenaCursor& arena, const ModelConfig& config, const StageShape& shape,
                         DType compute);

  [[nodiscard]] BlockPass pass_of(const MicroBatch& micro_batch);
  [[nodiscard]] static BlockShape block_shape(const ModelConfig& local, const StageShape& shape,
                                              DType compute);
  [[nodiscard]] const BlockActivations& acts_of(const Slot& slot, std::size_t layer) const;
  [[nodiscard]] const BlockGradients& gradients_of_layer(int micro_batch, std::int64_t layer) const;
  Slot& slot_of(int micro_batch);
  void run_forward(const MicroBatch& micro_batch, Slot& slot, const HeadTraining* training);
  void embed(const MicroBatch& micro_batch, const BlockActivations& first);
  void backward_layer(const BlockPass& pass, int micro_batch, std::int64_t layer);
  [[nodiscard]] Accumulate accumulate_or_set(Accumulate of_step) const {
    return store_.keeps_gradients() ? of_step : Accumulate::kNo;
  }
  void backward_head(int micro_batch);
  void backward_embedding(int micro_batch);
  /// The block's gradients are final, where `last` or where they leave with each micro-batch.
  void ready(int block, bool last) const;

  Context& context_;
  const ModelConfig& config_;
  const ModelConfig local_;  // of this place of the tensor axis
  const ModelParams& params_;
  ParamStore& store_;
  StageShape shape_;
  StageAxes axes_;
  VocabularyPart vocabulary_;
  Memory memory_;
  Buffers buffers_;
  Buffer rope_table_, loss_sum_;
  DeviceBatches device_batches_;
  std::span<const MicroBatch> micro_batches_;
  std::int64_t target_count_ = 0;
  std::function<void(int)> gradients_ready_;
  // Of this step: the first product sets a weight's gradient, later ones add to it.
  Accumulate head_accumulate_ = Accumulate::kNo, block_accumulate_ = Accumulate::kNo;
};

}  // namespace trireme
