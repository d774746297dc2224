#pragma once
// What the tests of ops share: tensors with random values, comparison with a reference in double,
// all instruction sets.
//
//   class NormTest : public OpTest {};
//   TRIREME_FOR_ALL_ISAS(NormTest);
//   TEST_P(NormTest, output_equals_the_reference) { Context context = test_context(GetParam(), 2);
//   ... }
//
// The same tests run for GPUs: in kernels_simt_tests on the host, in kernels_gpu_tests on a GPU.
// There tensors stand in memory that both sides reach.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/context.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// The instruction sets to test: what the CPU has; in kernels_wide_tests the largest, emulated on
/// AVX2; one, where a GPU is tested.
std::vector<Isa> isas_to_test();
std::string isa_test_name(const testing::TestParamInfo<Isa>& info);
/// On a CPU, or on the GPU where that is tested (`threads` then says nothing).
Context test_context(Isa isa, int threads = 1);

/// Where the tensors of tests stand, and how a context is made: one definition for each kind of
/// test executable.
namespace test_device {
Device device();
std::byte* allocate(std::size_t bytes);
void release(std::byte* memory);
/// Makes bytes count as written, for who watches reads of what was never set.
void initialise(std::byte* memory, std::size_t bytes);
/// Waits for all that was asked of the device.
void synchronize();
/// The results of `run` under every order in which a GPU's threads may be taken: once and once more
/// on real hardware.
std::vector<std::string> in_every_order(const std::function<std::string()>& run);
/// Whether fp8 products add as a tensor core does: on a GPU, and by an executor that was asked to.
bool tensor_core_sums();
/// While it lives they do, where the device can.
struct TensorCoreSums {
  TensorCoreSums();
  TensorCoreSums(const TensorCoreSums&) = delete;
  TensorCoreSums& operator=(const TensorCoreSums&) = delete;
  ~TensorCoreSums();
  bool given;
};
}  // namespace test_device
/// `run` gives the same bits each time, in whatever order threads are taken.
void expect_same_bits(const std::function<std::string()>& run);

class OpTest : public testing::TestWithParam<Isa> {};
#define TRIREME_FOR_ALL_ISAS(suite) \
  INSTANTIATE_TEST_SUITE_P(Isas, suite, testing::ValuesIn(isas_to_test()), isa_test_name)

/// Owns elements between guard bytes, at an address that is aligned to the element only (to 16
/// where TRIREME_TEST_ALIGNED is set in the environment): an op that writes outside is found by the
/// destructor. Copyable.
class TestTensor {
 public:
  static constexpr int kOffsetByEnvironment = -1;
  /// Zeros, `offset` elements behind an aligned address.
  TestTensor(DType dtype, Shape shape, int offset = kOffsetByEnvironment);
  /// Approximately N(0, scale^2), rounded to the type; the same values for the same seed and shape.
  static TestTensor random(DType dtype, Shape shape, std::uint64_t seed, double scale = 1,
                           int offset = kOffsetByEnvironment);
  static TestTensor of(DType dtype, Shape shape, const std::vector<double>& values);
  TestTensor(const TestTensor& other);
  TestTensor(TestTensor&& other) noexcept;
  TestTensor& operator=(TestTensor other) noexcept;
  ~TestTensor();

  [[nodiscard]] TensorView view();
  [[nodiscard]] ConstTensorView view() const;
  operator TensorView() { return view(); }  // NOLINT: stands for its view in op arguments
  operator ConstTensorView() const { return view(); }  // NOLINT
  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] std::vector<double> values() const;
  void set(std::int64_t index, double value);
  /// The elements' bytes, to compare bits.
  [[nodiscard]] std::string bits() const;

 private:
  [[nodiscard]] std::byte* data() const {
    return memory_ == nullptr ? nullptr : memory_ + offset_bytes_;
  }
  [[nodiscard]] std::size_t size() const;

  DType dtype_;
  Shape shape_;
  std::size_t offset_bytes_;
  std::byte* memory_ = nullptr;  // null when moved from
};

/// Every element within `relative` of the expected one, or of the largest expected one times
/// `of_largest`.
struct Tolerance {
  double relative;
  double of_largest = 0;
};
/// f32 results of f32 arithmetic; one rounding to bf16 on top of it.
Tolerance tolerance_of(DType dtype);
void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                  Tolerance tolerance, const std::string& what);

/// The central difference of `loss` for each element of `at`, in double.
std::vector<double> finite_differences(
    std::vector<double> at, const std::function<double(const std::vector<double>&)>& loss,
    double step = 1e-5);

/// `call` throws InternalError whose text contains `message`.
void expect_refused(const std::function<void()>& call, const std::string& message);

}  // namespace trireme
