#pragma once
// The ops' tables for GPUs. Which there are is settled when a program is linked: those that nvcc
// compiled, the same sources compiled for the host (test builds), or none.

namespace trireme {

struct ActivationCodesKernels;
struct AdafactorGpuKernels;
struct AttentionGpuKernels;
struct AttentionHopperKernels;
struct AttentionLibraryKernels;
struct CodedUpdateKernels;
struct CrossEntropyKernels;
struct DropoutKernels;
struct ElementwiseKernels;
struct EmbeddingKernels;
struct ExpertRowsKernels;
struct GeluKernels;
struct GemmGpuKernels;
struct GemmQuantizedGpuKernels;
struct GluKernels;
struct GradNormGpuKernels;
struct GroupedGemmGpuKernels;
struct GroupedGemmHopperKernels;
struct GroupedGemmQuantizedGpuKernels;
struct LatentHeadsKernels;
struct MagnitudeKernels;
struct MuonKernels;
struct Nf4Kernels;
struct NormKernels;
struct ProjectionNormKernels;
struct QuantizeKernels;
struct QuantizeSegmentsGpuKernels;
struct RopeKernels;
struct RouterKernels;
struct ShardsKernels;
struct UpdateKernels;
struct WeightedGluCodesGpuKernels;

struct GpuKernels {
  const ActivationCodesKernels* activation_codes = nullptr;
  const AdafactorGpuKernels* adafactor = nullptr;
  const AttentionGpuKernels* attention = nullptr;
  const AttentionHopperKernels* attention_sm90 = nullptr;    ///< where code for sm_90a was compiled
  const AttentionLibraryKernels* attention_cudnn = nullptr;  ///< where that library was found
  const CrossEntropyKernels* cross_entropy = nullptr;
  const DropoutKernels* dropout = nullptr;
  const ElementwiseKernels* elementwise = nullptr;
  const EmbeddingKernels* embedding = nullptr;
  const ExpertRowsKernels* expert_rows = nullptr;
  const GeluKernels* gelu = nullptr;
  const GemmGpuKernels* gemm = nullptr;
  const GemmGpuKernels* gemm_sm90 = nullptr;               ///< where code for sm_90a was compiled
  const GemmGpuKernels* gemm_cublaslt = nullptr;           ///< where that library was found
  const GemmQuantizedGpuKernels* gemm_fp8_sm90 = nullptr;  ///< where code for sm_90a was compiled
  const GemmQuantizedGpuKernels* gemm_fp8_triple_sm90 = nullptr;  ///< likewise
  const GemmQuantizedGpuKernels* gemm_fp8_split_sm90 = nullptr;   ///< likewise
  const GemmQuantizedGpuKernels* gemm_fp8_cublaslt = nullptr;     ///< where that library was found
  const GluKernels* glu = nullptr;
  const GradNormGpuKernels* grad_norm = nullptr;
  const GroupedGemmGpuKernels* grouped_gemm = nullptr;
  const GroupedGemmQuantizedGpuKernels* grouped_gemm_fp8_sm90 = nullptr;  ///< as gemm_fp8_sm90
  const GroupedGemmHopperKernels* grouped_gemm_sm90 = nullptr;            ///< as gemm_sm90
  const LatentHeadsKernels* latent_heads = nullptr;
  const MagnitudeKernels* magnitude = nullptr;
  const MuonKernels* muon = nullptr;
  const Nf4Kernels* nf4 = nullptr;
  const NormKernels* norm = nullptr;
  const ProjectionNormKernels* projection_norm = nullptr;
  const QuantizeKernels* quantize = nullptr;
  const QuantizeSegmentsGpuKernels* quantize_segments = nullptr;
  const RopeKernels* rope = nullptr;
  const RouterKernels* router = nullptr;
  const ShardsKernels* shards = nullptr;
  const UpdateKernels* update = nullptr;
  const CodedUpdateKernels* update_8bit = nullptr;
  const WeightedGluCodesGpuKernels* weighted_glu_codes = nullptr;
};
const GpuKernels& gpu_kernels();

}  // namespace trireme
