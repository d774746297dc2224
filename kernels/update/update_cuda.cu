#include "kernels/common/many_tensors.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/update/update_rules.cuh"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256, kCount = 4;

/// In either type.
template <int kWidth>
__device__ __forceinline__ void store_copy(const UpdateTensorArgs& tensor, std::int64_t i,
                                           const Vector<float, kWidth>& values) {
  if (tensor.copy_f32 != nullptr) store(tensor.copy_f32 + i, values);
  if (tensor.copy == nullptr) return;
  Vector<bf16, kWidth> copy;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) copy.at[k] = from_float<bf16>(values.at[k]);
  store(reinterpret_cast<bf16*>(tensor.copy) + i, copy);
}

/// Elements i, ..., i + kWidth of a tensor; the copy's address is good for an access as wide.
template <class Rule, int kWidth>
__device__ __forceinline__ void update_group(const UpdateTensorArgs& tensor, std::int64_t i,
                                             const StepConstants& c) {
  constexpr bool kTwo = Rule::kMoments == 2;
  auto p = load<kWidth>(tensor.parameter + i);
  auto m = load<kWidth>(tensor.exp_avg + i);
  Vector<float, kWidth> v;
  if constexpr (kTwo) v = load<kWidth>(tensor.exp_avg_sq + i);
  const auto g = load<kWidth>(tensor.gradient + i);
  if (tensor.kept != nullptr) {
    store(tensor.kept + i, p);
    store(tensor.kept + tensor.count + i, m);
    if constexpr (kTwo) store(tensor.kept + 2 * tensor.count + i, v);
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) Rule::update(p.at[k], m.at[k], v.at[k], g.at[k], c);
  store(tensor.parameter + i, p);
  store(tensor.exp_avg + i, m);
  if constexpr (kTwo) store(tensor.exp_avg_sq + i, v);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) p.at[k] = Rule::copied(p.at[k], m.at[k], c.of);
  store_copy<kWidth>(tensor, i, p);
}

template <int kWidth>
__device__ __forceinline__ void copy_group(const UpdateTensorArgs& tensor, std::int64_t i,
                                           float one_minus_beta1) {
  const auto x = load<kWidth>(tensor.parameter + i), z = load<kWidth>(tensor.exp_avg + i);
  Vector<float, kWidth> y;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) y.at[k] = between(x.at[k], z.at[k], one_minus_beta1);
  store_copy<kWidth>(tensor, i, y);
}

template <int kWidth>
__device__ __forceinline__ void average_group(const UpdateTensorArgs& tensor, std::int64_t i,
                                              float share) {
  const auto p = load<kWidth>(tensor.parameter + i);
  auto e = load<kWidth>(tensor.exp_avg + i);
#pragma unroll
  for (int k = 0; k < kWidth; ++k)
    e.at[k] = __fmaf_rn(share, __fadd_rn(p.at[k], -e.at[k]), e.at[k]);
  store(tensor.exp_avg + i, e);
}

__device__ __forceinline__ bool begins_aligned(const UpdateTensorArgs& tensor) {
  const auto bits = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  const bool kept =
      tensor.kept == nullptr || (bits(tensor.kept) % 16 == 0 && tensor.count % 4 == 0);
  return kept && (bits(tensor.parameter) | bits(tensor.exp_avg) | bits(tensor.exp_avg_sq) |
                  bits(tensor.gradient) | bits(tensor.copy_f32) | bits(tensor.copy) << 1) %
                         16 ==
                     0;
}

__device__ __forceinline__ UpdateTensorArgs tensor_here(const UpdateArgs& args) {
  return args.tensors[tensor_of_block(args.tensors, args.tensor_count, blockIdx.x)];
}

template <class OfFour, class OfOne>
__device__ __forceinline__ void for_block(const UpdateTensorArgs& tensor, const OfFour& of_four,
                                          const OfOne& of_one) {
  for_block_of<kThreads, kCount, kUpdateElementsPerBlock>(tensor, begins_aligned(tensor), of_four,
                                                          of_one);
}

template <class Rule>
__global__ void __launch_bounds__(kThreads, 4) update_kernel(UpdateArgs args) {
  const UpdateTensorArgs tensor = tensor_here(args);
  const StepConstants constants =
      step_constants(*args.step, args.constants, tensor.lr_scale, tensor.decay);
  for_block(
      tensor, [&](std::int64_t i) { update_group<Rule, kCount>(tensor, i, constants); },
      [&](std::int64_t i) { update_group<Rule, 1>(tensor, i, constants); });
}

__global__ void __launch_bounds__(kThreads, 4) copy_kernel(UpdateArgs args) {
  const UpdateTensorArgs tensor = tensor_here(args);
  const float one_minus_beta1 = args.constants.one_minus_beta1;
  for_block(
      tensor, [&](std::int64_t i) { copy_group<kCount>(tensor, i, one_minus_beta1); },
      [&](std::int64_t i) { copy_group<1>(tensor, i, one_minus_beta1); });
}

__global__ void __launch_bounds__(kThreads, 4) average_kernel(UpdateArgs args) {
  const UpdateTensorArgs tensor = tensor_here(args);
  const float share = args.constants.one_minus_beta1;
  for_block(
      tensor, [&](std::int64_t i) { average_group<kCount>(tensor, i, share); },
      [&](std::int64_t i) { average_group<1>(tensor, i, share); });
}

__global__ void write_step_kernel(UpdateScalars* to, UpdateScalars step) { *to = step; }

/// As a kernel's argument: what is given by value needs no host memory that outlives the call.
void write_step(const Exec& exec, UpdateScalars* to, const UpdateScalars& step) {
  launch(write_step_kernel,
         {.grid = 1, .block = 1, .stream = stream_of(exec), .name = "update_step"}, to, step);
}

template <class Kernel>
void launch_update(const UpdateArgs& args, Kernel* kernel, const char* name) {
  launch(kernel,
         {.grid = static_cast<unsigned>(args.block_count),
          .block = kThreads,
          .stream = stream_of(args.exec),
          .name = name},
         args);
}

void adamw(const UpdateArgs& args) { launch_update(args, update_kernel<AdamW>, "adamw_update"); }
void lion(const UpdateArgs& args) { launch_update(args, update_kernel<Lion>, "lion_update"); }
void schedule_free(const UpdateArgs& args) {
  launch_update(args, update_kernel<ScheduleFree>, "schedule_free_update");
}
void schedule_free_copy(const UpdateArgs& args) {
  launch_update(args, copy_kernel, "schedule_free_copy");
}
void average(const UpdateArgs& args) { launch_update(args, average_kernel, "average_update"); }

}  // namespace

const UpdateKernels update_cuda = {write_step,         adamw,  lion, schedule_free,
                                   schedule_free_copy, average};

}  // namespace trireme::cuda
