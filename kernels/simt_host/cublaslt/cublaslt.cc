// What stands for libcublasLt: a library of that name that multiplies in double, as an operation of
// its stream, and keeps what it was asked for. It refuses what cuBLASLt's documentation says that
// it has no fp8 kernels for on a GPU of that capability, and scales between 16 bytes as an H200
// does; what cuBLASLt itself has, only a GPU can show.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/simt_host/streams.h"

namespace {

namespace simt = trireme::simt;

struct Desc {
  std::map<int, std::vector<unsigned char>> attributes;
  template <class Value>
  [[nodiscard]] Value get(cublasLtMatmulDescAttributes_t attribute, Value otherwise) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end() || found->second.size() != sizeof(Value)) return otherwise;
    Value value;
    std::memcpy(&value, found->second.data(), sizeof value);
    return value;
  }
  [[nodiscard]] bool transposes(cublasLtMatmulDescAttributes_t attribute) const {
    return get<std::int32_t>(attribute, CUBLAS_OP_N) == CUBLAS_OP_T;
  }
  [[nodiscard]] const float* scale(cublasLtMatmulDescAttributes_t attribute) const {
    return get<const float*>(attribute, nullptr);
  }
  [[nodiscard]] const void* bias() const {
    const bool added = get<std::uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE,
                                          CUBLASLT_EPILOGUE_DEFAULT) == CUBLASLT_EPILOGUE_BIAS;
    return added ? get<const void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr) : nullptr;
  }
};

/// Column after column.
struct Layout {
  cudaDataType_t type;
  std::int64_t rows, columns, stride;
};

struct Preference {
  std::map<int, std::uint64_t> values;
  [[nodiscard]] std::uint64_t get(cublasLtMatmulPreferenceAttributes_t attribute) const {
    const auto found = values.find(attribute);
    return found == values.end() ? 0 : found->second;
  }
};

Desc& desc_of(cublasLtMatmulDesc_t handle) { return *reinterpret_cast<Desc*>(handle); }
const Layout& layout_of(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<const Layout*>(handle);
}
Preference& preference_of(cublasLtMatmulPreference_t handle) {
  return *reinterpret_cast<Preference*>(handle);
}

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

double value_of(const void* data, cudaDataType_t type, std::int64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[i];
  if (type == CUDA_R_16BF) {
    const std::uint32_t high = static_cast<const std::uint16_t*>(data)[i];
    return std::bit_cast<float>(high << 16);
  }
  const int code = static_cast<const unsigned char*>(data)[i];
  const int fraction_bits = type == CUDA_R_8F_E4M3 ? 3 : 2, bias = type == CUDA_R_8F_E4M3 ? 7 : 15;
  const int exponent = (code & 127) >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
  const int first = exponent > 0 ? 1 << fraction_bits : 0;
  const double size = std::ldexp(first + fraction, std::max(exponent, 1) - bias - fraction_bits);
  return code > 127 ? -size : size;
}

void store(void* data, cudaDataType_t type, std::int64_t i, double value) {
  const auto single = static_cast<float>(value);
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = single;
    return;
  }
  const auto bits = std::bit_cast<std::uint32_t>(single);
  const std::uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(rounded >> 16);
}

const char* name_of(cudaDataType_t type) {
  return type == CUDA_R_32F       ? "f32"
         : type == CUDA_R_16BF    ? "bf16"
         : type == CUDA_R_8F_E4M3 ? "e4m3"
         : type == CUDA_R_8F_E5M2 ? "e5m2"
                                  : "another type";
}

std::string words_of(const Layout& layout) {
  return std::string(name_of(layout.type)) + " " + std::to_string(layout.rows) + "x" +
         std::to_string(layout.columns) + "/" + std::to_string(layout.stride);
}

/// What an algorithm of this library's holds: what its choice was asked for.
struct Chosen {
  std::uint64_t workspace, reduction;
};

constexpr std::int64_t kBlock = 128;
std::int64_t blocks_of(std::int64_t size) { return (size + kBlock - 1) / kBlock; }

/// How scales are read: of an operand [rows, k] whose product is along k.
struct Scales {
  static constexpr int kSquares = 5;  // CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F of CUDA 12.9
  int mode;
  const float* at;
  std::int64_t rows, k;

  Scales(const Desc& desc, bool of_a, const Layout& layout)
      : mode(desc.get<std::int32_t>(
            of_a ? CUBLASLT_MATMUL_DESC_A_SCALE_MODE : CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
            CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)),
        at(desc.scale(of_a ? CUBLASLT_MATMUL_DESC_A_SCALE_POINTER
                           : CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)),
        rows(layout.columns),
        k(layout.rows) {}
  [[nodiscard]] bool one() const { return mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F; }
  [[nodiscard]] bool squares() const { return mode == kSquares; }
  [[nodiscard]] std::int64_t stride() const { return (blocks_of(k) + 3) / 4 * 4; }
  [[nodiscard]] double of(std::int64_t row, std::int64_t i) const {
    if (at == nullptr) return 1;
    if (one()) return *at;
    return squares() ? at[row / kBlock * stride() + i / kBlock] : at[i / kBlock * rows + row];
  }
  void check() const {
    if (at == nullptr) return;
    const std::int64_t floats = one()       ? 1
                                : squares() ? blocks_of(rows) * stride()
                                            : blocks_of(k) * rows;
    simt::device_check_range(at, static_cast<std::size_t>(floats) * sizeof(float),
                             "cuBLASLt's scales");
  }
  [[nodiscard]] const char* name() const {
    return at == nullptr ? "no scale" : one() ? "one scale" : squares() ? "squares" : "rows";
  }
};

/// Blocks of 128 have kernels on Hopper alone, not with squares on both sides.
bool takes(const Scales& a, const Scales& b, bool fast) {
  if (a.one() && b.one()) return true;
  if (a.one() || b.one() || (a.squares() && b.squares())) return false;
  return simt::capability() == 90 && !fast && a.rows % 4 == 0 && b.rows % 4 == 0;
}

/// Whether there is a kernel. Of fp8: only columns of K on both sides, 16 bytes at once.
bool has_kernel(const Desc& desc, const Layout& a, const Layout& b, const Layout& c,
                const Preference& preference) {
  if (!is_fp8(a.type)) return a.type == b.type;
  if (simt::capability() < 89) return false;
  if (!is_fp8(b.type) || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2)) return false;
  if (!desc.transposes(CUBLASLT_MATMUL_DESC_TRANSA) || desc.transposes(CUBLASLT_MATMUL_DESC_TRANSB))
    return false;
  if (a.rows % 16 != 0 || a.columns % 16 != 0 || a.stride % 16 != 0 || b.stride % 16 != 0)
    return false;
  if (c.stride * (c.type == CUDA_R_16BF ? 2 : 4) % 16 != 0) return false;
  if (!takes({desc, true, a}, {desc, false, b},
             desc.get<std::int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0) != 0))
    return false;
  for (const cublasLtMatmulPreferenceAttributes_t alignment :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    if (preference.get(alignment) < 16) return false;
  return true;
}

std::int64_t bytes_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1;
}

/// A matrix in memory, column after column.
struct Matrix {
  const void* data;
  Layout layout;
  void check(const char* what) const {
    for (std::int64_t i = 0; i < layout.columns; ++i)
      simt::device_check_range(column(i), size(), what);
  }
  void written() const {
    for (std::int64_t i = 0; i < layout.columns; ++i)
      simt::device_mark_initialised(column(i), size());
  }
  /// Values that are multiplied along k: of each row (`across`: of a column of what is stored).
  [[nodiscard]] std::vector<double> rows(bool columns_are_rows) const {
    const std::int64_t rows = columns_are_rows ? layout.columns : layout.rows,
                       k = columns_are_rows ? layout.rows : layout.columns;
    std::vector<double> values(static_cast<std::size_t>(rows * k));
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < k; ++i)
        values[static_cast<std::size_t>(row * k + i)] =
            value_of(data, layout.type,
                     columns_are_rows ? row * layout.stride + i : i * layout.stride + row);
    return values;
  }

 private:
  [[nodiscard]] const char* column(std::int64_t i) const {
    return static_cast<const char*>(data) + i * layout.stride * bytes_of(layout.type);
  }
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(layout.rows * bytes_of(layout.type));
  }
};

/// A product as it was asked for, of what its memory holds when its stream comes to it.
struct Product {
  Matrix a, b, c;
  void* d;
  bool transpose_a, transpose_b;
  Scales scales_a, scales_b;
  double alpha, beta;
  const void* bias;
  cudaDataType_t bias_type;

  void run() const {
    a.check("cuBLASLt's A"), b.check("cuBLASLt's B"), c.check("cuBLASLt's D");
    scales_a.check(), scales_b.check();
    const std::int64_t m = c.layout.rows, n = c.layout.columns,
                       k = transpose_a ? a.layout.rows : a.layout.columns;
    std::vector<double> x = a.rows(transpose_a), y = b.rows(!transpose_b);
    const auto scale = [&](std::vector<double>& values, const Scales& scales, std::int64_t rows) {
      if (scales.at == nullptr) return;
      for (std::int64_t i = 0; i < rows * k; ++i)
        values[static_cast<std::size_t>(i)] *= scales.of(i / k, i % k);
    };
    scale(x, scales_a, m), scale(y, scales_b, n);
    for (std::int64_t column = 0; column < n; ++column) {
      for (std::int64_t row = 0; row < m; ++row) {
        const double *of_a = x.data() + row * k, *of_b = y.data() + column * k;
        double sum = 0;
        for (std::int64_t i = 0; i < k; ++i) sum += of_a[i] * of_b[i];
        const std::int64_t at = column * c.layout.stride + row;
        double value = alpha * sum;
        if (beta != 0) value += beta * value_of(c.data, c.layout.type, at);
        if (bias != nullptr) value += value_of(bias, bias_type, row);
        store(d, c.layout.type, at, value);
      }
    }
    c.written();
  }
};

std::string calls;

}  // namespace

extern "C" {

/// A line for each product since the last time this was asked.
const char* stand_in_cublaslt_calls() {
  static std::string told;
  told.swap(calls);
  calls.clear();
  return told.c_str();
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int here;
  *handle = reinterpret_cast<cublasLtHandle_t>(&here);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
std::size_t cublasLtGetVersion() { return 1; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "refused by what stands for it"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &desc_of(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  const auto* const begin = static_cast<const unsigned char*>(value);
  desc_of(desc).attributes[attribute].assign(begin, begin + bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{
      type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &layout_of(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &preference_of(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (bytes > sizeof(std::uint64_t)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&preference_of(preference).values[attribute], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  *found = 0;
  const Preference& wishes = preference_of(preference);
  if (most < 1 || c != d) return CUBLAS_STATUS_INVALID_VALUE;
  if (!has_kernel(desc_of(desc), layout_of(a), layout_of(b), layout_of(c), wishes))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Chosen chosen{wishes.get(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES),
                      wishes.get(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)};
  static_assert(sizeof chosen <= sizeof results->algo.data);
  std::memcpy(results->algo.data, &chosen, sizeof chosen);
  results->state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const Desc& desc = desc_of(description);
  const Layout &of_a = layout_of(layout_a), &of_b = layout_of(layout_b),
               &of_c = layout_of(layout_c);
  const Product product{.a = {a, of_a},
                        .b = {b, of_b},
                        .c = {c, of_c},
                        .d = d,
                        .transpose_a = desc.transposes(CUBLASLT_MATMUL_DESC_TRANSA),
                        .transpose_b = desc.transposes(CUBLASLT_MATMUL_DESC_TRANSB),
                        .scales_a = {desc, true, of_a},
                        .scales_b = {desc, false, of_b},
                        .alpha = *static_cast<const float*>(alpha),
                        .beta = *static_cast<const float*>(beta),
                        .bias = desc.bias(),
                        .bias_type = static_cast<cudaDataType_t>(desc.get<std::int32_t>(
                            CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, of_c.type))};
  const bool ta = product.transpose_a, tb = product.transpose_b;
  Chosen chosen{};
  std::memcpy(&chosen, algorithm->data, sizeof chosen);
  const bool fits = (ta ? of_a.columns : of_a.rows) == of_c.rows &&
                    (tb ? of_b.rows : of_b.columns) == of_c.columns &&
                    (tb ? of_b.columns : of_b.rows) == (ta ? of_a.rows : of_a.columns);
  if (!fits || c != d || workspace == nullptr || workspace_bytes < chosen.workspace)
    return CUBLAS_STATUS_INVALID_VALUE;
  for (const Scales* scales : {&product.scales_a, &product.scales_b})
    if (reinterpret_cast<std::uintptr_t>(scales->at) % 16 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool fast = desc.get<std::int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0) != 0;
  const Scales &x = product.scales_a, &y = product.scales_b;
  calls += std::string(ta ? "T" : "N") + (tb ? "T " : "N ") + words_of(of_a) + ", " +
           words_of(of_b) + ", " + words_of(of_c) + (product.beta != 0 ? ", added" : "") +
           (product.bias == nullptr ? "" : std::string(", bias ") + name_of(product.bias_type)) +
           (x.at == nullptr      ? ""
            : x.one() && y.one() ? ", scales"
                                 : std::string(", ") + x.name() + " by " + y.name()) +
           (fast ? ", fast" : "") + ", reduction " + std::to_string(chosen.reduction) + "\n";
  simt::enqueue(stream, [product] { product.run(); });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
