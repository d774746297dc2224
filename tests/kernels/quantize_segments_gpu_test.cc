// A GPU finds the rows of segments itself: what it makes of each is what quantize makes of it
// alone.
#include <cstring>

#include "kernels/gemm_quantized_support.h"
#include "kernels/grouped_gemm_support.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_segments.h"

namespace trireme {
namespace {

using gemm_quantized_testing::dim_of;

class QuantizeSegmentsGpu : public OpTest {
 protected:
  void SetUp() override {
    if (!test_context(GetParam()).on_gpu()) GTEST_SKIP() << "a CPU quantises one after the other";
  }
};
TRIREME_FOR_ALL_ISAS(QuantizeSegmentsGpu);

std::string bytes_of_rows(const ConstTensorView& of, std::int64_t first, std::int64_t count) {
  const ConstTensorView rows = of.rows(first, count);
  return {reinterpret_cast<const char*>(rows.data), static_cast<std::size_t>(rows.bytes())};
}

/// Some segments' rows, quantised.
struct Quantised {
  Begins begins;
  TestTensor x, table_of_rows, codes, scales;
  QuantizedSegments out;

  Quantised(DType type, DType format, const Begins& segments, const ScaleDim& columns, bool across)
      : begins(segments),
        x(TestTensor::random(type, {segments.back() + 3, columns.size()}, 1, 3)),
        table_of_rows(table(segments)),
        codes(format, shape(QuantizedSegments::codes_shape, columns, across)),
        scales(DType::kF32, shape(QuantizedSegments::scales_shape, columns, across)),
        out(codes, scales, columns, across) {}
  template <class F>
  Shape shape(const F& of, const ScaleDim& columns, bool across) const {
    return of(x.shape()[0], std::ssize(begins) - 1, columns, across);
  }
  void run(Context& context) { quantize_segments(context, {out, x, table_of_rows}); }

  /// What segment `s` has in `out`, and has alone.
  [[nodiscard]] std::string here(std::int64_t s) const {
    const auto at = static_cast<std::size_t>(s);
    const std::int64_t rows = begins[at + 1] - begins[at], blocks = ceil_div(rows, 128),
                       first =
                           out.across ? QuantizedSegments::first_block(s, begins[at]) : begins[at],
                       count = out.across ? blocks : rows;
    return bytes_of_rows(codes.view(), first, count) +
           (out.in_blocks() ? bytes_of_rows(scales.view(), first, count)
                            : bytes_of_rows(scales.view(), s, 1));
  }
  [[nodiscard]] std::string alone(Context& context, std::int64_t s) const {
    const auto at = static_cast<std::size_t>(s);
    const std::int64_t rows = begins[at + 1] - begins[at];
    const std::int64_t block = out.in_blocks() ? 1 : 0;
    const ScaleDim of_rows{rows, out.across && out.in_blocks() ? 128 : out.across ? 0 : block};
    const ScaleDim along = out.across ? of_rows : out.columns,
                   down = out.across ? out.columns.with_block(block) : of_rows;
    TestTensor c(codes.dtype(), codes_shape(down, along, true)),
        f(DType::kF32, scales_shape(down, along));
    quantize(context, {{c, f, down, along, true},
                       x.view().rows(begins[at], rows),
                       {},
                       out.across ? Transpose::kYes : Transpose::kNo});
    context.synchronize();
    return out.across
               ? in_blocks(c.bits(), 128) + (out.in_blocks() ? in_blocks(f.bits(), 4) : f.bits())
               : c.bits() + f.bits();
  }
  /// Rows of some pieces of `bytes` become pieces of all rows.
  [[nodiscard]] std::string in_blocks(const std::string& from, std::size_t bytes) const {
    const auto rows = static_cast<std::size_t>(out.columns.size());
    const std::size_t pieces = from.size() / rows / bytes;
    std::string to;
    for (std::size_t piece = 0; piece < pieces; ++piece)
      for (std::size_t row = 0; row < rows; ++row)
        to += from.substr((row * pieces + piece) * bytes, bytes);
    return to;
  }
};

TEST_P(QuantizeSegmentsGpu, have_the_bits_that_they_have_alone) {
  Context context = test_context(GetParam());
  const Begins begins = {2, 2, 7, 135, 135, 300, 428};
  for (const std::int64_t block : {128, 0}) {
    const ScaleDim columns = dim_of(block, {{112, 64}, {80, 0}});
    for (const bool across : {false, true}) {
      for (const auto& [type, format] :
           {std::pair{DType::kBF16, DType::kF8E4M3}, {DType::kF32, DType::kF8E5M2}}) {
        Quantised of(type, format, begins, columns, across);
        of.run(context);
        context.synchronize();
        for (std::int64_t s = 0; s + 1 < std::ssize(begins); ++s) {
          const auto at = static_cast<std::size_t>(s);
          if (begins[at] == begins[at + 1]) continue;
          EXPECT_TRUE(of.here(s) == of.alone(context, s))
              << "segment " << s << ", block " << block << ", across " << across;
        }
      }
    }
  }
}

TEST_P(QuantizeSegmentsGpu, give_the_same_bits_in_every_order) {
  Context context = test_context(GetParam());
  for (const std::int64_t block : {128, 0}) {
    for (const bool across : {false, true}) {
      Quantised of(DType::kBF16, DType::kF8E4M3, {0, 130, 140}, {72, block}, across);
      expect_same_bits([&] {
        of.run(context);
        context.synchronize();
        return of.here(0) + of.here(1);
      });
    }
  }
}

}  // namespace
}  // namespace trireme
