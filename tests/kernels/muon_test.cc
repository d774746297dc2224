#include "kernels/muon/muon.h"

#include <string>
#include <vector>

#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class Muon : public OpTest {};
TRIREME_FOR_ALL_ISAS(Muon);

TEST_P(Muon, values_by_hand) {
  Context context = test_context(GetParam());
  TestTensor momentum = TestTensor::of(DType::kF32, {2}, {4, -8}), update(DType::kF32, {2});
  const TestTensor gradient = TestTensor::of(DType::kF32, {2}, {16, 0});
  const MuonMomentumTensor one{momentum, gradient, update};
  muon_momentum(context, {&one, 1}, 0.75, 0.5F);
  EXPECT_EQ(momentum.values(), (std::vector<double>{5, -6}));
  EXPECT_EQ(update.values(), (std::vector<double>{8 + 0.75 * (5 - 8), 0.75 * -6}));

  TestTensor parameter = TestTensor::of(DType::kF32, {2}, {16, 2}), copy(DType::kBF16, {2});
  const TestTensor moved = TestTensor::of(DType::kF32, {2}, {1, -4});
  const MuonUpdateTensor of{parameter, copy, moved, 2, 0.5};
  muon_update(context, {&of, 1}, 0.25);
  EXPECT_EQ(parameter.values(), (std::vector<double>{16 - 2 - 0.5, 2 - 0.25 + 2}));
  EXPECT_EQ(copy.values(), parameter.values());

  TestTensor sum = TestTensor::of(DType::kF32, {2}, {3, -1}), operand(DType::kBF16, {2});
  newton_schulz_operand(context, operand, sum, 2, 3);
  EXPECT_EQ(operand.values(), (std::vector<double>{6, -2}));
  EXPECT_EQ(sum.values(), (std::vector<double>{18, -6}));
  TestTensor gram = TestTensor::of(DType::kBF16, {2}, {4, 1});
  newton_schulz_polynomial(context, gram, sum, -2, 0.5);
  EXPECT_EQ(gram.values(), (std::vector<double>{1, -5}));
}

/// Tensors of many sizes, parts of one block of a GPU's and several; some without an update or a
/// copy; two steps of both ops.
class Tensors {
 public:
  Tensors(DType type, int offset) : type_(type) {
    for (std::int64_t i = 0; i < 23; ++i) {
      const std::int64_t count = i == 7 ? 9001 : i == 8 ? 4096 : i * 13 % 200;
      const auto seed = static_cast<std::uint64_t>(i);
      const auto of = [&](DType dtype, std::uint64_t more, double scale) {
        return TestTensor::random(dtype, {count}, seed + more, scale, offset);
      };
      gradients_.push_back(of(DType::kF32, 100, 0.1));
      momenta_.push_back(of(DType::kF32, 200, 0.1));
      updates_.push_back(of(type, 300, 1));
      parameters_.push_back(of(DType::kF32, 400, 1));
      copies_.push_back(of(DType::kBF16, 500, 1));
    }
  }
  void run(Context& context) {
    std::vector<MuonMomentumTensor> momenta;
    std::vector<MuonUpdateTensor> updates;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      momenta.push_back({momenta_[i], gradients_[i], i % 5 == 1 ? TensorView() : updates_[i]});
      updates.push_back({parameters_[i], i % 3 == 0 ? copies_[i].view() : TensorView(), updates_[i],
                         0.5 + static_cast<double>(i), i % 2 == 0 ? 0.1 : 0});
    }
    for (const float scale : {0.5F, 1.0F}) {
      muon_momentum(context, momenta, 0.95, scale);
      muon_update(context, updates, 1e-2);
    }
  }
  /// Of what such steps leave, in double.
  [[nodiscard]] std::string bits() const {
    std::string bits;
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      bits += momenta_[i].bits() + updates_[i].bits() + parameters_[i].bits() + copies_[i].bits();
    return bits;
  }
  void expect_near_the_formula(const Tensors& before) const {
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      std::vector<double> m = before.momenta_[i].values(), u = before.updates_[i].values(),
                          p = before.parameters_[i].values();
      const std::vector<double> gradient = gradients_[i].values();
      const double step = 1e-2 * (0.5 + static_cast<double>(i)), decay = i % 2 == 0 ? 1e-3 : 0;
      for (const double scale : {0.5, 1.0}) {
        for (std::size_t at = 0; at < m.size(); ++at) {
          const double g = gradient[at] * scale;
          m[at] = 0.95 * m[at] + 0.05 * g;
          if (i % 5 != 1) u[at] = 0.05 * g + 0.95 * m[at];
          p[at] = p[at] * (1 - decay) - step * u[at];
        }
      }
      const Tolerance rounded{1e-5, type_ == DType::kF32 ? 1e-6 : 8e-3};
      expect_close(momenta_[i].values(), m, {1e-5, 1e-6}, "momentum");
      expect_close(updates_[i].values(), u, rounded, "update");
      expect_close(parameters_[i].values(), p, rounded, "parameter");
    }
  }
  /// A copy has what it was to have, others what they had.
  void expect_copies(const Tensors& before) const {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      if (i % 3 != 0) {
        EXPECT_EQ(copies_[i].bits(), before.copies_[i].bits()) << i;
      } else {
        expect_close(copies_[i].values(), parameters_[i].values(), {1.0 / 256}, "copy");
      }
    }
  }

 private:
  DType type_;
  std::vector<TestTensor> gradients_, momenta_, updates_, parameters_, copies_;
};

TEST_P(Muon, many_tensors_are_the_formula_with_the_bits_of_the_cpu_for_any_number_of_threads) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Context cpu({DeviceKind::kCpu, 0}, 1, GetParam());
    const Tensors before(type, 0);
    Tensors alone = before;
    alone.run(cpu);
    alone.expect_near_the_formula(before);
    alone.expect_copies(before);
    for (const int threads : {1, 2, 3}) {
      Context context = test_context(GetParam(), threads);
      for (const int offset : {0, 1}) {
        Tensors tensors(type, offset);
        tensors.run(context);
        EXPECT_TRUE(tensors.bits() == alone.bits()) << threads << " threads, offset " << offset;
      }
    }
  }
}

TEST_P(Muon, rows_by_themselves_have_the_bits_of_the_whole) {
  Context context = test_context(GetParam());
  const TestTensor gradient = TestTensor::random(DType::kF32, {101}, 1);
  TestTensor whole(DType::kF32, {101}), cut(DType::kF32, {101}), update(DType::kBF16, {101}),
      of_cut(DType::kBF16, {101});
  const MuonMomentumTensor all{whole, gradient, update};
  muon_momentum(context, {&all, 1}, 0.95, 0.3F);
  std::vector<MuonMomentumTensor> rows;
  for (const auto& [begin, count] :
       {std::pair<std::int64_t, std::int64_t>{0, 13}, {13, 1}, {14, 87}}) {
    rows.push_back({cut.view().rows(begin, count), gradient.view().rows(begin, count),
                    of_cut.view().rows(begin, count)});
  }
  muon_momentum(context, rows, 0.95, 0.3F);
  EXPECT_EQ(cut.bits() + of_cut.bits(), whole.bits() + update.bits());
}

TEST_P(Muon, operands_and_polynomials_are_the_formula_with_the_bits_of_the_cpu) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t count : {1, 4, 63, 5000}) {
      Context cpu({DeviceKind::kCpu, 0}, 1, GetParam());
      const auto run = [&](Context& context, int offset) {
        TestTensor sum = TestTensor::random(DType::kF32, {count}, 1, 1, offset),
                   operand(type, {count}, offset),
                   gram = TestTensor::random(type, {count}, 2, 1, offset);
        const std::vector<double> x = sum.values(), g = gram.values();
        newton_schulz_operand(context, operand, sum, 0.7F, 3.4F);
        newton_schulz_polynomial(context, gram, sum, -4.7F, 2.0F);
        const std::vector<double> rounded_values = operand.values();
        std::vector<double> y, scaled, p;
        for (std::size_t i = 0; i < x.size(); ++i) {
          y.push_back(0.7 * x[i]);
          scaled.push_back(3.4 * rounded_values[i]);
          p.push_back(-4.7 * g[i] + 2.0 * scaled[i]);
        }
        const Tolerance rounded = tolerance_of(type);
        expect_close(operand.values(), y, rounded, "operand");
        expect_close(sum.values(), scaled, {1e-6}, "sum");
        expect_close(gram.values(), p, {rounded.relative, 1e-6}, "polynomial");
        return operand.bits() + sum.bits() + gram.bits();
      };
      const std::string expected = run(cpu, 0);
      for (const int threads : {1, 3}) {
        Context context = test_context(GetParam(), threads);
        for (const int offset : {0, 1}) EXPECT_TRUE(run(context, offset) == expected) << count;
      }
    }
  }
}

TEST_P(Muon, no_tensors_are_no_work) {
  Context context = test_context(GetParam());
  muon_momentum(context, {}, 0.95, 1);
  muon_update(context, {}, 1);
}

TEST_P(Muon, wrong_operands_are_refused_by_name) {
  Context context = test_context(GetParam());
  TestTensor four(DType::kF32, {4}), five(DType::kF32, {5}), half(DType::kBF16, {4});
  const auto momentum = [&](const MuonMomentumTensor& tensor) {
    return [&context, tensor] { muon_momentum(context, {&tensor, 1}, 0.95, 1); };
  };
  const auto update = [&](const MuonUpdateTensor& tensor) {
    return [&context, tensor] { muon_update(context, {&tensor, 1}, 1); };
  };
  expect_refused(momentum({four, five}), "muon_momentum.gradient: expected [4] fp32");
  expect_refused(momentum({half, four}), "muon_momentum.momentum: expected [4] fp32");
  expect_refused(momentum({four, four, five}), "muon_momentum.update: expected [4] fp32");
  expect_refused(update({four, {}, five}), "muon_update.update: expected [4] fp32");
  expect_refused(update({four, four, half}), "muon_update.copy: expected [4] bf16");
  expect_refused([&] { newton_schulz_operand(context, half, five, 1, 1); },
                 "newton_schulz_operand.operand: expected [5] bf16");
  expect_refused([&] { newton_schulz_operand(context, four, four, 1, 1); }, "operand");
  expect_refused([&] { newton_schulz_polynomial(context, four, half, 1, 1); },
                 "newton_schulz_polynomial.square: expected [4] fp32");
}

}  // namespace
}  // namespace trireme
