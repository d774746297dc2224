#include "kernels/dropout/dropout.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/dropout/dropout_table.h"

namespace trireme {

void dropout(Context& context, TensorView y_TK, ConstTensorView x_TK, const DropoutChoice& choice) {
  const OpSpan span(context.op_trace(), "dropout", {0, bytes_of(y_TK, x_TK)});
  const ArgumentChecker check("dropout");
  check.rank("x", x_TK, 2);
  check.floating("x", x_TK.dtype);
  check.tensor("y", y_TK, x_TK.dtype, x_TK.shape);
  check.tensor("tokens", choice.tokens_T2, DType::kI32, {x_TK.shape[0], 2});
  check.same_or_disjoint("y", y_TK, "x", x_TK);
  expect(choice.share >= 0 && choice.share < 1 && choice.first_column >= 0,
         "dropout of a share of {} from column {}", choice.share, choice.first_column);
  if (x_TK.count() == 0) return;
  constexpr std::int64_t kAll = 1 << 16;
  const std::int64_t dropped = std::min<std::int64_t>(std::llround(choice.share * kAll), kAll - 1);
  choose_table("dropout", context, dropout_cpu, &GpuKernels::dropout)
      .dropout({context.exec(), y_TK.data, x_TK.data,
                reinterpret_cast<const std::uint32_t*>(choice.tokens_T2.data), choice.key,
                x_TK.shape[0], x_TK.shape[1], choice.first_column,
                static_cast<std::uint32_t>(dropped),
                static_cast<float>(static_cast<double>(kAll) / static_cast<double>(kAll - dropped)),
                x_TK.dtype});
}

}  // namespace trireme
