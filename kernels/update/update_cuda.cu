#include "kernels/common/many_tensors.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/update/update_table.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256, kCount = 4;
static_assert(kUpdateElementsPerBlock % (kThreads * kCount) == 0);

struct Constants {
  float gradient_scale, one_minus_beta1, beta2, one_minus_beta2, step_size,
      inverse_sqrt_correction2, eps, lr_decay;
};

/// Operation for operation what the CPU does, so that both have the same bits: the intrinsics
/// round where they stand and are not fused; square root and division are IEEE's.
__device__ __forceinline__ void update_element(float& parameter, float& exp_avg, float& exp_avg_sq,
                                               float gradient, const Constants& c) {
  const float g = __fmul_rn(gradient, c.gradient_scale);
  const float m = __fmaf_rn(c.one_minus_beta1, __fadd_rn(g, -exp_avg), exp_avg);
  const float v = __fmaf_rn(c.beta2, exp_avg_sq, __fmul_rn(__fmul_rn(c.one_minus_beta2, g), g));
  const float denominator = __fmaf_rn(sqrtf(v), c.inverse_sqrt_correction2, c.eps);
  const float decayed = __fmaf_rn(-c.lr_decay, parameter, parameter);
  parameter = __fmaf_rn(-c.step_size, m / denominator, decayed);
  exp_avg = m;
  exp_avg_sq = v;
}

/// Elements i, ..., i + kWidth of a tensor; the copy's address is good for an access as wide.
template <int kWidth>
__device__ __forceinline__ void update_group(const UpdateTensorArgs& tensor, std::int64_t i,
                                             const Constants& c) {
  auto p = load<kWidth>(tensor.parameter + i);
  auto m = load<kWidth>(tensor.exp_avg + i);
  auto v = load<kWidth>(tensor.exp_avg_sq + i);
  const auto g = load<kWidth>(tensor.gradient + i);
  if (tensor.kept != nullptr) {
    store(tensor.kept + i, p);
    store(tensor.kept + tensor.count + i, m);
    store(tensor.kept + 2 * tensor.count + i, v);
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) update_element(p.at[k], m.at[k], v.at[k], g.at[k], c);
  store(tensor.parameter + i, p);
  store(tensor.exp_avg + i, m);
  store(tensor.exp_avg_sq + i, v);
  if (tensor.copy == nullptr) return;
  Vector<bf16, kWidth> copy;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) copy.at[k] = from_float<bf16>(p.at[k]);
  store(reinterpret_cast<bf16*>(tensor.copy) + i, copy);
}

__device__ __forceinline__ bool begins_aligned(const UpdateTensorArgs& tensor) {
  const auto bits = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  const bool kept =
      tensor.kept == nullptr || (bits(tensor.kept) % 16 == 0 && tensor.count % 4 == 0);
  return kept && (bits(tensor.parameter) | bits(tensor.exp_avg) | bits(tensor.exp_avg_sq) |
                  bits(tensor.gradient) | bits(tensor.copy) << 1) %
                         16 ==
                     0;
}

/// A block updates kUpdateElementsPerBlock elements of one tensor, or its last ones.
__global__ void __launch_bounds__(kThreads, 4) update_kernel(UpdateArgs args) {
  const UpdateTensorArgs tensor =
      args.tensors[tensor_of_block(args.tensors, args.tensor_count, blockIdx.x)];
  const UpdateStep step = *args.step;
  const Constants constants = {step.gradient_scale,
                               args.one_minus_beta1,
                               args.beta2,
                               args.one_minus_beta2,
                               static_cast<float>(step.step_size * tensor.lr_scale),
                               step.inverse_sqrt_correction2,
                               args.eps,
                               static_cast<float>(step.lr * tensor.decay)};
  const std::int64_t begin = (blockIdx.x - tensor.first_block) * kUpdateElementsPerBlock;
  const std::int64_t end = min(begin + kUpdateElementsPerBlock, tensor.count);
  std::int64_t single = begin;
  if (begins_aligned(tensor)) {
    single = end / kCount * kCount;
#pragma unroll 1
    for (std::int64_t i = begin + threadIdx.x * kCount; i < single; i += kThreads * kCount)
      update_group<kCount>(tensor, i, constants);
  }
#pragma unroll 1
  for (std::int64_t i = single + threadIdx.x; i < end; i += kThreads)
    update_group<1>(tensor, i, constants);
}

__global__ void write_step_kernel(UpdateStep* to, UpdateStep step) { *to = step; }

/// As a kernel's argument: what is given by value needs no host memory that outlives the call.
void write_step(const Exec& exec, UpdateStep* to, const UpdateStep& step) {
  launch(write_step_kernel,
         {.grid = 1, .block = 1, .stream = stream_of(exec), .name = "adamw_step"}, to, step);
}

void update(const UpdateArgs& args) {
  launch(update_kernel,
         {.grid = static_cast<unsigned>(args.block_count),
          .block = kThreads,
          .stream = stream_of(args.exec),
          .name = "adamw_update"},
         args);
}

}  // namespace

const UpdateKernels update_cuda = {write_step, update};

}  // namespace trireme::cuda
