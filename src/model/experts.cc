#include "model/experts.h"

#include "base/fiber.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/expert_rows/expert_rows.h"
#include "kernels/expert_rows/weighted_glu_codes.h"
#include "model/batch_invariance.h"
#include "model/mlp.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

RouterRule rule_of(const ExpertsConfig& experts) {
  return {experts.sigmoid ? RouterScore::kSigmoid : RouterScore::kSoftmax,
          experts.chosen,
          experts.normalized,
          experts.groups,
          experts.groups_chosen,
          static_cast<float>(experts.scale)};
}

constexpr RouterRule kGateRule = {RouterScore::kSigmoid, 1};

/// The first `rows` of a view that has room for more.
template <class Byte>
BasicTensorView<Byte> first(const BasicTensorView<Byte>& view, std::int64_t rows) {
  return view.rows(0, rows);
}

template <class Byte>
BasicTensorView<Byte> home_rows(const LayerPass& pass, const BasicTensorView<Byte>& x_TC) {
  const Slice home = home_range(pass.tensor, x_TC.shape[0]);
  return x_TC.rows(home.begin, home.size);
}

const ExpertPlaces& places_of(const LayerPass& pass) {
  return pass.experts->places[static_cast<std::size_t>(pass.index)];
}

/// i32 of the device's memory that a layer needs once.
ConstTensorView constant(Context& context, const std::vector<std::int32_t>& values) {
  return {
      context.device_constant(std::as_bytes(std::span(values))), DType::kI32, {std::ssize(values)}};
}

/// The last product's bias is added once: of the ranks that have parts of an expert by the first.
bool adds_bias(const LayerPass& pass) {
  return pass.config.experts->biased && pass.experts->axis.cut().tensor.index == 0;
}

bool travels(const LayerPass& pass) { return pass.experts->axis.ranks() > 1; }

}  // namespace

ExpertsWeights weights_of(const ParamStore::Lease& lease, const ExpertsParams& params) {
  ExpertsWeights weights;
  if (!params.router.weight.given()) return weights;
  weights.router = weights_of(lease, params.router);
  if (params.shared_gate.weight.given())
    weights.shared_gate = weights_of(lease, params.shared_gate);
  if (params.bias != kNoParam) weights.bias_E = lease.weight(params.bias);
  weights.in = weights_of(lease, params.in);
  weights.out = weights_of(lease, params.out);
  weights.in_adapter = weights_of(lease, params.in.adapter, params.in.experts());
  weights.out_adapter = weights_of(lease, params.out.adapter, params.out.experts());
  return weights;
}

Slice home_range(const TensorAxis& tensor, std::int64_t tokens) {
  if (tensor.residual_tokens(tokens) < tokens) {
    const TensorAxis::Rows rows = tensor.residual_range(tokens);
    return {rows.first, rows.count};
  }
  return even_slice(tokens, tensor.extent(), tensor.rank().index);
}

ExpertsScratch lay_out_experts_scratch(ArenaCursor& arena, const LayerShape& shape) {
  ExpertsScratch scratch;
  if (!shape.config.experts) return scratch;
  const ExpertsConfig& experts = *shape.config.experts;
  const std::int64_t home = shape.home_tokens(), rows = shape.expert_rows(), k = experts.chosen,
                     received = shape.received_tokens();
  scratch.rows_RC = arena.take(shape.compute, {rows, shape.hidden});
  scratch.h_RF = arena.take(shape.compute, {rows, experts.ffn});
  if (shape.expert.ranks() > 1) {
    const std::int64_t parts = home * k * shape.expert.tensor.extent;
    scratch.sent = arena.take(shape.compute, {received, shape.hidden});
    scratch.sent_chosen = arena.take(DType::kI32, {received, k});
    scratch.sent_weights = arena.take(DType::kF32, {received, k});
    scratch.home_rows = arena.take(shape.compute, {parts, shape.hidden});
    scratch.home_dweights = arena.take(DType::kF32, {parts, 1});
  }
  scratch.dweights_R = arena.take(DType::kF32, {rows});
  scratch.dweights_Sk = arena.take(DType::kF32, {home, k});
  scratch.router_SC = arena.take(shape.compute, {home, shape.hidden});
  scratch.counts_BE = arena.take(DType::kI32, {shape.sequences, experts.count});
  if (experts.biased) scratch.ones_R1 = arena.take(shape.compute, {rows, 1});
  return scratch;
}

void ExpertsForward::route(ConstTensorView n_SC, Count count) {
  Context& context = pass_.context;
  const ExpertsPass& experts = *pass_.experts;
  const std::int64_t home = n_SC.shape[0];
  const BatchInvariance alone(context, true);
  linear_forward(context, first(acts_.logits_SE, home), n_SC, weights_.router);
  RouterForward router;
  router.chosen_Tk = first(acts_.chosen_Sk, home);
  router.weights_Tk = first(acts_.weights_Sk, home);
  router.logits_TE = first(acts_.logits_SE, home);
  router.bias_E = weights_.bias_E;
  router.rule = rule_of(*pass_.config.experts);
  router.sequence_tokens = experts.sequence_tokens;
  router.first_token = home_range(pass_.tensor, pass_.tokens()).begin;
  if (count == Count::kYes && experts.load_LBE.given())
    router.load_BE = experts.load_LBE.rows(pass_.index, 1).reshape(experts.scratch.counts_BE.shape);
  if (experts.balance.aux_factor != 0) {
    clear(context, experts.scratch.counts_BE);
    router.balance_BE = experts.scratch.counts_BE;
  }
  router_forward(context, router);
  if (experts.balance.aux_factor != 0) balance(experts.scratch.counts_BE);
}

/// acts.balance = factor x the counts of each sequence.
void ExpertsForward::balance(ConstTensorView counts_BE) const {
  Context& context = pass_.context;
  const ExpertsBalance& of = pass_.experts->balance;
  const auto sequences = counts_BE.shape[0], experts = counts_BE.shape[1];
  std::vector<std::int32_t> counts(static_cast<std::size_t>(counts_BE.count()));
  copy_out(context, std::as_writable_bytes(std::span(counts)), counts_BE);
  if (of.whole_batch) {
    for (std::int64_t i = experts; i < sequences * experts; ++i)
      counts[static_cast<std::size_t>(i % experts)] += counts[static_cast<std::size_t>(i)];
    for (std::int64_t i = experts; i < sequences * experts; ++i)
      counts[static_cast<std::size_t>(i)] = counts[static_cast<std::size_t>(i % experts)];
  }
  std::vector<std::int64_t> sums(counts.begin(), counts.end());
  pass_.experts->axis.sum_counts(sums);
  std::vector<float> factors;
  factors.reserve(sums.size());
  for (const std::int64_t sum : sums) factors.push_back(of.aux_factor * static_cast<float>(sum));
  copy_in(context, acts_.balance_BE, std::as_bytes(std::span(factors)));
}

void ExpertsForward::start(ConstTensorView n_TC, Count count) {
  const ConstTensorView n = home_rows(pass_, n_TC);
  route(n, count);
  if (!travels(pass_)) return;
  Context& context = pass_.context;
  const ExpertAxis& axis = pass_.experts->axis;
  const ExpertsScratch& scratch = pass_.experts->scratch;
  ExpertRouteTables tables = acts_.route_tables;
  const std::int64_t home = n.shape[0];
  tables.home_slot_row = first(tables.home_slot_row, home);
  const ConstTensorView chosen = first(acts_.chosen_Sk, home);
  axis.find(context, *acts_.route, tables, places_of(pass_), chosen);
  chosen_ = axis.start_dispatch(context, *acts_.route, tables, acts_.chosen_Rk, chosen,
                                scratch.sent_chosen);
  weights_under_way_ = axis.start_dispatch(context, *acts_.route, tables, acts_.weights_Rk,
                                           first(acts_.weights_Sk, home), scratch.sent_weights);
  x_ = axis.start_dispatch(context, *acts_.route, tables, acts_.x_RC, n, scratch.sent);
}

/// What the experts of this rank work on: rows of tokens that have come, or of home tokens, which
/// need not be given where only their choice is asked for.
struct ExpertTokens {
  ConstTensorView x_TC, chosen_Tk, weights_Tk;
  TensorView slot_row;
  std::int64_t sources = 1;
};

namespace {

/// What W of a product reads, its adapters too.
struct WeightOperands {
  ExpertOperand dy, x;
  TensorView us_RA, du_RA;
};

/// How a product has tokens: as they are, of which it makes codes, or their rows, gathered, which
/// others read too.
enum class Read : std::uint8_t { kTokens, kRows };

ExpertTokens tokens_of(const LayerPass& pass, const ExpertsActivations& acts,
                       ConstTensorView received_RC, ConstTensorView home_SC = {}) {
  if (travels(pass)) {
    const std::int64_t tokens = acts.route->received_tokens();
    return {first(received_RC, tokens), first(ConstTensorView(acts.chosen_Rk), tokens),
            first(ConstTensorView(acts.weights_Rk), tokens), first(acts.slot_row, tokens),
            pass.experts->axis.ranks()};
  }
  const std::int64_t tokens = home_range(pass.tensor, pass.tokens()).size;
  return {home_SC, first(ConstTensorView(acts.chosen_Sk), tokens),
          first(ConstTensorView(acts.weights_Sk), tokens), first(acts.slot_row, tokens), 1};
}

ExpertProducts products_of(const LayerPass& pass, const ExpertsActivations& acts,
                           const ExpertTokens& tokens) {
  return {pass, {acts.begins, tokens.sources}};
}

ExpertAdapterProducts adapters_of(const ExpertProducts& products, const ExpertTokens& tokens,
                                  const ExpertsActivations& acts) {
  return {products.pass, products.table, std::min(tokens.slot_row.count(), acts.row_slot.shape[0])};
}

WeightedGlu glu_of(const LayerPass& pass, const ExpertsWeights& weights,
                   const ExpertsActivations& acts, const ExpertTokens& tokens) {
  const ExpertsConfig& experts = *pass.config.experts;
  return {glu_gate(pass.config),
          acts.in_RX,
          tokens.weights_Tk.reshape({tokens.weights_Tk.count()}),
          acts.row_slot,
          acts.begins,
          {weights.in.bias, static_cast<float>(experts.swiglu_alpha),
           static_cast<float>(experts.swiglu_limit), tokens.sources}};
}

ExpertBias bias_of(const ExpertsWeights& weights, const ExpertsActivations& acts,
                   const ExpertTokens& tokens) {
  return {weights.out.bias, tokens.weights_Tk.reshape({tokens.weights_Tk.count()}), acts.row_slot,
          acts.begins, tokens.sources};
}

ExpertOperand operand_of(const LayerPass& pass, const ExpertsActivations& acts,
                         const ExpertTokens& tokens, Read read) {
  const std::int64_t k = pass.config.experts->chosen;
  if (read == Read::kTokens) return {tokens.x_TC, acts.row_slot, k};
  const TensorView& rows = pass.experts->scratch.rows_RC;
  gather_rows(pass.context, rows, tokens.x_TC, acts.row_slot, acts.begins, k);
  return {rows};
}

Pending start_home(const LayerPass& pass, const ExpertsActivations& acts, TensorView rows,
                   TensorView home) {
  if (!travels(pass)) return {};
  return pass.experts->axis.start_return(*acts.route, places_of(pass), home, rows);
}

/// Of each slot of home tokens: rows that experts have made, at home.
struct HomeRows {
  ConstTensorView rows, slot_row;
};
HomeRows at_home(const LayerPass& pass, const ExpertsActivations& acts, TensorView rows,
                 TensorView home) {
  const std::int64_t tokens = home_range(pass.tensor, pass.tokens()).size;
  if (!travels(pass)) return {rows, first(acts.slot_row, tokens)};
  return {home, first(acts.route_tables.home_slot_row, tokens)};
}

}  // namespace

void ExpertsForward::first_product(ConstTensorView n_TC) {
  Context& context = pass_.context;
  if (travels(pass_)) give_way();
  chosen_.wait();
  const ConstTensorView n = home_rows(pass_, n_TC);
  const ExpertTokens tokens = tokens_of(pass_, acts_, acts_.x_RC, n);
  ConstTensorView sources = acts_.route_tables.sources;
  if (!travels(pass_)) sources = constant(context, {0, static_cast<std::int32_t>(n.shape[0])});
  const int here = pass_.experts->axis.cut().expert.index;
  expert_rows(context, {acts_.begins, acts_.row_slot, tokens.slot_row, tokens.chosen_Tk,
                        constant(context, places_of(pass_).place_on(here)), sources});
  x_.wait();
  const ExpertProducts products = products_of(pass_, acts_, tokens);
  const bool adapted = weights_.in_adapter.given();
  const ExpertOperand x =
      operand_of(pass_, acts_, tokens,
                 products.in_blocks(weights_.in) && !adapted ? Read::kTokens : Read::kRows);
  products.forward(acts_.in_RX, x, weights_.in, "experts_in");
  if (adapted)
    adapters_of(products, tokens, acts_)
        .forward(acts_.in_RX, acts_.in_us_RA, x.x, weights_.in_adapter);
  weights_under_way_.wait();
}

/// h, as the last product reads it.
ExpertOperand ExpertsForward::units(const ExpertProducts& products,
                                    const ExpertTokens& tokens) const {
  const TensorView& h_RF = pass_.experts->scratch.h_RF;
  const WeightedGlu glu = glu_of(pass_, weights_, acts_, tokens);
  const int parts = pass_.experts->axis.cut().tensor.extent;
  if (products.in_blocks(weights_.out) && expert_units_leave_codes(pass_.config, parts)) {
    const QuantizedSegments h =
        products.codes_along(h_RF.shape[0], weights_.out.fp8->fp8->in, DType::kF8E4M3);
    weighted_glu_forward_codes(pass_.context, h, glu);
    return ExpertOperand::of(h);
  }
  weighted_glu_forward(pass_.context, h_RF, glu);
  return {h_RF};
}

void ExpertsForward::last_product() {
  Context& context = pass_.context;
  const ExpertsScratch& scratch = pass_.experts->scratch;
  const ExpertTokens tokens = tokens_of(pass_, acts_, acts_.x_RC);
  const ExpertProducts products = products_of(pass_, acts_, tokens);
  products.forward(scratch.rows_RC, units(products, tokens), weights_.out, "experts_out");
  if (weights_.out_adapter.given())
    adapters_of(products, tokens, acts_)
        .forward(scratch.rows_RC, acts_.out_us_RA, scratch.h_RF, weights_.out_adapter);
  if (adds_bias(pass_))
    expert_bias_forward(context, scratch.rows_RC, bias_of(weights_, acts_, tokens));
  home_ = start_home(pass_, acts_, scratch.rows_RC, scratch.home_rows);
}

void ExpertsForward::combine(TensorView y_TC, Accumulate accumulate) {
  const ExpertsScratch& scratch = pass_.experts->scratch;
  const TensorView y = home_rows(pass_, y_TC);
  const HomeRows home = at_home(pass_, acts_, scratch.rows_RC, scratch.home_rows);
  if (travels(pass_)) give_way();
  home_.wait();
  combine_rows(pass_.context, y, home.rows, home.slot_row,
               accumulate == Accumulate::kYes ? ConstTensorView(y) : ConstTensorView());
}

Pending ExpertsBackward::start(ConstTensorView dy_TC) const {
  if (!travels(pass)) return {};
  const ExpertsPass& experts = *pass.experts;
  return experts.axis.start_dispatch(pass.context, *acts.route, acts.route_tables, left.dy_RC,
                                     home_rows(pass, dy_TC), experts.scratch.sent);
}

/// The gradient of the first product, as dx reads it; what W reads of it and of h is left.
ExpertOperand ExpertsBackward::units(const ExpertProducts& products, TensorView dh_RF,
                                     const ExpertsWeights& weights,
                                     const ExpertTokens& tokens) const {
  const TensorView& dweights_R = pass.experts->scratch.dweights_R;
  const WeightedGlu glu = glu_of(pass, weights, acts, tokens);
  if (!left.din.given()) {
    weighted_glu_backward(pass.context, left.din_RX, dweights_R, left.h_RF, dh_RF, glu);
    return {left.din_RX};
  }
  const QuantizedSegments din =
      products.codes_along(dh_RF.shape[0], params.in.fp8->out, pass.fp8->precision.gradients);
  weighted_glu_backward_codes(pass.context, {din, din_across(), h_across()}, dweights_R, dh_RF,
                              glu);
  return ExpertOperand::of(din);
}

ExpertsBackward::GoingHome ExpertsBackward::products(const ExpertsWeights& weights,
                                                     ConstTensorView dy_TC, Pending dy) const {
  Context& context = pass.context;
  const ExpertsScratch& scratch = pass.experts->scratch;
  if (travels(pass)) give_way();
  dy.wait();
  const ExpertTokens tokens = tokens_of(pass, acts, left.dy_RC, home_rows(pass, dy_TC));
  const ExpertProducts products = products_of(pass, acts, tokens);
  const ExpertAdapterProducts adapters = adapters_of(products, tokens, acts);
  const bool others = weights.out_adapter.given() || adds_bias(pass);
  const ExpertOperand of_dy = operand_of(
      pass, acts, tokens, products.in_blocks(weights.out) && !others ? Read::kTokens : Read::kRows);
  const TensorView& dh_RF = left.h.given() ? scratch.h_RF : left.h_RF;
  products.backward_input(dh_RF, of_dy, weights.out, "experts_out_dx");
  if (weights.out_adapter.given())
    adapters.backward_input(dh_RF, left.out_du_RA, scratch.rows_RC, weights.out_adapter);
  const ExpertOperand din = units(products, dh_RF, weights, tokens);
  if (adds_bias(pass))
    expert_bias_backward(context, scratch.dweights_R, scratch.rows_RC,
                         bias_of(weights, acts, tokens));
  if (left.factors_R1.given())
    row_factors(context, left.factors_R1, tokens.weights_Tk.reshape({tokens.weights_Tk.count()}),
                acts.row_slot, acts.begins);
  GoingHome under_way;
  under_way.dweights =
      start_home(pass, acts, scratch.dweights_R.reshape({scratch.dweights_R.count(), 1}),
                 scratch.home_dweights);
  products.backward_input(scratch.rows_RC, din, weights.in, "experts_in_dx");
  if (weights.in_adapter.given())
    adapters.backward_input(scratch.rows_RC, left.in_du_RA, left.din_RX, weights.in_adapter);
  under_way.rows = start_home(pass, acts, scratch.rows_RC, scratch.home_rows);
  return under_way;
}

void ExpertsBackward::input(const ExpertsWeights& weights, GoingHome under_way, TensorView dn_TC,
                            Accumulate accumulate) const {
  Context& context = pass.context;
  const ExpertsPass& experts = *pass.experts;
  const ExpertsScratch& scratch = experts.scratch;
  const std::int64_t k = pass.config.experts->chosen;
  const TensorView dn = home_rows(pass, dn_TC);
  const std::int64_t home = dn.shape[0];
  const HomeRows of_weights =
      at_home(pass, acts, scratch.dweights_R.reshape({scratch.dweights_R.count(), 1}),
              scratch.home_dweights);
  if (travels(pass)) give_way();
  under_way.dweights.wait();
  const std::int64_t parts = of_weights.slot_row.shape[1] / k;
  const TensorView dweights = first(scratch.dweights_Sk, home);
  combine_rows(context, dweights.reshape({home * k, 1}), of_weights.rows,
               of_weights.slot_row.reshape({home * k, parts}));
  RouterBackward router;
  router.dlogits_TE = first(left.dlogits_SE, home);
  router.losses = experts.losses_L2.rows(pass.index, 1).reshape({2});
  router.logits_TE = first(acts.logits_SE, home);
  router.chosen_Tk = first(acts.chosen_Sk, home);
  router.dweights_Tk = dweights;
  router.rule = rule_of(*pass.config.experts);
  router.sequence_tokens = experts.sequence_tokens;
  router.first_token = home_range(pass.tensor, pass.tokens()).begin;
  router.z = experts.balance.z_factor;
  if (experts.balance.aux_factor != 0) router.balance_BE = acts.balance_BE;
  router_backward(context, router);

  const TensorView of_router = first(scratch.router_SC, home);
  {
    const BatchInvariance alone(context, true);
    linear_backward_input(context, of_router, router.dlogits_TE, weights.router);
  }
  const HomeRows rows = at_home(pass, acts, scratch.rows_RC, scratch.home_rows);
  under_way.rows.wait();
  const bool adds = accumulate == Accumulate::kYes;
  combine_rows(context, adds ? of_router : dn, rows.rows, rows.slot_row, of_router);
  if (adds) trireme::accumulate(context, dn, of_router);
}

void ExpertsBackward::weight(ConstTensorView n_TC, ConstTensorView dy_TC) const {
  const ConstTensorView n = home_rows(pass, n_TC), dy = home_rows(pass, dy_TC);
  linear_backward_weight(pass.context, gradients_of(sink, params.router),
                         first(ConstTensorView(left.dlogits_SE), n.shape[0]), n);
  // Of what is trained; the tokens' rows are one of the operands.
  const auto product = [&](const ExpertLinearParams& of, const ExpertTokens& tokens, Read read,
                           const auto& with) {
    const Gradients::Product gradient = sink.product(of.weight);
    if (!gradient.gradient.given() && !of.adapter.given()) return;
    const ExpertProducts products = products_of(pass, acts, tokens);
    if (!products.in_blocks(of) || of.adapter.given()) read = Read::kRows;
    const WeightOperands operands = with(operand_of(pass, acts, tokens, read));
    if (gradient.gradient.given()) products.backward_weight(gradient, of, operands.dy, operands.x);
    if (of.adapter.given())
      adapters_of(products, tokens, acts)
          .backward_weight(sink, of.adapter,
                           {operands.dy.x, operands.x.x, operands.us_RA, operands.du_RA});
  };
  product(params.in, tokens_of(pass, acts, acts.x_RC, n), Read::kTokens,
          [&](const ExpertOperand& x) -> WeightOperands {
            return {left.din.given() ? ExpertOperand::of(din_across()) : ExpertOperand{left.din_RX},
                    x, acts.in_us_RA, left.in_du_RA};
          });
  const bool biased = params.in.bias.given();
  product(params.out, tokens_of(pass, acts, left.dy_RC, dy), biased ? Read::kRows : Read::kTokens,
          [&](const ExpertOperand& of_dy) -> WeightOperands {
            return {of_dy,
                    left.h.given() ? ExpertOperand::of(h_across()) : ExpertOperand{left.h_RF},
                    acts.out_us_RA, left.out_du_RA};
          });
  if (biased) bias_gradients(tokens_of(pass, acts, left.dy_RC, dy).sources);
}

QuantizedSegments ExpertsBackward::din_across() const {
  return left.din.of(params.in.fp8->out, pass.fp8->precision.gradients);
}
QuantizedSegments ExpertsBackward::h_across() const {
  return left.h.of(params.out.fp8->in, DType::kF8E4M3);
}

/// Behind the products, of which the last has left dy's rows in scratch.
void ExpertsBackward::bias_gradients(std::int64_t sources) const {
  const ExpertsScratch& scratch = pass.experts->scratch;
  const ExpertProducts products{pass, {acts.begins, sources}};
  row_factors(pass.context, scratch.ones_R1);
  products.backward_bias(sink.product(params.in.bias), left.din_RX, scratch.ones_R1);
  products.backward_bias(sink.product(params.out.bias), scratch.rows_RC, left.factors_R1);
}

void shared_gate_forward(const LayerPass& pass, const ExpertsWeights& weights,
                         const ExpertsActivations& acts, ConstTensorView n_TC) {
  const BatchInvariance alone(pass.context, true);
  linear_forward(pass.context, acts.gate_logits_T1, n_TC, weights.shared_gate);
  RouterForward gate;
  gate.chosen_Tk = acts.gate_chosen_T1;
  gate.weights_Tk = acts.gate_T1;
  gate.logits_TE = acts.gate_logits_T1;
  gate.rule = kGateRule;
  router_forward(pass.context, gate);
}

void shared_gate_backward(const LayerPass& pass, const ExpertsWeights& weights,
                          const ExpertsActivations& acts, const ExpertsGradients& left,
                          TensorView dn_TC, TensorView scratch_TC) {
  RouterBackward gate;
  gate.dlogits_TE = left.dgate_logits_T1;
  gate.logits_TE = acts.gate_logits_T1;
  gate.chosen_Tk = acts.gate_chosen_T1;
  gate.dweights_Tk = left.dgate_T.reshape({left.dgate_T.count(), 1});
  gate.rule = kGateRule;
  router_backward(pass.context, gate);
  linear_backward_input(pass.context, scratch_TC, left.dgate_logits_T1, weights.shared_gate);
  accumulate(pass.context, dn_TC, scratch_TC);
}

}  // namespace trireme
