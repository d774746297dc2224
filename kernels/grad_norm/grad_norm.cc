#include "kernels/grad_norm/grad_norm.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/grad_norm/grad_norm_table.h"

namespace trireme {

void grad_norm_accumulate(Context& context, ExactSum& sum, ConstTensorView gradient) {
  const OpSpan span(context.op_trace(), "grad_norm", {0, bytes_of(gradient)});
  const ArgumentChecker check("grad_norm_accumulate");
  if (gradient.shape.rank() != 1) check.rank("gradient", gradient, 2);
  check.tensor("gradient", gradient, DType::kF32, gradient.shape);
  if (gradient.count() == 0) return;
  const bool vector = gradient.shape.rank() == 1;
  const std::int64_t rows = vector ? 1 : gradient.shape[0],
                     columns = gradient.shape[vector ? 0 : 1];
  auto* squares =
      reinterpret_cast<double*>(context.scratch(static_cast<std::size_t>(rows) * sizeof(double)));
  const GradNormKernels& kernels =
      choose_table("grad_norm_accumulate", context, avx2::grad_norm_cpu, avx512::grad_norm_cpu,
                   &GpuKernels::grad_norm);
  kernels.row_squares({context.exec(), squares, gradient.as<float>(), rows, columns});
  for (std::int64_t r = 0; r < rows; ++r) sum.add(squares[r]);
}

}  // namespace trireme
