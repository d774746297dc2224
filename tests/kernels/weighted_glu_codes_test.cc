#include "kernels/expert_rows/weighted_glu_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/common/gpu_kernels.h"
#include "kernels/quantize/quantize_segments.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

constexpr std::int64_t kBlock = QuantizedSegments::kBlock, kSlots = 3;
using Begins = std::vector<double>;

class WeightedGluCodesTest : public OpTest {
  void SetUp() override {
    if (test_context(GetParam()).on_gpu() && gpu_kernels().weighted_glu_codes == nullptr)
      GTEST_SKIP() << "no kernels for fp8 rows of experts";
  }
};
TRIREME_FOR_ALL_ISAS(WeightedGluCodesTest);

/// Empty ones, one row, a block and a row, rows in the last of more than 32, none at all.
std::vector<Begins> tables() {
  Begins many(35, 3);
  std::fill_n(many.begin(), 5, 0);
  many[33] = 60;
  many[34] = 117;
  return {{0, 0, 5, 5, 6, 135, 135}, many, {0, 0, 0}};
}

struct Codes {
  TestTensor codes, scales;
  ScaleDim columns;
  bool across;

  Codes(DType format, std::int64_t most, const Begins& begins, const ScaleDim& columns_,
        bool across_)
      : codes(format,
              QuantizedSegments::codes_shape(most, std::ssize(begins) - 1, columns_, across_)),
        scales(DType::kF32,
               QuantizedSegments::scales_shape(most, std::ssize(begins) - 1, columns_, across_)),
        columns(columns_),
        across(across_) {}
  QuantizedSegments out() { return {codes, scales, columns, across}; }
  [[nodiscard]] std::string bits() const { return codes.bits() + scales.bits(); }
};

/// gate and up, as a product of both has them.
ScaleDim two_parts(std::int64_t ffn) {
  ScaleDim dim;
  dim.block = kBlock;
  dim.add({ffn});
  dim.add({ffn});
  return dim;
}

struct Unit {
  GluGate gate;
  std::int64_t most, ffn;
  TestTensor begins, row_slot, gate_up, weights, dh, dweights;
  Codes h, dgate_up, dgate_up_across, h_across;

  Unit(GluGate gate_, const Begins& table, std::int64_t ffn_, DType format)
      : gate(gate_),
        most(static_cast<std::int64_t>(table.back()) + 5),
        ffn(ffn_),
        begins(TestTensor::of(DType::kI32, {std::ssize(table)}, table)),
        row_slot(DType::kI32, {most}),
        gate_up(TestTensor::random(DType::kBF16, {most, 2 * ffn}, 1, 3)),
        weights(TestTensor::random(DType::kF32, {most, kSlots}, 2)),
        dh(TestTensor::random(DType::kBF16, {most, ffn}, 3)),
        dweights(DType::kF32, {most}),
        h(DType::kF8E4M3, most, table, {ffn, kBlock}, false),
        dgate_up(format, most, table, two_parts(ffn), false),
        dgate_up_across(format, most, table, two_parts(ffn), true),
        h_across(DType::kF8E4M3, most, table, {ffn, kBlock}, true) {
    for (std::int64_t r = 0; r < most; ++r)
      row_slot.set(r, static_cast<double>(r * 7 % most * kSlots + r % kSlots));
    if (table.back() > 4) gate_up.set(4 * 2 * ffn + 1, std::numeric_limits<double>::quiet_NaN());
  }
  [[nodiscard]] WeightedGlu args() const { return {gate, gate_up, weights, row_slot, begins}; }
  void run(Context& context) {
    weighted_glu_forward_codes(context, h.out(), args());
    weighted_glu_backward_codes(context, {dgate_up.out(), dgate_up_across.out(), h_across.out()},
                                dweights, dh, args());
    test_device::synchronize();
  }
  [[nodiscard]] std::string bits() const {
    return h.bits() + dgate_up.bits() + dgate_up_across.bits() + h_across.bits() + dweights.bits();
  }
};

/// The same by rows, and passes over these.
void run_by_rows(Context& context, Unit& unit) {
  TestTensor h(DType::kBF16, {unit.most, unit.ffn}), again(DType::kBF16, {unit.most, unit.ffn}),
      d(DType::kBF16, {unit.most, 2 * unit.ffn});
  weighted_glu_forward(context, h, unit.args());
  weighted_glu_backward(context, d, unit.dweights, again, unit.dh, unit.args());
  quantize_segments(context, {unit.h.out(), h, unit.begins});
  quantize_segments(context, {unit.dgate_up.out(), d, unit.begins});
  quantize_segments(context, {unit.dgate_up_across.out(), d, unit.begins});
  quantize_segments(context, {unit.h_across.out(), again, unit.begins});
  test_device::synchronize();
}

/// Where a GPU has rows of whole vectors, as weighted_glu_backward sums them too.
bool sums_alike(const Unit& unit) {
  const auto is_aligned = [](const TestTensor& of) {
    return reinterpret_cast<std::uintptr_t>(of.view().data) % 16 == 0;
  };
  return is_aligned(unit.gate_up) && is_aligned(unit.dh);
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  for (std::size_t r = 0; r < expected.size(); ++r) {
    if (std::isnan(expected[r])) continue;
    EXPECT_NEAR(actual[r], expected[r], 1e-3) << r;
  }
}

TEST_P(WeightedGluCodesTest, codes_are_those_of_the_rows_that_the_unit_would_store) {
  for (const int threads : {1, 3}) {
    Context context = test_context(GetParam(), threads);
    if (context.on_gpu() && threads > 1) return;
    for (const GluGate gate : {GluGate::kSilu, GluGate::kGelu}) {
      for (const std::int64_t ffn : {8, 128, 200, 264, 1032}) {
        for (const Begins& table : tables()) {
          if (ffn > 264 && (table.back() != 117 || gate == GluGate::kGelu))
            continue;  // it takes long
          const DType format = ffn == 200 ? DType::kF8E4M3 : DType::kF8E5M2;
          SCOPED_TRACE(testing::Message() << "ffn " << ffn << " segments to " << table.back());
          Unit unit(gate, table, ffn, format), by_rows(gate, table, ffn, format);
          unit.run(context);
          run_by_rows(context, by_rows);
          EXPECT_TRUE(unit.h.bits() == by_rows.h.bits());
          EXPECT_TRUE(unit.dgate_up.bits() == by_rows.dgate_up.bits());
          EXPECT_TRUE(unit.dgate_up_across.bits() == by_rows.dgate_up_across.bits());
          EXPECT_TRUE(unit.h_across.bits() == by_rows.h_across.bits());
          if (!context.on_gpu() || sums_alike(unit)) {
            EXPECT_TRUE(unit.dweights.bits() == by_rows.dweights.bits());
          } else {
            expect_near(unit.dweights.values(), by_rows.dweights.values());
          }
        }
      }
    }
  }
}

TEST_P(WeightedGluCodesTest, every_order_of_threads_gives_the_same_bits) {
  Context context = test_context(GetParam(), 2);
  expect_same_bits([&] {
    Unit unit(GluGate::kSilu, {0, 130, 140}, 72, DType::kF8E5M2);
    unit.run(context);
    return unit.bits();
  });
}

TEST_P(WeightedGluCodesTest, what_does_not_fit_is_refused) {
  Context context = test_context(GetParam());
  const Begins table{0, 4, 9};
  Unit unit(GluGate::kSilu, table, 16, DType::kF8E5M2);
  const auto forward = [&](QuantizedSegments h, const WeightedGlu& args, const char* message) {
    expect_refused([&] { weighted_glu_forward_codes(context, h, args); }, message);
  };
  forward(unit.h_across.out(), unit.args(),
          "weighted_swiglu_forward_codes.h: expected codes along");
  forward(unit.dgate_up.out(), unit.args(), "h: expected");
  WeightedGlu args = unit.args();
  args.row_slot = {};
  args.begins = {};
  forward(unit.h.out(), args, "row_slot: expected rows of experts");
  QuantizedSegments shifted = unit.h.out();
  shifted.columns = ScaleDim(16, kBlock, 16);
  forward(shifted, unit.args(), "h: expected parts of F from the beginning of a block");
  const auto backward = [&](const WeightedGluGradientCodes& out, const TensorView& dweights,
                            const char* message) {
    expect_refused(
        [&] { weighted_glu_backward_codes(context, out, dweights, unit.dh, unit.args()); },
        message);
  };
  const WeightedGluGradientCodes out{unit.dgate_up.out(), unit.dgate_up_across.out(),
                                     unit.h_across.out()};
  backward({out.h_across, out.dgate_up_across, out.h_across}, unit.dweights, "dgate_up: expected");
  backward({out.dgate_up, out.h_across, out.h_across}, unit.dweights, "dgate_up_across: expected");
  backward({out.dgate_up, out.dgate_up_across, out.dgate_up_across}, unit.dweights,
           "h_across: expected");
  backward(out, unit.dweights.view().rows(0, 3), "dweights: expected");
  Unit other(GluGate::kSilu, table, 16, DType::kF8E4M3);
  backward({out.dgate_up, other.dgate_up_across.out(), out.h_across}, unit.dweights,
           "dgate_up_across: expected dgate_up's parts and type");
}

}  // namespace
}  // namespace trireme
