// Scales in cuBLASLt's order: of the executables that have a GPU's kernels.
#include "kernels/gemm/gemm_cublaslt.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class GemmLibraryScales : public OpTest {};
TRIREME_FOR_ALL_ISAS(GemmLibraryScales);

/// Where rows and columns go, and that nothing else is written.
void expect_ordered(Context& context, std::int64_t rows, std::int64_t columns, std::int64_t to_row,
                    std::int64_t to_column) {
  const TestTensor from = TestTensor::random(DType::kF32, {rows, columns}, 1);
  const std::int64_t size = (rows - 1) * to_row + (columns - 1) * to_column + 3;
  TestTensor to(DType::kF32, {size});
  std::vector<double> expected(static_cast<std::size_t>(size), -1);
  for (std::int64_t i = 0; i < size; ++i) to.set(i, -1);
  const std::vector<double> scales = from.values();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; ++column)
      expected[static_cast<std::size_t>(row * to_row + column * to_column)] =
          scales[static_cast<std::size_t>(row * columns + column)];
  cuda::cublaslt::order_scales({context.exec(), TensorView(to).as<float>(),
                                ConstTensorView(from).as<float>(), rows, columns, to_row,
                                to_column});
  context.synchronize();
  EXPECT_EQ(to.values(), expected) << rows << " x " << columns;
}

TEST_P(GemmLibraryScales, are_brought_to_another_order) {
  Context context = test_context(GetParam());
  expect_ordered(context, 1, 3, 12, 4);     // of parts, each at 16 bytes
  expect_ordered(context, 3, 2, 8, 4);      // of parts of both sides
  expect_ordered(context, 700, 5, 1, 700);  // of rows: those of a block side by side
  expect_ordered(context, 1, 1, 1, 1);
  expect_ordered(context, 9, 261, 264, 1);    // of squares: rows begin at 16 bytes
  expect_ordered(context, 1300, 3, 1, 1300);  // more than a block has
}

}  // namespace
}  // namespace trireme
