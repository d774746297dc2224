#include "kernels/support/op_test.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "base/hash.h"
#include "base/random.h"

namespace trireme {
namespace {

constexpr std::size_t kGuardBytes = 128;
constexpr std::byte kGuard{0xa5};

}  // namespace

std::string isa_test_name(const testing::TestParamInfo<Isa>& info) {
#define TRIREME_NAMESPACE(enumerator, isa, ...) #isa,
  constexpr const char* kNames[] = {TRIREME_INSTRUCTION_SETS(TRIREME_NAMESPACE)};
#undef TRIREME_NAMESPACE
  return kNames[static_cast<std::size_t>(info.param)];
}

Context test_context(Isa isa, int threads) { return {test_device::device(), threads, isa}; }

void expect_same_bits(const std::function<std::string()>& run) {
  const std::vector<std::string> results = test_device::in_every_order(run);
  for (std::size_t i = 1; i < results.size(); ++i)
    EXPECT_TRUE(results[i] == results[0]) << "other bits in order " << i;
}

namespace {
int usual_offset() {
  static const bool aligned = std::getenv("TRIREME_TEST_ALIGNED") != nullptr;
  return aligned ? 0 : 1;
}
}  // namespace

TestTensor::TestTensor(DType dtype, Shape shape, int offset)
    : dtype_(dtype),
      shape_(shape),
      offset_bytes_(kGuardBytes + static_cast<std::size_t>(offset < 0 ? usual_offset() : offset) *
                                      size_of(dtype)) {
  memory_ = test_device::allocate(size());
  std::memset(memory_, std::to_integer<int>(kGuard), size());
  test_device::initialise(data(), view().bytes());
  std::memset(data(), 0, view().bytes());
}

TestTensor::TestTensor(const TestTensor& other)
    : dtype_(other.dtype_), shape_(other.shape_), offset_bytes_(other.offset_bytes_) {
  test_device::synchronize();
  memory_ = test_device::allocate(size());
  test_device::initialise(data(), view().bytes());
  std::memcpy(memory_, other.memory_, size());
}

TestTensor::TestTensor(TestTensor&& other) noexcept
    : dtype_(other.dtype_),
      shape_(other.shape_),
      offset_bytes_(other.offset_bytes_),
      memory_(std::exchange(other.memory_, nullptr)) {}

TestTensor& TestTensor::operator=(TestTensor other) noexcept {
  std::swap(dtype_, other.dtype_);
  std::swap(shape_, other.shape_);
  std::swap(offset_bytes_, other.offset_bytes_);
  std::swap(memory_, other.memory_);
  return *this;
}

// With TRIREME_RECORD_BITS=<file>: the hashes of each test's tensors as they end, a line a test,
// for comparing executors. How often a test repeats itself differs between them, so each hash
// stands once.
namespace {
class BitsRecord {
 public:
  explicit BitsRecord(const char* path) : path_(path) {}
  ~BitsRecord() {
    std::ofstream file(path_);
    for (const auto& [test, hashes] : hashes_) {
      file << test;
      for (const std::string& hash : hashes) file << ' ' << hash;
      file << '\n';
    }
  }
  void add(std::span<const std::byte> bytes) {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    if (test == nullptr) return;
    hashes_[std::string(test->test_suite_name()) + "." + test->name()].insert(
        xxh3_128_hex(bytes).substr(0, 16));
  }

 private:
  std::string path_;
  std::map<std::string, std::set<std::string>> hashes_;
};
void record_bits(std::span<const std::byte> bytes) {
  static const char* path = std::getenv("TRIREME_RECORD_BITS");
  if (path == nullptr) return;
  static BitsRecord record(path);
  record.add(bytes);
}
}  // namespace

TestTensor::~TestTensor() {
  if (memory_ == nullptr) return;
  test_device::synchronize();
  record_bits({data(), view().bytes()});
  const auto is_guard = [](std::byte b) { return b == kGuard; };
  EXPECT_TRUE(std::all_of(memory_, data(), is_guard))
      << "written before a tensor " << shape_.text();
  EXPECT_TRUE(std::all_of(data() + view().bytes(), memory_ + size(), is_guard))
      << "written behind a tensor " << shape_.text();
  test_device::release(memory_);
}

std::size_t TestTensor::size() const { return offset_bytes_ + view().bytes() + kGuardBytes; }

TestTensor TestTensor::random(DType dtype, Shape shape, std::uint64_t seed, double scale,
                              int offset) {
  TestTensor tensor(dtype, shape, offset);
  for (std::int64_t i = 0; i < shape.count(); ++i) {
    tensor.set(i, normal(seed, static_cast<std::uint64_t>(i)) * scale);
  }
  return tensor;
}

TestTensor TestTensor::of(DType dtype, Shape shape, const std::vector<double>& values) {
  TestTensor tensor(dtype, shape);
  expect(static_cast<std::int64_t>(values.size()) == shape.count(), "{} values for {}",
         values.size(), shape.text());
  for (std::size_t i = 0; i < values.size(); ++i)
    tensor.set(static_cast<std::int64_t>(i), values[i]);
  return tensor;
}

TensorView TestTensor::view() { return {data(), dtype_, shape_}; }
ConstTensorView TestTensor::view() const { return {data(), dtype_, shape_}; }

std::vector<double> TestTensor::values() const {
  test_device::synchronize();
  std::vector<double> values(static_cast<std::size_t>(shape_.count()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (dtype_) {
      case DType::kF32:
        values[i] = view().as<float>()[i];
        break;
      case DType::kBF16:
        values[i] = to_float(view().as<BFloat16>()[i]);
        break;
      case DType::kF64:
        values[i] = view().as<double>()[i];
        break;
      case DType::kI32:
        values[i] = view().as<std::int32_t>()[i];
        break;
      case DType::kF8E4M3:
      case DType::kF8E5M2:
      case DType::kU8:
        values[i] = std::to_integer<int>(data()[i]);  // the code
        break;
    }
  }
  return values;
}

void TestTensor::set(std::int64_t index, double value) {
  switch (dtype_) {
    case DType::kF32:
      view().as<float>()[index] = static_cast<float>(value);
      break;
    case DType::kBF16:
      view().as<BFloat16>()[index] = to_bfloat16(static_cast<float>(value));
      break;
    case DType::kF64:
      view().as<double>()[index] = value;
      break;
    case DType::kI32:
      view().as<std::int32_t>()[index] = static_cast<std::int32_t>(value);
      break;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kU8:
      data()[index] = static_cast<std::byte>(value);
      break;
  }
}

std::string TestTensor::bits() const {
  test_device::synchronize();
  return {reinterpret_cast<const char*>(data()), view().bytes()};
}

Tolerance tolerance_of(DType dtype) {
  // Half a unit of bf16's 8 bits, and what f32 arithmetic may add to push a value over the edge.
  if (dtype == DType::kBF16) return {1.01 / 256, 1e-6};
  return {1e-6, 1e-6};
}

void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                  Tolerance tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const double value : expected) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i])) {
      const bool same = std::isnan(expected[i]) ? std::isnan(actual[i]) : actual[i] == expected[i];
      ASSERT_TRUE(same) << what << "[" << i << "]: expected " << expected[i] << ", found "
                        << actual[i];
      continue;
    }
    const double bound =
        tolerance.relative * std::abs(expected[i]) + tolerance.of_largest * largest;
    ASSERT_LE(std::abs(actual[i] - expected[i]), bound)
        << what << "[" << i << "]: expected " << expected[i] << ", found " << actual[i];
  }
}

std::vector<double> finite_differences(
    std::vector<double> at, const std::function<double(const std::vector<double>&)>& loss,
    double step) {
  std::vector<double> gradient(at.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double value = at[i];
    at[i] = value + step;
    const double above = loss(at);
    at[i] = value - step;
    gradient[i] = (above - loss(at)) / (2 * step);
    at[i] = value;
  }
  return gradient;
}

void expect_refused(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    FAIL() << "not refused; expected: " << message;
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
        << "expected: " << message << "\nfound: " << error.what();
  }
}

}  // namespace trireme
