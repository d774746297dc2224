#include "kernels/gemm/product_cpu.h"

#include "kernels/gemm/product_blocks.h"

namespace trireme::TRIREME_ISA {

constinit const CpuProduct f32_product = blocks::kernel<float>(blocks::multiply<float, float>);

#ifdef TRIREME_BF16_PAIRS
namespace {

void multiply_bf16(const ProductArgs& args, float* scratch) {
  if (args.c_type == DType::kBF16) return blocks::multiply<BFloat16, BFloat16>(args, scratch);
  blocks::multiply<BFloat16, float>(args, scratch);
}

}  // namespace

constinit const CpuProduct bf16_product = blocks::kernel<BFloat16>(multiply_bf16);
#else
constinit const CpuProduct bf16_product = {};
#endif

}  // namespace trireme::TRIREME_ISA
