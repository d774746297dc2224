// What stands for libcublasLt: a library of that name that multiplies in double, on the caller's
// thread, and keeps what it was asked for. It refuses what cuBLASLt's documentation says that it
// has no fp8 kernels for, and scales between 16 bytes as an H200 does; what cuBLASLt itself has,
// only a GPU can show.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

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

/// Whether there is a kernel. Of fp8: only columns of K on both sides, 16 bytes at once.
bool has_kernel(const Desc& desc, const Layout& a, const Layout& b, const Layout& c,
                const Preference& preference) {
  if (!is_fp8(a.type)) return a.type == b.type;
  if (!is_fp8(b.type) || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2)) return false;
  if (!desc.transposes(CUBLASLT_MATMUL_DESC_TRANSA) || desc.transposes(CUBLASLT_MATMUL_DESC_TRANSB))
    return false;
  if (a.rows % 16 != 0 || a.columns % 16 != 0 || a.stride % 16 != 0 || b.stride % 16 != 0)
    return false;
  if (c.stride * (c.type == CUDA_R_16BF ? 2 : 4) % 16 != 0) return false;
  for (const cublasLtMatmulPreferenceAttributes_t alignment :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    if (preference.get(alignment) < 16) return false;
  return true;
}

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
                              std::size_t workspace_bytes, cudaStream_t) {
  const Desc& desc = desc_of(description);
  const Layout &of_a = layout_of(layout_a), &of_b = layout_of(layout_b),
               &of_c = layout_of(layout_c);
  const bool ta = desc.transposes(CUBLASLT_MATMUL_DESC_TRANSA),
             tb = desc.transposes(CUBLASLT_MATMUL_DESC_TRANSB);
  const std::int64_t m = of_c.rows, n = of_c.columns, k = ta ? of_a.rows : of_a.columns;
  Chosen chosen{};
  std::memcpy(&chosen, algorithm->data, sizeof chosen);
  const bool fits = (ta ? of_a.columns : of_a.rows) == m && (tb ? of_b.rows : of_b.columns) == n &&
                    (tb ? of_b.columns : of_b.rows) == k;
  if (!fits || workspace == nullptr || workspace_bytes < chosen.workspace)
    return CUBLAS_STATUS_INVALID_VALUE;
  const float* const scale_a = desc.scale(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
  const float* const scale_b = desc.scale(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
  for (const float* at : {scale_a, scale_b})
    if (reinterpret_cast<std::uintptr_t>(at) % 16 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  const double scale = static_cast<double>(*static_cast<const float*>(alpha)) *
                       (scale_a == nullptr ? 1 : *scale_a) * (scale_b == nullptr ? 1 : *scale_b);
  const double keep = *static_cast<const float*>(beta);
  const auto bias_type = static_cast<cudaDataType_t>(
      desc.get<std::int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, of_c.type));
  const bool fast = desc.get<std::int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0) != 0;
  const void* const bias = desc.bias();
  for (std::int64_t column = 0; column < n; ++column) {
    for (std::int64_t row = 0; row < m; ++row) {
      double sum = 0;
      for (std::int64_t i = 0; i < k; ++i) {
        sum += value_of(a, of_a.type, ta ? row * of_a.stride + i : i * of_a.stride + row) *
               value_of(b, of_b.type, tb ? i * of_b.stride + column : column * of_b.stride + i);
      }
      const std::int64_t at = column * of_c.stride + row;
      double value = scale * sum;
      if (keep != 0) value += keep * value_of(c, of_c.type, at);
      if (bias != nullptr) value += value_of(bias, bias_type, row);
      store(d, of_c.type, at, value);
    }
  }
  calls += std::string(ta ? "T" : "N") + (tb ? "T " : "N ") + words_of(of_a) + ", " +
           words_of(of_b) + ", " + words_of(of_c) + (keep != 0 ? ", added" : "") +
           (bias == nullptr ? "" : std::string(", bias ") + name_of(bias_type)) +
           (scale_a == nullptr ? "" : ", scales") + (fast ? ", fast" : "") + ", reduction " +
           std::to_string(chosen.reduction) + "\n";
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
