#pragma once
// The branch of a layer whose tokens each go to a few of many MLPs, by choice of a router, and to
// one that all tokens share where the model has it:
//   n = norm(s);   l = n Wr;   (e_j, w_j) = router(l);   y = sum_j down_e(w_j act_e(n)) (+ shared)
// A token's weight multiplies the activation in front of the last product, so that its gradient
// needs no stored output of an expert: dL/dw = <da, a> (Megatron-LM does the same). Biases stand in
// the op of the activation, and w_j b_e behind the last product, by the first of the ranks that
// have parts of an expert.
//
// Each rank routes tokens of its own, its home tokens: the residual rows under sequence
// parallelism, else an even share of the rows that tensor-parallel ranks have alike. They travel as
// ExpertAxis says.

#include <memory>
#include <vector>

#include "kernels/router/router.h"
#include "model/branch.h"
#include "model/expert_adapters.h"
#include "model/expert_products.h"
#include "parallel/expert_axis.h"

namespace trireme {

struct ExpertsWeights {
  LinearWeights router, shared_gate;
  ConstTensorView bias_E;
  ExpertMatrices in, out;  ///< [G, 2F, C], [G, C, F]: the G experts of this rank
  ExpertAdapters in_adapter, out_adapter;
};
ExpertsWeights weights_of(const ParamStore::Lease& lease, const ExpertsParams& params);

/// In blocks of fp8: whether units leave codes in place of rows: h for the last product; of a layer
/// that is trained the gradient of gate and up along, and both across for W.
inline bool expert_units_leave_codes(const LayerConfig& layer, int expert_tensor_extent) {
  if (!layer.experts || layer.experts->biased) return false;
  const bool whole = expert_tensor_extent == 1 || layer.experts->ffn % ScaleDim::kAlignment == 0;
  return whole && layer.adapters.experts_in == 0 && layer.adapters.experts_out == 0;
}

/// What backward reads of the forward pass: at home, and of received rows.
struct ExpertsActivations {
  TensorView logits_SE, chosen_Sk, weights_Sk;
  TensorView balance_BE;  ///< dL/dp of each sequence's tokens, with an auxiliary loss
  /// Of the shared MLP's gate: n wg, of one expert that is chosen, sigmoid(n wg).
  TensorView gate_logits_T1, gate_chosen_T1, gate_T1;
  ExpertRouteTables route_tables;          ///< where tokens travel
  TensorView x_RC, chosen_Rk, weights_Rk;  ///< received tokens, where they travel
  TensorView begins, row_slot, slot_row;   ///< the table of rows (kernels/expert_rows)
  TensorView in_RX;                        ///< of the first product
  TensorView in_us_RA, out_us_RA;          ///< of adapters
  std::shared_ptr<ExpertRoute> route;

  /// `visit(size, recomputed, view...)` of each, for the same of every `of`.
  template <class Visit, class... Of>
  static void each(const LayerShape& shape, const Visit& visit, Of&... of) {
    if (!shape.config.experts) return;
    const bool full = shape.recompute == Recompute::kFull;
    const ExpertsConfig& experts = *shape.config.experts;
    const std::int64_t home = shape.home_tokens(), received = shape.received_tokens(),
                       rows = shape.expert_rows(), k = experts.chosen;
    const auto take = [&](DType dtype, const Shape& size, auto&... view) {
      visit({dtype, size}, full, view...);
    };
    take(DType::kF32, {home, experts.count}, of.logits_SE...);
    take(DType::kI32, {home, k}, of.chosen_Sk...);
    take(DType::kF32, {home, k}, of.weights_Sk...);
    take(DType::kF32, {shape.sequences, experts.count}, of.balance_BE...);
    if (experts.shared_gate) {
      take(DType::kF32, {shape.tokens, 1}, of.gate_logits_T1...);
      take(DType::kI32, {shape.tokens, 1}, of.gate_chosen_T1...);
      take(DType::kF32, {shape.tokens, 1}, of.gate_T1...);
    }
    take(DType::kI32, {shape.expert.ranks() + 1}, of.route_tables.sources...);
    if (shape.expert.ranks() > 1) {
      take(DType::kI32, {received}, of.route_tables.sent_token...);
      take(DType::kI32, {home, k * shape.expert.tensor.extent}, of.route_tables.home_slot_row...);
      take(DType::kI32, {received, k}, of.chosen_Rk...);
      take(DType::kF32, {received, k}, of.weights_Rk...);
    }
    take(DType::kI32, {received, k}, of.slot_row...);
    take(shape.compute, {rows, 2 * experts.ffn}, of.in_RX...);
    const AdapterRanks& ranks = shape.config.adapters;
    if (ranks.experts_in > 0)
      visit(expert_adapter_rows(shape, ranks.experts_in), false, of.in_us_RA...);
    if (ranks.experts_out > 0)
      visit(expert_adapter_rows(shape, ranks.experts_out), false, of.out_us_RA...);
    each_of_weight(
        shape, [&](const TensorSize& size, auto&... view) { visit(size, full, view...); }, of...);
  }
  /// Of these what W reads: `visit(size, view...)`.
  template <class Visit, class... Of>
  static void each_of_weight(const LayerShape& shape, const Visit& visit, Of&... of) {
    if (!shape.config.experts) return;
    const std::int64_t groups = shape.local_experts() * shape.expert.ranks();
    if (shape.expert.ranks() > 1)
      visit({shape.compute, {shape.received_tokens(), shape.hidden}}, of.x_RC...);
    visit({DType::kI32, {groups + 1}}, of.begins...);
    visit({DType::kI32, {shape.expert_rows()}}, of.row_slot...);
  }
};

/// Memory of codes of rows across (QuantizedSegments).
struct ExpertCodes {
  TensorView codes, scales;

  [[nodiscard]] bool given() const { return codes.given(); }
  [[nodiscard]] QuantizedSegments of(const ScaleDim& columns, DType format) const {
    QuantizedSegments segments(codes, scales, columns.with_block(QuantizedSegments::kBlock), true);
    segments.codes.dtype = format;
    return segments;
  }
  template <class Own>
  static void each(const LayerShape& shape, std::int64_t columns, const Own& own,
                   ExpertCodes& memory) {
    const std::int64_t blocks = QuantizedSegments::blocks(
        shape.expert_rows(), shape.local_experts() * shape.expert.ranks());
    own({DType::kF8E4M3, {blocks, columns, QuantizedSegments::kBlock}}, memory.codes);
    own({DType::kF32, {blocks, columns}}, memory.scales);
  }
};

/// What B leaves for W.
struct ExpertsGradients {
  TensorView dlogits_SE;
  TensorView dgate_T, dgate_logits_T1;  ///< of the shared MLP's gate; f32, and for the product
  TensorView dy_RC;                     ///< of received tokens, where they travel
  TensorView din_RX, h_RF;
  ExpertCodes din, h;              ///< in place of these
  TensorView factors_R1;           ///< the rows' weights, for the gradient of biases
  TensorView in_du_RA, out_du_RA;  ///< of adapters

  template <class Own>
  static void each(const LayerShape& shape, const Own& own, ExpertsGradients& of) {
    if (!shape.config.experts) return;
    const ExpertsConfig& experts = *shape.config.experts;
    own({shape.compute, {shape.home_tokens(), experts.count}}, of.dlogits_SE);
    if (experts.shared_gate) {
      own({DType::kF32, {shape.tokens}}, of.dgate_T);
      own({shape.compute, {shape.tokens, 1}}, of.dgate_logits_T1);
    }
    if (shape.expert.ranks() > 1)
      own({shape.compute, {shape.received_tokens(), shape.hidden}}, of.dy_RC);
    if (shape.expert_codes) {
      ExpertCodes::each(shape, 2 * experts.ffn, own, of.din);
      ExpertCodes::each(shape, experts.ffn, own, of.h);
    } else {
      own({shape.compute, {shape.expert_rows(), 2 * experts.ffn}}, of.din_RX);
      own({shape.compute, {shape.expert_rows(), experts.ffn}}, of.h_RF);
    }
    if (experts.biased) own({shape.compute, {shape.expert_rows(), 1}}, of.factors_R1);
    const AdapterRanks& ranks = shape.config.adapters;
    if (ranks.experts_in > 0) own(expert_adapter_rows(shape, ranks.experts_in), of.in_du_RA);
    if (ranks.experts_out > 0) own(expert_adapter_rows(shape, ranks.experts_out), of.out_du_RA);
  }
};

/// Memory of one pass through the branch; all layers share it.
struct ExpertsScratch {
  TensorView rows_RC, h_RF;                               ///< of this rank's experts
  TensorView sent, sent_chosen, sent_weights, home_rows;  ///< where tokens travel
  TensorView dweights_R, home_dweights, dweights_Sk;      ///< f32
  TensorView router_SC;                                   ///< the router's part of n's gradient
  TensorView counts_BE;                                   ///< i32
  TensorView ones_R1;                                     ///< with biases
};
ExpertsScratch lay_out_experts_scratch(ArenaCursor& arena, const LayerShape& shape);

/// How tokens are kept from crowding: what is added to the loss (kernels/router).
struct ExpertsBalance {
  float aux_factor = 0;  ///< dL/dp = factor x count; 0: no auxiliary loss
  float z_factor = 0;
  bool whole_batch = false;  ///< BalanceScope::kGlobal: sequences count together
};

/// For the layers of a micro-batch.
struct ExpertsPass {
  const ExpertAxis& axis;
  const std::vector<ExpertPlaces>& places;  ///< of each layer of the model
  const ExpertsScratch& scratch;
  ExpertsBalance balance = {};
  TensorView losses_L2 = {};         ///< f64 [layers, 2], added to: auxiliary, z
  TensorView load_LBE = {};          ///< i32, added to; not given where nothing is counted
  std::int64_t sequence_tokens = 0;  ///< that a rank of the context axis has; 0: all are of one
};

struct ExpertTokens;  ///< what a rank's experts work on

/// One layer's forward pass in parts, between which tokens travel. `n` [T, C] has the home rows.
class ExpertsForward {
 public:
  enum class Count : std::uint8_t { kNo, kYes };
  ExpertsForward(const LayerPass& pass, const ExpertsWeights& weights,
                 const ExpertsActivations& acts)
      : pass_(pass), weights_(weights), acts_(acts) {}

  /// Chooses experts, and sends tokens on their way.
  void start(ConstTensorView n_TC, Count count);
  /// Up to acts.in.
  void first_product(ConstTensorView n_TC);
  /// Rows of the last product, and those that travel on their way home.
  void last_product();
  /// The home rows of y [T, C] = or +=; other rows are not touched.
  void combine(TensorView y_TC, Accumulate accumulate);

 private:
  void route(ConstTensorView n_SC, Count count);
  void balance(ConstTensorView counts_BE) const;
  [[nodiscard]] ExpertOperand units(const ExpertProducts& products,
                                    const ExpertTokens& tokens) const;

  const LayerPass& pass_;
  const ExpertsWeights& weights_;
  const ExpertsActivations& acts_;
  Pending x_, chosen_, weights_under_way_, home_;
};

/// B of one layer in parts, between which gradients travel; W.
struct ExpertsBackward {
  const LayerPass& pass;
  const Gradients& sink;
  const ExpertsParams& params;
  const ExpertsActivations& acts;
  const ExpertsGradients& left;

  /// The home rows of dy [T, C] on their way to the experts.
  [[nodiscard]] Pending start(ConstTensorView dy_TC) const;
  /// Gradients of the rows that experts have read, and of their weights, on their way home.
  struct GoingHome {
    Pending rows, dweights;
  };
  [[nodiscard]] GoingHome products(const ExpertsWeights& weights, ConstTensorView dy_TC,
                                   Pending dy) const;
  /// The home rows of dn [T, C], = or +=.
  void input(const ExpertsWeights& weights, GoingHome under_way, TensorView dn_TC,
             Accumulate accumulate) const;
  /// `n`, `dy` [T, C] have the home rows.
  void weight(ConstTensorView n_TC, ConstTensorView dy_TC) const;

 private:
  [[nodiscard]] ExpertOperand units(const ExpertProducts& products, TensorView dh_RF,
                                    const ExpertsWeights& weights,
                                    const ExpertTokens& tokens) const;
  [[nodiscard]] QuantizedSegments din_across() const;
  [[nodiscard]] QuantizedSegments h_across() const;
  void bias_gradients(std::int64_t sources) const;
};

/// sigmoid(n wg) of the MLP that all tokens share, for all rows; and back, from left.dgate (of
/// which tensor-parallel ranks have parts): to W's operand, and to n's gradient, added to.
void shared_gate_forward(const LayerPass& pass, const ExpertsWeights& weights,
                         const ExpertsActivations& acts, ConstTensorView n_TC);
void shared_gate_backward(const LayerPass& pass, const ExpertsWeights& weights,
                          const ExpertsActivations& acts, const ExpertsGradients& left,
                          TensorView dn_TC, TensorView scratch_TC);
/// Which of `tokens` rows are this rank's home tokens.
Slice home_range(const TensorAxis& tensor, std::int64_t tokens);

}  // namespace trireme
