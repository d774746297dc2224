#include "kernels/cross_entropy/cross_entropy.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/cross_entropy/cross_entropy_table.h"

namespace trireme {
namespace {

const CrossEntropyKernels& table(const Context& context) {
  return choose_table("cross_entropy", context, cross_entropy_cpu, &GpuKernels::cross_entropy);
}

CrossEntropyRows rows_of(const ArgumentChecker& check, const ConstTensorView& logits_TV,
                         const VocabularyPart& part) {
  check.rank("logits", logits_TV, 2);
  check.floating("logits", logits_TV.dtype);
  check.tensor("logits", logits_TV, logits_TV.dtype, logits_TV.shape);
  check.that(part.first >= 0 && part.valid >= 0 && part.valid <= logits_TV.shape[1], "part",
             "the valid columns must be among those of the logits");
  return {logits_TV.shape[0], logits_TV.shape[1], part.valid, part.first};
}

}  // namespace

void cross_entropy_statistics(Context& context, const CrossEntropyStatistics& args) {
  const OpSpan span(context.op_trace(), "cross_entropy_statistics", {0, bytes_of(args.logits_TV)});
  const ArgumentChecker check("cross_entropy_statistics");
  const CrossEntropyRows rows = rows_of(check, args.logits_TV, args.part);
  const Shape shape_T{rows.tokens};
  check.tensor("targets", args.targets_T, DType::kI32, shape_T);
  check.tensor("maximum", args.maximum_T, DType::kF32, shape_T);
  check.tensor("sum", args.sum_T, DType::kF32, shape_T);
  check.tensor("target_logit", args.target_logit_T, DType::kF32, shape_T);
  check.disjoint("maximum", args.maximum_T, "logits", args.logits_TV);
  check.disjoint("sum", args.sum_T, "logits", args.logits_TV);
  check.disjoint("target_logit", args.target_logit_T, "logits", args.logits_TV);
  table(context).statistics({context.exec(), rows, args.maximum_T.as<float>(),
                             args.sum_T.as<float>(), args.target_logit_T.as<float>(),
                             args.logits_TV.data, args.targets_T.as<std::int32_t>(),
                             args.logits_TV.dtype});
}

void cross_entropy_merge(Context& context, const CrossEntropyMerge& args) {
  const OpSpan span(context.op_trace(), "cross_entropy_merge",
                    {0, bytes_of(args.parts_R3T, args.maximum_T, args.sum_T, args.target_logit_T)});
  const ArgumentChecker check("cross_entropy_merge");
  check.rank("parts", args.parts_R3T, 3);
  const std::int64_t parts = args.parts_R3T.shape[0], tokens = args.parts_R3T.shape[2];
  const Shape shape_T{tokens};
  check.tensor("parts", args.parts_R3T, DType::kF32, {parts, 3, tokens});
  check.that(parts > 0, "parts", "there must be one at least");
  check.tensor("maximum", args.maximum_T, DType::kF32, shape_T);
  check.tensor("sum", args.sum_T, DType::kF32, shape_T);
  check.tensor("target_logit", args.target_logit_T, DType::kF32, shape_T);
  check.disjoint("maximum", args.maximum_T, "parts", args.parts_R3T);
  check.disjoint("sum", args.sum_T, "parts", args.parts_R3T);
  check.disjoint("target_logit", args.target_logit_T, "parts", args.parts_R3T);
  table(context).merge({context.exec(), tokens, parts, args.maximum_T.as<float>(),
                        args.sum_T.as<float>(), args.target_logit_T.as<float>(),
                        args.parts_R3T.as<float>()});
}

void cross_entropy_finish(Context& context, const CrossEntropyFinish& args) {
  const OpSpan span(context.op_trace(), "cross_entropy_finish",
                    {0, args.dlogits_TV.given() ? bytes_of(args.dlogits_TV, args.logits_TV)
                                                : bytes_of(args.loss_T)});
  const ArgumentChecker check("cross_entropy_finish");
  const std::int64_t tokens = args.targets_T.count();
  const Shape shape_T{tokens};
  check.tensor("targets", args.targets_T, DType::kI32, shape_T);
  check.tensor("maximum", args.maximum_T, DType::kF32, shape_T);
  check.tensor("sum", args.sum_T, DType::kF32, shape_T);
  check.that(args.loss_T.given() || args.dlogits_TV.given() || tokens == 0, "loss",
             "neither the loss nor the gradient is given");
  if (args.loss_T.given()) {
    check.tensor("loss", args.loss_T, DType::kF32, shape_T);
    check.tensor("target_logit", args.target_logit_T, DType::kF32, shape_T);
    float* square = nullptr;
    if (args.square_T.given()) {
      check.tensor("square", args.square_T, DType::kF32, shape_T);
      check.same_or_disjoint("square", args.square_T, "target_logit", args.target_logit_T);
      square = args.square_T.as<float>();
    }
    table(context).loss({context.exec(), tokens, args.loss_T.as<float>(), square,
                         args.maximum_T.as<float>(), args.sum_T.as<float>(),
                         args.target_logit_T.as<float>(), args.targets_T.as<std::int32_t>()});
  }
  if (!args.dlogits_TV.given()) return;
  const CrossEntropyRows rows = rows_of(check, args.logits_TV, args.part);
  check.floating("dlogits", args.dlogits_TV.dtype);
  check.that(args.logits_TV.dtype == DType::kF32 || args.dlogits_TV.dtype == DType::kBF16,
             "dlogits", "of bf16 logits the gradient is bf16");
  check.tensor("logits", args.logits_TV, args.logits_TV.dtype, {tokens, rows.columns});
  check.tensor("dlogits", args.dlogits_TV, args.dlogits_TV.dtype, {tokens, rows.columns});
  check.tensor("scale", args.scale, DType::kF32, {1});
  check.same_or_disjoint("dlogits", args.dlogits_TV, "logits", args.logits_TV);
  table(context).gradient({context.exec(), rows, args.dlogits_TV.data, args.logits_TV.data,
                           args.maximum_T.as<float>(), args.sum_T.as<float>(),
                           args.targets_T.as<std::int32_t>(), args.scale.as<float>(), args.z_loss,
                           args.dlogits_TV.dtype, args.logits_TV.dtype});
}

}  // namespace trireme
