#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <vector>

#include "kernels/common/dispatch.h"
#include "kernels/gemm/gemm_table.h"
#include "kernels/gemm_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {
namespace {

/// Elements between two pages that nobody may touch, at the start or at the end: a read or a write
/// outside of them is a crash.
class GuardedMatrix {
 public:
  GuardedMatrix(DType type, std::int64_t count, bool at_end) : type_(type) {
    const auto page = static_cast<std::size_t>(::getpagesize());
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type);
    const std::size_t inner = (bytes + page - 1) / page * page;
    size_ = inner + 2 * page;
    base_ = static_cast<std::byte*>(
        ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(::mprotect(base_ + page, inner, PROT_READ | PROT_WRITE), 0);
    data_ = base_ + page + (at_end ? inner - bytes : 0);
  }
  ~GuardedMatrix() { ::munmap(base_, size_); }
  GuardedMatrix(const GuardedMatrix&) = delete;
  GuardedMatrix& operator=(const GuardedMatrix&) = delete;
  void* data() { return data_; }
  void set(std::int64_t i, float value) {
    if (type_ == DType::kF32) {
      reinterpret_cast<float*>(data_)[i] = value;
    } else {
      reinterpret_cast<BFloat16*>(data_)[i] = to_bfloat16(value);
    }
  }
  [[nodiscard]] float operator[](std::int64_t i) const {
    if (type_ == DType::kF32) return reinterpret_cast<const float*>(data_)[i];
    return to_float(reinterpret_cast<const BFloat16*>(data_)[i]);
  }

 private:
  DType type_;
  std::byte* base_;
  std::size_t size_;
  std::byte* data_;
};

std::vector<double> without_gaps(const GuardedMatrix& matrix, std::int64_t rows,
                                 std::int64_t stride, std::int64_t gap) {
  std::vector<double> dense;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < stride - gap; ++i) dense.push_back(matrix[r * stride + i]);
  }
  return dense;
}

struct Case {
  GemmSizes sizes;
  bool transpose_a, transpose_b, add;
  DType type = DType::kF32, c_type = DType::kF32;
};

/// Small whole numbers: their sums are exact in f32, so that every element has one right value.
float value(std::int64_t i) { return static_cast<float>((i * 7 + i / 5) % 11 - 5); }

/// What CpuProduct says of bf16.
bool serves(const CpuProduct& product, const Case& x) {
  if (x.type == DType::kF32) return x.c_type == DType::kF32;
  if (x.c_type == DType::kBF16 && (x.add || x.transpose_a || x.sizes.k > product.k_at_once))
    return false;
  return x.transpose_a || x.sizes.k % 2 == 0;
}

class ProductTest : public OpTest {
 protected:
  void SetUp() override {
    const Context context = test_context(GetParam());
    kernels_ = &choose_by_isa(context, gemm_cpu);
    bf16_ = kernels_->bf16_product->multiply != nullptr;
    ASSERT_EQ(bf16_, GetParam() >= Isa::kAvx512Bf16);
  }

  /// Multiplies matrices whose rows have `gap` elements more than they need, c's with a mark in
  /// them, between pages that nobody may touch; expects the exact product, rounded once.
  void expect_exact(const CpuProduct& product, const Case& x, std::int64_t gap, bool at_end) {
    const auto [m, n, k] = x.sizes;
    const std::int64_t a_rows = x.transpose_a ? k : m, b_rows = x.transpose_b ? n : k;
    const std::int64_t a_stride = (x.transpose_a ? m : k) + gap,
                       b_stride = (x.transpose_b ? k : n) + gap, c_stride = n + gap;
    GuardedMatrix a(x.type, a_rows * a_stride - gap, at_end),
        b(x.type, b_rows * b_stride - gap, at_end), c(x.c_type, m * c_stride - gap, at_end);
    for (std::int64_t i = 0; i < a_rows * a_stride - gap; ++i) a.set(i, value(i));
    for (std::int64_t i = 0; i < b_rows * b_stride - gap; ++i) b.set(i, value(3 * i + 1));
    for (std::int64_t i = 0; i < m * c_stride - gap; ++i) {
      const bool mark = i % c_stride >= n;
      c.set(i, mark ? 77.0F : x.add ? 3.0F : NAN);
    }
    ASSERT_EQ(product.scratch * sizeof(float) % 64, 0U);  // aligned, and guarded behind its end
    GuardedMatrix scratch(DType::kF32, product.scratch, true);
    if (scratch_of_nan_) {
      for (std::int64_t i = 0; i < product.scratch; ++i) scratch.set(i, NAN);
    }
    product.multiply({x.sizes, x.type, x.c_type, a.data(), b.data(), c.data(), a_stride, b_stride,
                      c_stride, x.transpose_a, x.transpose_b, x.add},
                     static_cast<float*>(scratch.data()));
    const std::vector<double> expected = reference::gemm(
        {m, n, k, x.transpose_a, x.transpose_b},
        std::vector<double>(static_cast<std::size_t>(m * n), x.add ? 3.0 : 0.0),
        without_gaps(a, a_rows, a_stride, gap), without_gaps(b, b_rows, b_stride, gap));
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t j = 0; j < n; ++j) {
        const auto exact = static_cast<float>(expected[static_cast<std::size_t>(r * n + j)]);
        ASSERT_EQ(c[r * c_stride + j],
                  x.c_type == DType::kF32 ? exact : to_float(to_bfloat16(exact)))
            << "row " << r << ", column " << j;
      }
      for (std::int64_t j = 0; j < gap && r + 1 < m; ++j)
        ASSERT_EQ(c[r * c_stride + n + j], 77.0F) << "beyond row " << r;
    }
  }

  void expect_all_forms_exact(GemmSizes sizes, std::int64_t gap, bool at_end) {
    int served = 0;
    for (int form = 0; form < 32; ++form) {
      const Case x{sizes,
                   (form & 1) != 0,
                   (form & 2) != 0,
                   (form & 4) != 0,
                   (form & 8) != 0 ? DType::kBF16 : DType::kF32,
                   (form & 16) != 0 ? DType::kBF16 : DType::kF32};
      const CpuProduct& product =
          x.type == DType::kF32 ? *kernels_->f32_product : *kernels_->bf16_product;
      if (product.multiply == nullptr || !serves(product, x)) continue;
      ++served;
      SCOPED_TRACE(::testing::Message()
                   << sizes.m << " x " << sizes.n << " x " << sizes.k << ", a " << x.transpose_a
                   << ", b " << x.transpose_b << ", add " << x.add << ", " << name_of(x.type)
                   << " to " << name_of(x.c_type) << ", gap " << gap);
      expect_exact(product, x, gap, at_end);
      if (HasFatalFailure()) return;
    }
    const bool even = sizes.k % 2 == 0, at_once = sizes.k <= kernels_->bf16_product->k_at_once;
    EXPECT_EQ(served, !bf16_ ? 8 : !even ? 12 : at_once ? 18 : 16);
  }

  const GemmKernels* kernels_ = nullptr;
  bool bf16_ = false, scratch_of_nan_ = false;
};

TRIREME_FOR_ALL_ISAS(ProductTest);

TEST_P(ProductTest, every_remainder_of_tiles_is_exact_and_nothing_outside_is_touched) {
  for (const bool at_end : {false, true}) {
    for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16}) {
      for (const std::int64_t n : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 81}) {
        for (const std::int64_t k : {1, 2, 7, 8, 9, 16, 19, 38})
          expect_all_forms_exact({m, n, k}, (m + n) % 3, at_end);
      }
    }
  }
}

TEST_P(ProductTest, sides_beyond_each_block_are_exact) {
  expect_all_forms_exact({291, 17, 10}, 1, true);     // three blocks of rows
  expect_all_forms_exact({7, 2067, 5}, 0, true);      // three of columns
  expect_all_forms_exact({11, 18, 1163}, 2, true);    // two, four or five of K
  expect_all_forms_exact({201, 1043, 391}, 0, true);  // two of each, or nearly
  expect_all_forms_exact({72, 800, 1040}, 3, false);
  expect_all_forms_exact({19, 37, 2100}, 1, true);    // bf16: two or five of K
  expect_all_forms_exact({70, 850, 1600}, 0, false);  // and all of it at once
  expect_all_forms_exact({9, 800, 1024}, 0, false);   // what fills scratch: f32's panels,
  expect_all_forms_exact({9, 800, 2048}, 0, true);    // those of bf16
  expect_all_forms_exact({9, 33, 2050}, 0, true);
}

TEST_P(ProductTest, what_stood_in_c_and_in_scratch_has_no_influence) {
  scratch_of_nan_ = true;
  expect_all_forms_exact({5, 9, 3}, 0, true);
  expect_all_forms_exact({13, 35, 11}, 1, true);
  expect_all_forms_exact({13, 35, 12}, 1, true);
}

}  // namespace
}  // namespace trireme
