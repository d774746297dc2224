#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/gemm/gemm_table.h"
#include "kernels/gemm_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

/// Floats between two pages that nobody may touch, at the start or at the end: a read or a write
/// outside of them is a crash.
class GuardedFloats {
 public:
  GuardedFloats(std::int64_t count, bool at_end) {
    const auto page = static_cast<std::size_t>(::getpagesize());
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    const std::size_t inner = (bytes + page - 1) / page * page;
    size_ = inner + 2 * page;
    base_ = static_cast<std::byte*>(
        ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(::mprotect(base_ + page, inner, PROT_READ | PROT_WRITE), 0);
    data_ = reinterpret_cast<float*>(base_ + page + (at_end ? inner - bytes : 0));
  }
  ~GuardedFloats() { ::munmap(base_, size_); }
  GuardedFloats(const GuardedFloats&) = delete;
  GuardedFloats& operator=(const GuardedFloats&) = delete;
  float* data() { return data_; }
  float& operator[](std::int64_t i) { return data_[i]; }

 private:
  std::byte* base_;
  std::size_t size_;
  float* data_;
};

std::vector<double> without_gaps(GuardedFloats& matrix, std::int64_t rows, std::int64_t stride,
                                 std::int64_t gap) {
  std::vector<double> dense;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = matrix.data() + r * stride;
    dense.insert(dense.end(), row, row + stride - gap);
  }
  return dense;
}

struct Case {
  GemmSizes sizes;
  bool transpose_a, transpose_b, add;
};

/// Small whole numbers: their sums are exact in f32, so that every element has one right value.
float value(std::int64_t i) { return static_cast<float>((i * 7 + i / 5) % 11 - 5); }

class SgemmTest : public OpTest {
 protected:
  void SetUp() override {
    kernels_ = GetParam() == Isa::kAvx512 ? &avx512::gemm_cpu : &avx2::gemm_cpu;
    const auto floats = static_cast<std::size_t>(kernels_->sgemm_scratch());
    scratch_.resize(floats + 16);
    void* aligned = scratch_.data();
    std::size_t space = scratch_.size() * sizeof(float);
    ASSERT_NE(std::align(64, floats * sizeof(float), aligned, space), nullptr);
    scratch_begin_ = static_cast<float*>(aligned);
  }

  /// Multiplies matrices whose rows have `gap` elements more than they need, c's with a mark in
  /// them, between pages that nobody may touch; expects the exact product.
  void expect_exact(const Case& x, std::int64_t gap, bool at_end) {
    const auto [m, n, k] = x.sizes;
    const std::int64_t a_rows = x.transpose_a ? k : m, b_rows = x.transpose_b ? n : k;
    const std::int64_t a_stride = (x.transpose_a ? m : k) + gap,
                       b_stride = (x.transpose_b ? k : n) + gap, c_stride = n + gap;
    GuardedFloats a(a_rows * a_stride - gap, at_end), b(b_rows * b_stride - gap, at_end),
        c(m * c_stride - gap, at_end);
    for (std::int64_t i = 0; i < a_rows * a_stride - gap; ++i) a[i] = value(i);
    for (std::int64_t i = 0; i < b_rows * b_stride - gap; ++i) b[i] = value(3 * i + 1);
    for (std::int64_t i = 0; i < m * c_stride - gap; ++i) c[i] = x.add ? 3.0F : NAN;
    const std::vector<float> marks(static_cast<std::size_t>(gap), 77.0F);
    for (std::int64_t r = 0; r + 1 < m; ++r)
      std::copy(marks.begin(), marks.end(), c.data() + r * c_stride + n);
    kernels_->sgemm({x.sizes, a.data(), b.data(), c.data(), a_stride, b_stride, c_stride,
                     x.transpose_a, x.transpose_b, x.add},
                    scratch_begin_);
    const std::vector<double> expected = reference::gemm(
        {m, n, k, x.transpose_a, x.transpose_b},
        std::vector<double>(static_cast<std::size_t>(m * n), x.add ? 3.0 : 0.0),
        without_gaps(a, a_rows, a_stride, gap), without_gaps(b, b_rows, b_stride, gap));
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(c[r * c_stride + j], expected[static_cast<std::size_t>(r * n + j)])
            << "row " << r << ", column " << j;
      }
      for (std::int64_t j = 0; j < gap && r + 1 < m; ++j)
        ASSERT_EQ(c[r * c_stride + n + j], 77.0F) << "beyond row " << r;
    }
  }

  void expect_all_forms_exact(GemmSizes sizes, std::int64_t gap, bool at_end) {
    for (const int form : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const Case x{sizes, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0};
      SCOPED_TRACE(::testing::Message()
                   << sizes.m << " x " << sizes.n << " x " << sizes.k << ", a " << x.transpose_a
                   << ", b " << x.transpose_b << ", add " << x.add << ", gap " << gap);
      expect_exact(x, gap, at_end);
      if (HasFatalFailure()) return;
    }
  }

  const GemmKernels* kernels_ = nullptr;
  std::vector<float> scratch_;
  float* scratch_begin_ = nullptr;
};

TRIREME_FOR_ALL_ISAS(SgemmTest);

TEST_P(SgemmTest, every_remainder_of_tiles_is_exact_and_nothing_outside_is_touched) {
  for (const bool at_end : {false, true}) {
    for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16}) {
      for (const std::int64_t n : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 81}) {
        for (const std::int64_t k : {1, 7, 8, 9, 16, 19})
          expect_all_forms_exact({m, n, k}, (m + n) % 3, at_end);
      }
    }
  }
}

TEST_P(SgemmTest, sides_beyond_each_block_are_exact) {
  expect_all_forms_exact({291, 17, 10}, 1, true);     // three blocks of rows
  expect_all_forms_exact({7, 2067, 5}, 0, true);      // three of columns
  expect_all_forms_exact({11, 18, 1163}, 2, true);    // two, four or five of K
  expect_all_forms_exact({201, 1043, 391}, 0, true);  // two of each, or nearly
  expect_all_forms_exact({72, 800, 1040}, 3, false);
}

TEST_P(SgemmTest, what_stood_in_c_and_in_scratch_has_no_influence) {
  std::fill(scratch_.begin(), scratch_.end(), NAN);
  expect_all_forms_exact({5, 9, 3}, 0, true);
  std::fill(scratch_.begin(), scratch_.end(), NAN);
  expect_all_forms_exact({13, 35, 11}, 1, true);
}

}  // namespace
}  // namespace trireme
