#pragma once
// The layers of this rank's virtual stages (chunks), their buffers, and all weight leases.

#include <array>
#include <map>
#include <span>
#include <vector>

#include "device/memory.h"
#include "model/head.h"
#include "model/walk.h"
#include "pipeline/device_batches.h"
#include "pipeline/slots.h"
#include "pipeline/stage_program.h"

namespace trireme {

enum class StagePurpose : std::uint8_t {
  kEvaluation,     ///< forward only: the activations of two layers suffice
  kTraining,       ///< backward layer by layer (BW)
  kTrainingSplit,  ///< B and W apart: each layer keeps what W needs
};

/// What a stage has of the model and of a sequence.
struct StageCut {
  AxisRank tensor;
  bool sequence_parallel = false;
  AxisRank context;
  ContextMethod context_method = ContextMethod::kRing;
  ExpertCut expert;
};

/// A chunk, and which memory its micro-batches take of what all chunks of the stage share: layer l
/// of micro-batch i has entry (i·layers + l) modulo their number, what is of no layer entry i. -1,
/// or no entry: none.
struct ChunkShape {
  ChunkRange range;
  std::vector<std::int32_t> ends;         ///< what it takes and leaves at its ends
  std::vector<std::int32_t> activations;  ///< of the layers, from F on
  /// Of the layers, from B to W; -1: they are one action.
  std::vector<std::int32_t> gradients = {};
  std::vector<std::int32_t> embedding_gradients = {};  ///< the same behind the embedding
  std::vector<std::int32_t> recomputed = {};           ///< of the layers, from R to B
};

/// Of each virtual stage of a schedule, which has these parts of the model.
std::vector<ChunkShape> chunks_of(const Schedule& schedule, const std::vector<ChunkRange>& stages);
/// Of several schedules, one of which each step runs: the entries of the next behind those of the
/// one before, so that the memory is that of the one that needs most.
void append(std::vector<ChunkShape>& chunks, const std::vector<ChunkShape>& next);
/// Of a chunk that shares with no other: so many micro-batches in flight, between B and W, after R.
ChunkShape lone_chunk(const ChunkRange& range, int in_flight, int waiting = 1, int recomputed = 0);

struct StageShape {
  std::int64_t sequences = 1, tokens = 1;  ///< of a micro-batch; whole sequences
  int in_flight = 1;                       ///< of the whole model, where no chunks are given
  StagePurpose purpose = StagePurpose::kTraining;
  StageCut cut = {};
  Recompute recompute = Recompute::kNone;
  std::vector<ChunkShape> chunks = {};  ///< in order of the model; none: the whole
  /// Micro-batches of the steps whose entries the chunks have, one behind the other; none: any
  /// number, which the entries serve in turn.
  std::vector<std::int64_t> steps = {};
  DeviceKind device = DeviceKind::kCpu;
  std::optional<Fp8Precision> fp8 = {};  ///< of products that are declared so
  bool nf4 = false;                      ///< weights are declared to be in NF4
  bool turns = false;                    ///< a forward and a backward may run in turns (Executor)

  /// Of a micro-batch, those that are computed here.
  [[nodiscard]] std::int64_t local_tokens() const {
    return sequences * div_exact(tokens, cut.context.extent);
  }
};

/// Where the stage meets the others that compute the same micro-batches; alone by default.
struct StageAxes {
  TensorAxis tensor;
  ContextAxis context;
  ExpertAxis expert = {};
  /// Of each layer with experts; none: neighbours together.
  std::vector<ExpertPlaces> places = {};
};

/// What balances the experts of a step (RunConfig::Moe).
struct StageBalance {
  double aux_coefficient = 0, z_loss = 0;
  bool whole_batch = false;  ///< BalanceScope::kGlobal
  std::int64_t sequence_tokens = 1;
  std::int64_t pass_tokens = 1;  ///< of a micro-batch of all data ranks
};

class Stage final : public StageProgram {
 public:
  /// References must outlive it. `axes` are those of shape.cut. Everything is allocated here.
  Stage(Context& context, const ModelConfig& config, const ModelParams& params, ParamStore& store,
        const StageShape& shape, StageAxes axes = {});

  /// Bytes that the buffers of such a stage take.
  static std::int64_t buffer_bytes(const ModelConfig& config, const StageShape& shape,
                                   DType compute);

  /// The next actions, and what is asked of slots, are of a step of so many micro-batches.
  void take_step_of(std::int64_t micro_batches);
  /// The micro-batches of the next step's actions, and how many targets its global batch counts.
  void begin_step(std::span<const MicroBatch> micro_batches, std::int64_t target_count);
  /// Adapters begin: each magnitude is the length of its row of W (AdapterConfig). The store's own
  /// values; copies of them are stale then. Collective over the tensor axis, as a pass.
  void begin_magnitudes();
  /// Where the context reads those micro-batches.
  [[nodiscard]] std::span<const MicroBatch> batches_of_step() const { return micro_batches_; }
  /// Those actions begin, maybe once more: gradients and the loss are zero.
  void rewind();
  void forward(int chunk, int micro_batch) override;
  void recompute(int chunk, int micro_batch) override;
  void backward_input(int chunk, int micro_batch) override;
  void backward_weight(int chunk, int micro_batch, LastMicroBatch last) override;
  void backward(int chunk, int micro_batch, LastMicroBatch last) override;
  [[nodiscard]] TensorView boundary(int chunk, int micro_batch, Boundary which) override;
  void copy(TensorView to, TensorView from) override;
  [[nodiscard]] int slot(int chunk, int micro_batch) const override;
  [[nodiscard]] bool takes_turns() const override { return shape_.turns; }
  /// How experts are balanced in training; by default not at all.
  void set_balance(const StageBalance& balance) { balance_ = balance; }
  [[nodiscard]] bool has_aux_loss() const { return balance_.aux_coefficient != 0; }
  /// Of this rank since begin_step, by layer of the model: auxiliary and z-loss; how many tokens
  /// chose each expert. Waits for them.
  struct ExpertTotals {
    std::vector<std::array<double, 2>> losses;
    std::vector<std::vector<std::int64_t>> load;
  };
  [[nodiscard]] ExpertTotals expert_totals();
  /// Weight of the squares of log-sum-exps in training; by default none.
  void set_z_loss(double z_loss) { z_loss_ = static_cast<float>(z_loss); }
  /// Of the tokens of the forwards since begin_step: the sum of losses, in their order, and with a
  /// z-loss that of squares of log-sum-exps. Waits for them.
  [[nodiscard]] double loss_sum();
  [[nodiscard]] double square_sum();

  /// Until the next step `forward` of micro-batch 0 is of this one alone; then loss_sum().
  void begin_evaluation(const MicroBatch& micro_batch);
  /// All of that for a stage that is the whole model.
  double evaluate(const MicroBatch& micro_batch);

 private:
  /// What a micro-batch in flight has at the ends of a chunk.
  struct Ends {
    NormActivations final_norm;
    TensorView final_n_TC;               // its gradient once the head has run
    NormGradients final_norm_gradients;  // from B to W
    // Residual rows for the next stage; their gradient, and once B has read it that for the stage
    // before.
    TensorView out_SC, gradient_SC;
    bool recomputed = false;  // by R, until B
  };
  /// From B of a layer to its W.
  struct Kept {
    BlockGradients gradients;
    BlockActivations acts;  // of W, where layers share those
  };
  struct Buffers {
    // What chunks name by its number, of a micro-batch or of a layer of one.
    std::vector<Ends> ends;
    std::vector<BlockActivations> activations;  // with the shared ones joined
    std::vector<Kept> kept;
    std::vector<TensorView> embedding_gradients_TC;
    std::vector<BlockActivations> recomputed;  // the shared ones, as R leaves them
    TensorView input_gradient_TC;           // of any chunk behind another, where B and W are apart
    std::vector<BlockGradients> gradients;  // of BW: two sets in turns
    BlockActivations spare;                 // memory that B writes in exchange for a layer's
    BlockForwardScratch forward;
    HeadBuffers head;
    AttentionScratch backward;
    Fp8Scratch fp8;
    AdapterScratch adapters;
    TensorView widened;                        // the largest weight in codes, as values
    ExpertsScratch experts, experts_backward;  // the same, where they do not take turns
  };
  /// The magnitudes of a product or layer, from its gains.
  void take_lengths(const AdapterParams& params, const AdapterWeights& from);
  void take_lengths(const BlockParams& params, const BlockWeights& weights);
  /// Without rows of a chunk of tokens.
  static AdapterWeights head_adapter(const ParamStore::Lease& lease, const ChunkParams& chunk);
  static Buffers lay_out(ArenaCursor& arena, const ModelConfig& config, const StageShape& shape,
                         DType compute);

  enum class Direction : std::uint8_t { kForward, kBackward };
  [[nodiscard]] ModelPass pass_of(const MicroBatch& micro_batch, Direction direction);
  /// Of one layer.
  [[nodiscard]] static LayerShape layer_shape(const ModelConfig& local, const LayerConfig& layer,
                                              const StageShape& shape, DType compute);
  [[nodiscard]] LayerShape shape_of(int chunk, std::int64_t layer) const;
  void prepare_experts();
  void begin_experts(const ExpertsBalance& balance);
  [[nodiscard]] ExpertsBalance experts_balance() const;
  static std::vector<ChunkShape> chunks_of(const ModelConfig& config, const StageShape& shape);
  /// For the chunks that take them.
  static Ends lay_out_ends(ArenaCursor& arena, const LayerShape& layer,
                           std::span<const ChunkRange> chunks, StagePurpose purpose);
  static Kept lay_out_kept(ArenaCursor& arena, const LayerShape& layer);
  [[nodiscard]] std::int32_t entry_in(std::vector<std::int32_t> ChunkShape::*list, int chunk,
                                      int micro_batch, std::int64_t layer) const;
  [[nodiscard]] LayerActivations forward_acts(int chunk, int micro_batch) const;
  [[nodiscard]] BlockActivations& acts_of(int chunk, int micro_batch, std::int64_t layer);
  /// The same for R, B and W, with what this layer keeps apart from the others.
  [[nodiscard]] BlockActivations own_acts(int chunk, int micro_batch, std::int64_t layer);
  /// Null where B and W of that micro-batch are one action.
  [[nodiscard]] Kept* kept_of(int chunk, int micro_batch, std::int64_t layer);
  [[nodiscard]] BlockActivations& recomputed_of(int chunk, int micro_batch, std::int64_t layer);
  /// Where the residual gradient behind a layer lies; -1: before the first.
  [[nodiscard]] StreamGradient dy_of(int chunk, int micro_batch, std::int64_t layer);
  /// What BW takes for a layer.
  [[nodiscard]] const BlockGradients& gradients_in_turns(std::int64_t layer) const;
  /// Where B of a layer puts what W needs, and where W finds it.
  [[nodiscard]] BlockGradients gradients_of_b(int chunk, int micro_batch, std::int64_t layer);
  [[nodiscard]] BlockGradients gradients_of_w(int chunk, int micro_batch, std::int64_t layer);
  [[nodiscard]] bool split() const { return shape_.purpose == StagePurpose::kTrainingSplit; }
  Ends& ends_of(int chunk, int micro_batch);
  [[nodiscard]] const ChunkParams& params_of(int chunk) const {
    return params_.chunks[static_cast<std::size_t>(chunk)];
  }
  [[nodiscard]] WeightReader reader_of(int chunk, ActionKind kind) const;
  /// Of layer `layer` of a chunk.
  [[nodiscard]] int block_of_layer(const ChunkParams& chunk, std::int64_t layer) const;
  struct ForwardOf {
    const MicroBatch& micro_batch;
    LayerActivations acts;
    Ends& ends;
    const HeadTraining* training;  // null where no backward pass follows
  };
  void run_forward(int chunk, const ForwardOf& of);
  void embed(const ModelPass& pass, WeightReader& weights, const ChunkParams& chunk,
             const MicroBatch& micro_batch, const BlockActivations& first);
  void run_head(const ModelPass& pass, WeightReader& weights, const ChunkParams& chunk,
                const ForwardOf& of, ConstTensorView stream);
  [[nodiscard]] double number(const Buffer& one);
  void begin_backward(WeightReader& weights, int chunk, int micro_batch);
  enum class BackwardHalves : std::uint8_t { kInput, kBoth };
  void backward_layer(const ModelPass& pass, WeightReader& reader, int chunk, int micro_batch,
                      std::int64_t layer, BackwardHalves halves);
  void send_gradient(int chunk, int micro_batch);
  [[nodiscard]] std::int64_t first_trained(int chunk) const {
    return params_.first_trained(params_of(chunk).range);
  }
  /// W of one layer.
  void weight_layer(const ModelPass& pass, int chunk, int micro_batch, std::int64_t layer);
  void end_head(int chunk, int micro_batch, bool last);
  void end_backward(int chunk, int micro_batch, bool last);
  void backward_head(WeightReader& weights, int chunk, int micro_batch);
  void backward_embedding(int chunk, int micro_batch);

  Context& context_;
  const ModelConfig& config_;
  const ModelConfig local_;  // of this tensor-parallel rank
  const ModelParams& params_;
  ParamStore& store_;
  StageShape shape_;
  StageAxes axes_;
  VocabularyPart vocabulary_;
  Memory memory_;
  const LayerConfig largest_;     // that shared buffers are laid out for
  const LayerShape layer_shape_;  // its
  const RopeTables ropes_;
  const std::vector<ChunkShape> chunks_;
  Buffers buffers_;
  std::optional<Fp8Products> fp8_;
  Buffer loss_sum_, square_sum_, loss_scale_;
  float z_loss_ = 0;
  Buffer expert_losses_, expert_load_;  // of each layer of the model, with experts
  StageBalance balance_;
  std::optional<ExpertsPass> experts_, experts_backward_;
  std::map<std::pair<const ChunkParams*, ActionKind>, std::vector<int>> reads_;
  DeviceBatches device_batches_;
  std::span<const MicroBatch> micro_batches_;
  std::int64_t first_entry_ = 0;  // of the chunks', in micro-batches: of the step that is taken
  bool evaluating_ = false;
};

}  // namespace trireme
