#include "kernels/common/many_tensors.cuh"
#include "kernels/common/turns.cuh"
#include "kernels/muon/muon_table.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256, kCount = 4, kTurns = 4;

// Operation for operation what the CPU does, so that both have the same bits: the intrinsics round
// where they stand and are not fused.

/// Elements i, ..., i + kWidth of a tensor, all of whose views take accesses as wide.
template <class T, int kWidth>
__device__ __forceinline__ void momentum_group(const MuonTensorArgs& tensor, std::int64_t i,
                                               const MuonArgs& args) {
  auto m = load<kWidth>(tensor.state + i);
  const auto gradient = load<kWidth>(static_cast<const float*>(tensor.in) + i);
  Vector<T, kWidth> update;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float g = __fmul_rn(gradient.at[k], args.gradient_scale);
    m.at[k] = __fmaf_rn(args.one_minus_momentum, __fadd_rn(g, -m.at[k]), m.at[k]);
    update.at[k] = from_float<T>(__fmaf_rn(args.momentum, __fadd_rn(m.at[k], -g), g));
  }
  store(tensor.state + i, m);
  if (tensor.out != nullptr) store(static_cast<T*>(tensor.out) + i, update);
}

template <class T, int kWidth>
__device__ __forceinline__ void update_group(const MuonTensorArgs& tensor, std::int64_t i,
                                             float decay, float step) {
  auto p = load<kWidth>(tensor.state + i);
  const auto update = load<kWidth>(static_cast<const T*>(tensor.in) + i);
  Vector<bf16, kWidth> copy;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    p.at[k] = __fmaf_rn(-step, to_float(update.at[k]), __fmaf_rn(-decay, p.at[k], p.at[k]));
    copy.at[k] = from_float<bf16>(p.at[k]);
  }
  store(tensor.state + i, p);
  if (tensor.out != nullptr) store(static_cast<bf16*>(tensor.out) + i, copy);
}

/// Four elements at once where every view allows that (16 bytes of f32, 8 of bf16).
template <class OfFour, class OfOne>
__device__ __forceinline__ void for_block(const MuonTensorArgs& tensor, const OfFour& of_four,
                                          const OfOne& of_one) {
  const auto bits = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  const bool aligned = (bits(tensor.state) | bits(tensor.in) | bits(tensor.out)) % 16 == 0;
  for_block_of<kThreads, kCount, kMuonElementsPerBlock>(tensor, aligned, of_four, of_one);
}

__device__ __forceinline__ MuonTensorArgs tensor_here(const MuonArgs& args) {
  return args.tensors[tensor_of_block(args.tensors, args.tensor_count, blockIdx.x)];
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4) momentum_kernel(MuonArgs args) {
  const MuonTensorArgs tensor = tensor_here(args);
  for_block(
      tensor, [&](std::int64_t i) { momentum_group<T, kCount>(tensor, i, args); },
      [&](std::int64_t i) { momentum_group<T, 1>(tensor, i, args); });
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4) update_kernel(MuonArgs args) {
  const MuonTensorArgs tensor = tensor_here(args);
  const auto decay = static_cast<float>(args.lr * tensor.decay),
             step = static_cast<float>(args.lr * tensor.step);
  for_block(
      tensor, [&](std::int64_t i) { update_group<T, kCount>(tensor, i, decay, step); },
      [&](std::int64_t i) { update_group<T, 1>(tensor, i, decay, step); });
}

LaunchConfig config_of_blocks(const MuonArgs& args, const char* name) {
  return {.grid = static_cast<unsigned>(args.block_count),
          .block = kThreads,
          .stream = stream_of(args.exec),
          .name = name};
}

void momentum(const MuonArgs& args) {
  for_type(args.update_type, [&](auto type) {
    launch(momentum_kernel<decltype(type)>, config_of_blocks(args, "muon_momentum"), args);
  });
}

void update(const MuonArgs& args) {
  for_type(args.update_type, [&](auto type) {
    launch(update_kernel<decltype(type)>, config_of_blocks(args, "muon_update"), args);
  });
}

template <int kWidth, class T>
__global__ void __launch_bounds__(kTurnThreads)
    operand_kernel(T* operand, float* sum, float scale, float factor, std::int64_t items) {
  for_each_item<kTurns>(
      items, [&](std::int64_t i) { return load<kWidth>(sum + i * kWidth); },
      [&](std::int64_t i, const Vector<float, kWidth>& in) {
        Vector<T, kWidth> rounded;
        Vector<float, kWidth> scaled;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          rounded.at[k] = from_float<T>(__fmul_rn(in.at[k], scale));
          scaled.at[k] = __fmul_rn(to_float(rounded.at[k]), factor);
        }
        store(operand + i * kWidth, rounded);
        store(sum + i * kWidth, scaled);
      });
}

void operand(const NewtonSchulzOperandArgs& args) {
  for_type(args.operand_type, [&](auto type) {
    using T = decltype(type);
    T* const operand = static_cast<T*>(args.operand);
    for_vectors_and_rest<kCount>(
        args.count, aligned_to_16(operand, args.sum),
        [&](auto width, std::int64_t first, std::int64_t items) {
          launch(operand_kernel<decltype(width)::value, T>,
                 config_of_turns(args.exec, kTurns, items, "newton_schulz_operand"),
                 operand + first, args.sum + first, args.scale, args.factor, items);
        });
  });
}

template <class T, int kWidth>
struct GramAndSquare {
  Vector<T, kWidth> gram;
  Vector<float, kWidth> square;
};

template <int kWidth, class T>
__global__ void __launch_bounds__(kTurnThreads)
    polynomial_kernel(T* gram, const float* square, float linear, float quadratic,
                      std::int64_t items) {
  for_each_item<kTurns>(
      items,
      [&](std::int64_t i) {
        return GramAndSquare<T, kWidth>{load<kWidth>(gram + i * kWidth),
                                        load<kWidth>(square + i * kWidth)};
      },
      [&](std::int64_t i, const GramAndSquare<T, kWidth>& in) {
        Vector<T, kWidth> out;
#pragma unroll
        for (int k = 0; k < kWidth; ++k)
          out.at[k] = from_float<T>(
              __fmaf_rn(quadratic, in.square.at[k], __fmul_rn(to_float(in.gram.at[k]), linear)));
        store(gram + i * kWidth, out);
      });
}

void polynomial(const NewtonSchulzPolynomialArgs& args) {
  for_type(args.gram_type, [&](auto type) {
    using T = decltype(type);
    T* const gram = static_cast<T*>(args.gram);
    for_vectors_and_rest<kCount>(
        args.count, aligned_to_16(gram, args.square),
        [&](auto width, std::int64_t first, std::int64_t items) {
          launch(polynomial_kernel<decltype(width)::value, T>,
                 config_of_turns(args.exec, kTurns, items, "newton_schulz_polynomial"),
                 gram + first, args.square + first, args.linear, args.quadratic, items);
        });
  });
}

}  // namespace

const MuonKernels muon_cuda = {momentum, update, operand, polynomial};

}  // namespace trireme::cuda
