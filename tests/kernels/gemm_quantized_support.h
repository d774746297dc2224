#pragma once
// Operands of fp8 products for the tests of GPUs' kernels, and sums in double of what their codes
// and scales stand for.

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "kernels/common/gpu_kernels.h"
#include "kernels/gemm/gemm_quantized_internal.h"
#include "kernels/support/op_test.h"

namespace trireme::gemm_quantized_testing {

constexpr DType kE4M3 = DType::kF8E4M3, kE5M2 = DType::kF8E5M2;

ScaleDim dim_of(std::int64_t block, std::initializer_list<ScaleDim::Part> parts);
/// For each index its block.
std::vector<std::int64_t> plain_blocks(const ScaleDim& dim);

/// Random codes and scales, and what they stand for, in the padded order.
struct Operand {
  ScaleDim rows, columns;
  TestTensor codes, scales;
  std::vector<double> values;

  Operand(DType format, const ScaleDim& rows_, const ScaleDim& columns_, std::uint64_t seed);
  void decode();
  [[nodiscard]] ConstQuantizedView view() const {
    return {codes.view(), scales.view(), rows, columns, true};
  }
};

struct Sums {
  std::vector<double> sums, magnitudes;
};
Sums sums_of(const Operand& a, const Operand& b);

/// c - start is the product, to `bits` of a sum's magnitude and one rounding to c's type.
void expect_product(const TestTensor& c, const Sums& expected, const std::vector<double>& start,
                    double bits, const std::string& what);
/// Of f32 sums of k products, each of which may be rounded, or of a tensor core's.
double bits_of_sums(std::int64_t k);
std::vector<double> repeated(const TestTensor& bias, std::int64_t rows);

/// Each of the kernels. Both numbers of multiprocessors are so few that a block takes several
/// tiles, and its stages go round.
struct Way {
  const char* name;
  int multiprocessors;
  bool library = false, triple = false, split = false;
};
inline constexpr Way kWays[] = {{"large tiles", 1},
                                {"narrow tiles", 3},
                                {"three warpgroups", 3, false, true},
                                {"cuBLASLt", 0, true}};
inline constexpr const Way& kLibraryWay = kWays[3];
/// Those with epilogues, and of scales in blocks.
inline constexpr std::span<const Way> kOwnWays = std::span(kWays).first(2);

/// Ours serve whatever is asked of them here; the library what it says, where there is one.
bool serves(const Context& context, const QuantizedGemm& args, const Way& way);
void multiply(Context& context, const QuantizedGemm& args, const Way& way);

/// Skipped where no GPU, or what executes its code, has kernels for fp8.
class QuantizedGpuTest : public OpTest {
 protected:
  void SetUp() override {
    if (gpu_kernels().gemm_fp8_sm90 == nullptr || !test_context(GetParam()).on_gpu())
      GTEST_SKIP() << "no kernels for fp8 products";
  }
};

}  // namespace trireme::gemm_quantized_testing
