#include "kernels/activation_codes/activation_codes_table.h"
#include "kernels/adafactor/adafactor_table.h"
#include "kernels/attention/attention_gpu_table.h"
#include "kernels/attention/attention_library_table.h"
#include "kernels/common/gpu_kernels.h"
#include "kernels/cross_entropy/cross_entropy_table.h"
#include "kernels/dropout/dropout_table.h"
#include "kernels/elementwise/elementwise_table.h"
#include "kernels/embedding/embedding_table.h"
#include "kernels/expert_rows/expert_rows_table.h"
#include "kernels/expert_rows/weighted_glu_codes_gpu_table.h"
#include "kernels/gelu/gelu_table.h"
#include "kernels/gemm/gemm_gpu_table.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"
#include "kernels/glu/glu_table.h"
#include "kernels/grad_norm/grad_norm_table.h"
#include "kernels/grouped_gemm/grouped_gemm_gpu_table.h"
#include "kernels/grouped_gemm/grouped_gemm_quantized_gpu_table.h"
#include "kernels/latent_heads/latent_heads_table.h"
#include "kernels/magnitude/magnitude_table.h"
#include "kernels/muon/muon_table.h"
#include "kernels/nf4/nf4_table.h"
#include "kernels/norm/norm_table.h"
#include "kernels/projection_norm/projection_norm_table.h"
#include "kernels/quantize/quantize_segments_gpu_table.h"
#include "kernels/quantize/quantize_table.h"
#include "kernels/rope/rope_table.h"
#include "kernels/router/router_table.h"
#include "kernels/shards/shards_table.h"
#include "kernels/update/update_8bit_table.h"
#include "kernels/update/update_table.h"

namespace trireme {

const GpuKernels& gpu_kernels() {
  static constexpr GpuKernels kCuda = {
      .activation_codes = &cuda::activation_codes_cuda,
      .adafactor = &cuda::adafactor_cuda,
      .attention = &cuda::attention_cuda,
#ifdef TRIREME_GPU_SM90
      .attention_sm90 = &cuda::attention_sm90,
#endif
#ifdef TRIREME_GPU_CUDNN
      .attention_cudnn = &cuda::attention_cudnn,
#endif
      .cross_entropy = &cuda::cross_entropy_cuda,
      .dropout = &cuda::dropout_cuda,
      .elementwise = &cuda::elementwise_cuda,
      .embedding = &cuda::embedding_cuda,
      .expert_rows = &cuda::expert_rows_cuda,
      .gelu = &cuda::gelu_cuda,
      .gemm = &cuda::gemm_cuda,
#ifdef TRIREME_GPU_SM90
      .gemm_sm90 = &cuda::gemm_sm90,
#endif
#ifdef TRIREME_GPU_CUBLASLT
      .gemm_cublaslt = &cuda::gemm_cublaslt,
#endif
#ifdef TRIREME_GPU_SM90
      .gemm_fp8_sm90 = &cuda::gemm_fp8_sm90,
      .gemm_fp8_triple_sm90 = &cuda::gemm_fp8_triple_sm90,
      .gemm_fp8_split_sm90 = &cuda::gemm_fp8_split_sm90,
#endif
#ifdef TRIREME_GPU_CUBLASLT
      .gemm_fp8_cublaslt = &cuda::gemm_fp8_cublaslt,
#endif
      .glu = &cuda::glu_cuda,
      .grad_norm = &cuda::grad_norm_cuda,
      .grouped_gemm = &cuda::grouped_gemm_cuda,
#ifdef TRIREME_GPU_SM90
      .grouped_gemm_fp8_sm90 = &cuda::grouped_gemm_fp8_sm90,
      .grouped_gemm_sm90 = &cuda::grouped_gemm_sm90,
#endif
      .latent_heads = &cuda::latent_heads_cuda,
      .magnitude = &cuda::magnitude_cuda,
      .muon = &cuda::muon_cuda,
      .nf4 = &cuda::nf4_cuda,
      .norm = &cuda::norm_cuda,
      .projection_norm = &cuda::projection_norm_cuda,
      .quantize = &cuda::quantize_cuda,
      .quantize_segments = &cuda::quantize_segments_cuda,
      .rope = &cuda::rope_cuda,
      .router = &cuda::router_cuda,
      .shards = &cuda::shards_cuda,
      .update = &cuda::update_cuda,
      .update_8bit = &cuda::update_8bit_cuda,
      .weighted_glu_codes = &cuda::weighted_glu_codes_cuda,
  };
  return kCuda;
}

}  // namespace trireme
