#include "kernels/common/float8.cuh"
#include "kernels/common/many_tensors.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/update/update_8bit_table.h"
#include "kernels/update/update_rules.cuh"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int kBlock = static_cast<int>(kMomentBlock), kOfLane = kBlock / kWarp;

/// The maps of one moment or two, in shared memory.
template <class Rule>
struct Maps {
  MomentCodes of[Rule::kMoments];
};

template <class Rule>
__device__ __forceinline__ void load_maps(Maps<Rule>& maps, const MomentTables* tables) {
  static_assert(sizeof(MomentTables) == 2 * sizeof(MomentCodes));
  const auto* from = reinterpret_cast<const std::uint32_t*>(tables);
  auto* to = reinterpret_cast<std::uint32_t*>(&maps);
  constexpr unsigned kWords = sizeof(maps) / sizeof(std::uint32_t);
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < kWords; i += kThreads) to[i] = from[i];
  __syncthreads();
}

__device__ __forceinline__ std::uint32_t magnitude_bits(float x) {
  return bits_of(x) & 0x7fffffffU;
}

__device__ __forceinline__ float factor_of(float absmax) {
  return __fdiv_rn(1.0F, absmax < kMomentLeast ? kMomentLeast : absmax);
}

template <bool kSigned>
__device__ __forceinline__ std::uint8_t code_of(const MomentCodes& map, float x, float factor) {
  const auto bits = static_cast<std::int32_t>(bits_of(__fmul_rn(x, factor)));
  const std::int32_t magnitude = bits & 0x7fffffff, low = (1 << map.shift) - 1;
  std::int32_t cell = min(max((magnitude >> map.shift) - map.first, 0), map.count - 1);
  if (kSigned) cell += bits >> 31 & map.negative;
  const auto found = static_cast<std::int32_t>(map.cells[cell]);
  const std::int32_t step = kSigned ? bits >> 31 | 1 : 1;
  return static_cast<std::uint8_t>((found & 255) + ((bits & low) > (found >> 8) ? step : 0));
}

__device__ __forceinline__ CodedTensorArgs tensor_here(const CodedUpdateArgs& args) {
  return args.tensors[tensor_of_block(args.tensors, args.tensor_count, blockIdx.x)];
}

/// A lane's element k of a block: kWidth neighbours, then those that are a warp's further on.
template <int kWidth>
__device__ __forceinline__ int element_of(int lane, int k) {
  return k / kWidth * (kWidth * kWarp) + lane * kWidth + k % kWidth;
}

template <int kWidth, class T>
__device__ __forceinline__ void load_lane(T (&out)[kOfLane], const T* from, int lane, int count) {
#pragma unroll
  for (int k = 0; k < kOfLane; k += kWidth) {
    const int at = element_of<kWidth>(lane, k);
    if constexpr (kWidth == 1) {
      out[k] = at < count ? from[at] : T(0);
    } else {
      const auto taken = load<kWidth>(from + at);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) out[k + i] = taken.at[i];
    }
  }
}

template <int kWidth, class T>
__device__ __forceinline__ void store_lane(T* to, const T (&in)[kOfLane], int lane, int count) {
#pragma unroll
  for (int k = 0; k < kOfLane; k += kWidth) {
    const int at = element_of<kWidth>(lane, k);
    if constexpr (kWidth == 1) {
      if (at < count) to[at] = in[k];
    } else {
      Vector<T, kWidth> given;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) given.at[i] = in[k + i];
      store(to + at, given);
    }
  }
}

template <bool kSigned, int kWidth>
__device__ __forceinline__ void finish_block(const CodedMomentArgs& moment, const MomentCodes& map,
                                             const float (&x)[kOfLane], std::int64_t block,
                                             int lane, int count) {
  std::uint32_t most = 0;
#pragma unroll
  for (int k = 0; k < kOfLane; ++k)
    if (kWidth > 1 || element_of<kWidth>(lane, k) < count) most = max(most, magnitude_bits(x[k]));
  const float absmax = float_of_bits(warp_max(most)), factor = factor_of(absmax);
  __syncwarp();  // all have read the old one
  if (lane == 0) moment.absmax[block] = absmax;
  std::uint8_t codes[kOfLane];
#pragma unroll
  for (int k = 0; k < kOfLane; ++k) codes[k] = code_of<kSigned>(map, x[k], factor);
  store_lane<kWidth>(moment.codes + block * kBlock, codes, lane, count);
}

/// A warp's block: all lanes call. kWidth 4: a whole block, aligned for accesses as wide.
template <class Rule, int kWidth>
__device__ __forceinline__ void update_block(const CodedTensorArgs& tensor, const Maps<Rule>& maps,
                                             const StepConstants& c, std::int64_t block, int lane) {
  constexpr bool kTwo = Rule::kMoments == 2;
  const std::int64_t begin = block * kBlock;
  const int count = static_cast<int>(min(std::int64_t{kBlock}, tensor.count - begin));
  std::uint8_t m_codes[kOfLane], v_codes[kOfLane];
  float p[kOfLane], g[kOfLane], m[kOfLane], v[kOfLane];
  load_lane<kWidth>(g, tensor.gradient + begin, lane, count);
  load_lane<kWidth>(p, static_cast<const float*>(tensor.parameter) + begin, lane, count);
  load_lane<kWidth>(m_codes, static_cast<const std::uint8_t*>(tensor.exp_avg.codes) + begin, lane,
                    count);
  const float m_absmax = tensor.exp_avg.absmax[block];
  float v_absmax = 0;
  if constexpr (kTwo) {
    load_lane<kWidth>(v_codes, static_cast<const std::uint8_t*>(tensor.exp_avg_sq.codes) + begin,
                      lane, count);
    v_absmax = tensor.exp_avg_sq.absmax[block];
  }
#pragma unroll
  for (int k = 0; k < kOfLane; ++k) {
    m[k] = __fmul_rn(maps.of[0].value[m_codes[k]], m_absmax);
    if constexpr (kTwo) v[k] = __fmul_rn(maps.of[1].value[v_codes[k]], v_absmax);
    Rule::update(p[k], m[k], v[k], g[k], c);
  }
  store_lane<kWidth>(tensor.parameter + begin, p, lane, count);
  if (tensor.copy != nullptr) {
    bf16 copy[kOfLane];
#pragma unroll
    for (int k = 0; k < kOfLane; ++k) copy[k] = from_float<bf16>(p[k]);
    store_lane<kWidth>(reinterpret_cast<bf16*>(tensor.copy) + begin, copy, lane, count);
  }
  finish_block<true, kWidth>(tensor.exp_avg, maps.of[0], m, block, lane, count);
  if constexpr (kTwo)
    finish_block<false, kWidth>(tensor.exp_avg_sq, maps.of[1], v, block, lane, count);
}

__device__ __forceinline__ bool begins_aligned(const CodedTensorArgs& tensor) {
  const auto bits = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  return (bits(tensor.parameter) | bits(tensor.gradient) | bits(tensor.copy) << 1 |
          (bits(tensor.exp_avg.codes) | bits(tensor.exp_avg_sq.codes)) << 2) %
             16 ==
         0;
}

template <class Rule>
__global__ void __launch_bounds__(kThreads, 2) whole_kernel(CodedUpdateArgs args) {
  auto& maps = smem<Maps<Rule>>();
  load_maps(maps, args.codes);
  const CodedTensorArgs tensor = tensor_here(args);
  const StepConstants constants =
      step_constants(*args.step, args.constants, tensor.lr_scale, tensor.decay);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t first = (blockIdx.x - tensor.first_block) * kMomentBlocksPerBlock,
                     end = min(first + kMomentBlocksPerBlock, (tensor.count + kBlock - 1) / kBlock);
  const bool aligned = begins_aligned(tensor);
#pragma unroll 1
  for (std::int64_t block = first + warp; block < end; block += kWarps) {
    if (aligned && (block + 1) * kBlock <= tensor.count) {
      update_block<Rule, 4>(tensor, maps, constants, block, lane);
    } else {
      update_block<Rule, 1>(tensor, maps, constants, block, lane);
    }
  }
}

/// One element of a part: its place, its block, and the new values.
template <class Rule>
struct Element {
  std::int64_t at, block;
  float p, m, v = 0;

  __device__ __forceinline__ Element(const CodedTensorArgs& tensor, const Maps<Rule>& maps,
                                     const StepConstants& c, std::int64_t i) {
    const std::int64_t run = i / tensor.width, in_run = i - run * tensor.width;
    at = tensor.offset + run * tensor.stride + in_run;
    block = (tensor.begin + run * tensor.whole_stride + in_run) / kBlock;
    p = tensor.parameter[at];
    m = __fmul_rn(maps.of[0].value[tensor.exp_avg.codes[at]], tensor.exp_avg.absmax[block]);
    if constexpr (Rule::kMoments == 2)
      v = __fmul_rn(maps.of[1].value[tensor.exp_avg_sq.codes[at]], tensor.exp_avg_sq.absmax[block]);
    Rule::update(p, m, v, tensor.gradient[at], c);
  }
};

/// Calls `body` for each element of a part that this thread has.
template <class Rule, class Body>
__device__ __forceinline__ void for_elements(const CodedUpdateArgs& args, const Body& body) {
  auto& maps = smem<Maps<Rule>>();
  load_maps(maps, args.codes);
  const CodedTensorArgs tensor = tensor_here(args);
  const StepConstants constants =
      step_constants(*args.step, args.constants, tensor.lr_scale, tensor.decay);
  constexpr std::int64_t kOfBlock = kMomentBlocksPerBlock * kMomentBlock;
  const std::int64_t first = (blockIdx.x - tensor.first_block) * kOfBlock,
                     end = min(first + kOfBlock, tensor.count);
#pragma unroll 1
  for (std::int64_t i = first + threadIdx.x; i < end; i += kThreads)
    body(tensor, maps, Element<Rule>(tensor, maps, constants, i));
}

template <class Rule>
__global__ void __launch_bounds__(kThreads) maxima_kernel(CodedUpdateArgs args) {
  for_elements<Rule>(
      args, [](const CodedTensorArgs& tensor, const Maps<Rule>&, const Element<Rule>& element) {
        atomicMax(tensor.exp_avg.next + element.block,
                  static_cast<std::int32_t>(magnitude_bits(element.m)));
        if constexpr (Rule::kMoments == 2)
          atomicMax(tensor.exp_avg_sq.next + element.block,
                    static_cast<std::int32_t>(magnitude_bits(element.v)));
      });
}

template <class Rule>
__global__ void __launch_bounds__(kThreads) given_kernel(CodedUpdateArgs args) {
  for_elements<Rule>(args, [](const CodedTensorArgs& tensor, const Maps<Rule>& maps,
                              const Element<Rule>& element) {
    const std::int64_t at = element.at, block = element.block;
    tensor.parameter[at] = element.p;
    if (tensor.copy != nullptr)
      reinterpret_cast<bf16*>(tensor.copy)[at] = from_float<bf16>(element.p);
    const auto factor = [block](const CodedMomentArgs& moment) {
      return factor_of(float_of_bits(static_cast<std::uint32_t>(moment.next[block])));
    };
    tensor.exp_avg.codes[at] = code_of<true>(maps.of[0], element.m, factor(tensor.exp_avg));
    if constexpr (Rule::kMoments == 2)
      tensor.exp_avg_sq.codes[at] =
          code_of<false>(maps.of[1], element.v, factor(tensor.exp_avg_sq));
  });
}

template <class Rule>
void launch_pass(const CodedUpdateArgs& args, CodedPass pass, const char* name) {
  const LaunchConfig config = {.grid = static_cast<unsigned>(args.block_count),
                               .block = kThreads,
                               .smem_bytes = sizeof(Maps<Rule>),
                               .stream = stream_of(args.exec),
                               .name = name};
  switch (pass) {
    case CodedPass::kWhole:
      return launch(whole_kernel<Rule>, config, args);
    case CodedPass::kMaxima:
      return launch(maxima_kernel<Rule>, config, args);
    case CodedPass::kGiven:
      return launch(given_kernel<Rule>, config, args);
  }
}

void adamw(const CodedUpdateArgs& args, CodedPass pass) {
  launch_pass<AdamW>(args, pass, "adamw_8bit");
}
void lion(const CodedUpdateArgs& args, CodedPass pass) {
  launch_pass<Lion>(args, pass, "lion_8bit");
}

}  // namespace

const CodedUpdateKernels update_8bit_cuda = {adamw, lion};

}  // namespace trireme::cuda
