#include "kernels/router/router.h"

#include <algorithm>

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/gpu_scratch.h"
#include "kernels/common/op_work.h"
#include "kernels/router/router_table.h"

namespace trireme {
namespace {

const RouterKernels& table(const Context& context) {
  return choose_table("router", context, router_cpu, &GpuKernels::router);
}

/// Whose rows of the counts [B, E] the tokens of logits [T, E] have.
struct Sequences {
  std::int64_t first_token, tokens;  ///< 0: all tokens are of one
};

RouterRows rows_of(const ArgumentChecker& check, ConstTensorView logits_TE,
                   const Sequences& sequences) {
  check.rank("logits", logits_TE, 2);
  const std::int64_t tokens = logits_TE.shape[0], experts = logits_TE.shape[1];
  check.tensor("logits", logits_TE, DType::kF32, {tokens, experts});
  check.that(experts >= 1 && experts <= kRouterExpertsMax, "logits", "more experts than 1,024");
  check.that(sequences.first_token >= 0 && sequences.tokens >= 0, "sequence_tokens", "is negative");
  if (sequences.tokens == 0) return {tokens, experts, 0, std::max<std::int64_t>(1, tokens)};
  return {tokens, experts, sequences.first_token, sequences.tokens};
}

/// A row for each sequence; may be absent.
void check_counts(const ArgumentChecker& check, const char* name, ConstTensorView counts_BE,
                  DType type, const RouterRows& rows) {
  if (!counts_BE.given()) return;
  check.rank(name, counts_BE, 2);
  check.tensor(name, counts_BE, type, {counts_BE.shape[0], rows.experts});
  check.that(rows.first_token + rows.tokens <= counts_BE.shape[0] * rows.tokens_per_sequence, name,
             "has too few sequences");
}

void check_rule(const ArgumentChecker& check, const RouterRule& rule, std::int64_t experts) {
  check.that(rule.chosen >= 1 && rule.chosen <= kRouterChosenMax && rule.chosen <= experts,
             "rule.chosen", "expected 1 to 32 of the experts");
  check.that(rule.groups >= 1 && rule.groups <= kRouterGroupsMax && experts % rule.groups == 0,
             "rule.groups", "expected 1 to 32 groups of equally many experts");
  check.that(rule.groups_chosen >= 1 && rule.groups_chosen <= rule.groups &&
                 rule.groups_chosen * (experts / rule.groups) >= rule.chosen,
             "rule.groups_chosen", "expected as many groups as hold the chosen experts");
}

}  // namespace

void router_forward(Context& context, const RouterForward& args) {
  const OpSpan span(context.op_trace(), "router_forward",
                    {0, bytes_of(args.chosen_Tk, args.weights_Tk, args.logits_TE)});
  const ArgumentChecker check("router_forward");
  const RouterRows rows = rows_of(check, args.logits_TE, {args.first_token, args.sequence_tokens});
  check_rule(check, args.rule, rows.experts);
  const Shape slots{rows.tokens, args.rule.chosen};
  check.tensor("chosen", args.chosen_Tk, DType::kI32, slots);
  check.tensor("weights", args.weights_Tk, DType::kF32, slots);
  check_counts(check, "load", args.load_BE, DType::kI32, rows);
  check_counts(check, "balance", args.balance_BE, DType::kI32, rows);
  check.optional("bias", args.bias_E, DType::kF32, {rows.experts});
  check.disjoint("weights", args.weights_Tk, "logits", args.logits_TE);
  check.disjoint("load", args.load_BE, "balance", args.balance_BE);
  if (rows.tokens == 0) return;
  table(context).forward(
      {context.exec(), args.chosen_Tk.as<std::int32_t>(), args.weights_Tk.as<float>(),
       args.load_BE.given() ? args.load_BE.as<std::int32_t>() : nullptr,
       args.balance_BE.given() ? args.balance_BE.as<std::int32_t>() : nullptr,
       args.logits_TE.as<float>(), args.bias_E.given() ? args.bias_E.as<float>() : nullptr, rows,
       args.rule});
}

void router_backward(Context& context, const RouterBackward& args) {
  const OpSpan span(
      context.op_trace(), "router_backward",
      {0, bytes_of(args.dlogits_TE, args.logits_TE, args.chosen_Tk, args.dweights_Tk)});
  const ArgumentChecker check("router_backward");
  const RouterRows rows = rows_of(check, args.logits_TE, {args.first_token, args.sequence_tokens});
  check_rule(check, args.rule, rows.experts);
  const Shape slots{rows.tokens, args.rule.chosen};
  check.floating("dlogits", args.dlogits_TE.dtype);
  check.tensor("dlogits", args.dlogits_TE, args.dlogits_TE.dtype, args.logits_TE.shape);
  check.optional("losses", args.losses, DType::kF64, {2});
  check.tensor("chosen", args.chosen_Tk, DType::kI32, slots);
  check.tensor("dweights", args.dweights_Tk, DType::kF32, slots);
  check_counts(check, "balance", args.balance_BE, DType::kF32, rows);
  check.disjoint("dlogits", args.dlogits_TE, "logits", args.logits_TE);
  check.disjoint("dlogits", args.dlogits_TE, "dweights", args.dweights_Tk);
  if (!context.on_gpu()) check.indices("chosen", args.chosen_Tk, rows.experts);
  if (rows.tokens == 0) return;
  const auto scratch = static_cast<std::size_t>(gpu_scratch::router_backward_bytes(rows.tokens));
  table(context).backward(
      {context.exec(), args.dlogits_TE.data,
       args.losses.given() ? args.losses.as<double>() : nullptr, args.logits_TE.as<float>(),
       args.chosen_Tk.as<std::int32_t>(), args.dweights_Tk.as<float>(),
       args.balance_BE.given() ? args.balance_BE.as<float>() : nullptr, rows, args.rule, args.z,
       reinterpret_cast<float*>(context.scratch(scratch)), args.dlogits_TE.dtype});
}

}  // namespace trireme
