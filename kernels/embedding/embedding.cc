#include "kernels/embedding/embedding.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/embedding/embedding_table.h"

namespace trireme {
namespace {

const EmbeddingKernels& table(const Context& context) {
  return choose_table("embedding", context, embedding_cpu, &GpuKernels::embedding);
}

/// The size of the vocabulary that a table holds a part of.
std::int64_t vocabulary_of(const ArgumentChecker& check, std::int64_t rows, std::int64_t first_row,
                           std::int64_t vocabulary) {
  if (vocabulary == 0) vocabulary = rows;
  check.that(first_row >= 0 && first_row + rows <= vocabulary, "first_row",
             "the table's rows must be among those of the vocabulary");
  return vocabulary;
}

}  // namespace

void embedding_forward(Context& context, const EmbeddingForward& args) {
  const OpSpan span(context.op_trace(), "embedding_forward",
                    {0, (args.position_table_PC.given() ? 3 : 2) * bytes_of(args.out_TC)});
  const ArgumentChecker check("embedding_forward");
  check.rank("table", args.table_VC, 2);
  check.rank("ids", args.ids_T, 1);
  const DType type = args.table_VC.dtype;
  const std::int64_t tokens = args.ids_T.shape[0], channels = args.table_VC.shape[1];
  const std::int64_t rows = args.table_VC.shape[0];
  const std::int64_t vocabulary = vocabulary_of(check, rows, args.first_row, args.vocabulary);
  check.floating("table", type);
  check.tensor("out", args.out_TC, type, {tokens, channels});
  check.tensor("ids", args.ids_T, DType::kI32, {tokens});
  check.tensor("table", args.table_VC, type, args.table_VC.shape);
  check.disjoint("out", args.out_TC, "table", args.table_VC);
  if (!context.on_gpu()) check.indices("ids", args.ids_T, vocabulary);
  const bool with_positions = args.position_table_PC.given();
  if (with_positions) {
    check.rank("position_table", args.position_table_PC, 2);
    check.tensor("position_table", args.position_table_PC, type,
                 {args.position_table_PC.shape[0], channels});
    check.tensor("positions", args.positions_T, DType::kI32, {tokens});
    if (!context.on_gpu())
      check.indices("positions", args.positions_T, args.position_table_PC.shape[0]);
    check.disjoint("out", args.out_TC, "position_table", args.position_table_PC);
  }
  if (args.out_TC.count() == 0) return;
  table(context).forward(
      {context.exec(), args.out_TC.data, args.ids_T.as<std::int32_t>(), args.table_VC.data,
       with_positions ? args.positions_T.as<std::int32_t>() : nullptr, args.position_table_PC.data,
       tokens, channels, rows, with_positions ? args.position_table_PC.shape[0] : 0, args.first_row,
       vocabulary, type});
}

void embedding_backward(Context& context, TensorView dtable_VC, ConstTensorView ids_T,
                        ConstTensorView dout_TC, std::int64_t first_row, std::int64_t vocabulary) {
  const std::int64_t rows_bytes = dout_TC.count() * static_cast<std::int64_t>(sizeof(float));
  const OpSpan span(context.op_trace(), "embedding_backward",
                    {0, bytes_of(dout_TC) + 2 * rows_bytes});
  const ArgumentChecker check("embedding_backward");
  check.rank("dtable", dtable_VC, 2);
  check.rank("ids", ids_T, 1);
  const std::int64_t tokens = ids_T.shape[0], channels = dtable_VC.shape[1];
  const std::int64_t rows = dtable_VC.shape[0];
  vocabulary = vocabulary_of(check, rows, first_row, vocabulary);
  check.floating("dout", dout_TC.dtype);
  check.tensor("dtable", dtable_VC, DType::kF32, dtable_VC.shape);
  check.tensor("ids", ids_T, DType::kI32, {tokens});
  check.tensor("dout", dout_TC, dout_TC.dtype, {tokens, channels});
  check.disjoint("dtable", dtable_VC, "dout", dout_TC);
  if (!context.on_gpu()) check.indices("ids", ids_T, vocabulary);
  if (dout_TC.count() == 0 || rows == 0) return;
  const EmbeddingKernels& kernels = table(context);
  std::byte* scratch = context.scratch(kernels.backward_scratch_bytes(tokens, rows));
  kernels.backward({context.exec(), dtable_VC.as<float>(), ids_T.as<std::int32_t>(), dout_TC.data,
                    tokens, channels, rows, first_row, dout_TC.dtype, scratch});
}

}  // namespace trireme
