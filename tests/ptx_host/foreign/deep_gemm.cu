// DeepGEMM's kernels for sm_90a: bf16, and fp8 with scales of 1 x 128 and 128 x 128, beside
// products in double.
#include <cuda.h>
#include <cuda_fp8.h>

#include <deep_gemm/impls/sm90_bf16_gemm.cuh>
#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>

#include "harness.h"

extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                           const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                           const cuuint32_t*, CUtensorMapInterleave,
                                           CUtensorMapSwizzle, CUtensorMapL2promotion,
                                           CUtensorMapFloatOOBfill);

namespace {

constexpr int kBlock = 128, kBlocks = 4;  // tiles of 128 x 128, 4 persistent blocks
using foreign::device, foreign::random;

struct Matrix {
  void* data;
  CUtensorMapDataType type;
  std::uint64_t rows, columns;
  std::uint32_t element, box_rows, box_columns;
  int swizzle;
};
CUtensorMap map_of(const Matrix& m) {
  CUtensorMap map;
  const cuuint64_t dims[] = {m.columns, m.rows}, strides[] = {m.columns * m.element};
  const cuuint32_t box[] = {m.box_columns, m.box_rows}, steps[] = {1, 1};
  const CUtensorMapSwizzle swizzle =
      m.swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
  if (cuTensorMapEncodeTiled(&map, m.type, 2, m.data, dims, strides, box, steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    std::fprintf(stderr, "a tensor map was refused\n");
    std::exit(1);
  }
  return map;
}

template <class... P, class... A>
void start(int cluster, void (*kernel)(P...), A... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {unsigned(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = kBlocks;
  config.blockDim = 128 + 256;
  config.dynamicSmemBytes = 200 * 1024;
  config.attrs = &attribute;
  config.numAttrs = 1;
  foreign::check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  foreign::check(cudaLaunchKernelEx(&config, kernel, P(args)...));
  foreign::check(cudaDeviceSynchronize());
}

std::string name_of(const char* what, int m, int n, int k, int cluster) {
  return std::string("DeepGEMM ") + what + " " + std::to_string(m) + " x " + std::to_string(n) +
         " x " + std::to_string(k) + (cluster > 1 ? ", cluster of 2" : "");
}

template <int kCluster>
bool bf16(int m, int n, int k) {
  using Element = cutlass::bfloat16_t;
  Element *a = random<Element>(std::size_t(m) * k, 1), *b = random<Element>(std::size_t(n) * k, 2),
          *d = device<Element>(std::size_t(m) * n);
  constexpr auto type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUtensorMap map_a =
      map_of({a, type, std::uint64_t(m), std::uint64_t(k), 2, kBlock, 64, 128});
  const CUtensorMap map_b =
      map_of({b, type, std::uint64_t(n), std::uint64_t(k), 2, kBlock, 64, 128});
  const CUtensorMap map_d =
      map_of({d, type, std::uint64_t(m), std::uint64_t(n), 2, kBlock, 64, 128});
  const auto kernel =
      &deep_gemm::sm90_bf16_gemm_impl<cute::UMMA::Major::K, cute::UMMA::Major::K, 0, 0, 0, 1,
                                      kBlock, kBlock, 64, 128, 128, 128, 4, 128, 256, kCluster,
                                      false, kBlocks, deep_gemm::GemmType::Normal, false, Element>;
  start(kCluster, kernel, static_cast<int*>(nullptr), m, n, k, map_a, map_b, map_d);
  foreign::Comparison result;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int c = 0; c < k; ++c)
        sum += double(float(a[std::size_t(i) * k + c])) * double(float(b[std::size_t(j) * k + c]));
      result.add(double(float(d[std::size_t(i) * n + j])), sum);
    }
  return result.report(name_of("bf16", m, n, k, kCluster), 5e-3);
}

template <int kCluster>
bool fp8(int m, int n, int k) {
  using Code = __nv_fp8_e4m3;
  using Element = cutlass::bfloat16_t;
  Code *a = random<Code>(std::size_t(m) * k, 3, 400), *b = random<Code>(std::size_t(n) * k, 4, 400);
  Element* d = device<Element>(std::size_t(m) * n);
  const int groups = k / 128, m_aligned = (m + 3) / 4 * 4;
  float *sfa = random<float>(std::size_t(groups) * m_aligned, 5),
        *sfb = random<float>(std::size_t((n + 127) / 128) * groups, 6);
  const CUtensorMap map_a = map_of(
      {a, CU_TENSOR_MAP_DATA_TYPE_UINT8, std::uint64_t(m), std::uint64_t(k), 1, kBlock, 128, 128});
  const CUtensorMap map_b = map_of(
      {b, CU_TENSOR_MAP_DATA_TYPE_UINT8, std::uint64_t(n), std::uint64_t(k), 1, kBlock, 128, 128});
  const CUtensorMap map_d = map_of({d, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, std::uint64_t(m),
                                    std::uint64_t(n), 2, kBlock, 64, 128});
  const CUtensorMap map_s = map_of({sfa, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, std::uint64_t(groups),
                                    std::uint64_t(m_aligned), 4, 1, kBlock, 0});
  const auto kernel =
      &deep_gemm::sm90_fp8_gemm_1d2d_impl<cute::UMMA::Major::K, 0, 0, 0, 1, kBlock, kBlock, 128,
                                          128, 128, 128, 4, 128, 256, kCluster, false, kBlocks,
                                          deep_gemm::GemmType::Normal, Element,
                                          deep_gemm::epilogue::transform::EpilogueIdentity>;
  start(kCluster, kernel, sfb, static_cast<int*>(nullptr), m, n, k, map_a, map_b, map_d, map_s);
  foreign::Comparison result;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int c = 0; c < k; ++c)
        sum += double(float(a[std::size_t(i) * k + c])) * double(float(b[std::size_t(j) * k + c])) *
               double(sfa[std::size_t(c / 128) * m_aligned + i]) *
               double(sfb[std::size_t(j / 128) * groups + c / 128]);
      result.add(double(float(d[std::size_t(i) * n + j])), sum);
    }
  return result.report(name_of("fp8 1x128", m, n, k, kCluster), 1e-2);
}

}  // namespace

int main() {
  bool good = true;
  good &= bf16<1>(200, 264, 320);
  good &= bf16<2>(512, 384, 512);
  good &= fp8<1>(136, 384, 640);
  good &= fp8<2>(512, 256, 512);
  return good ? 0 : 1;
}
