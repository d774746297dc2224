#pragma once
// From a table's arguments to a launch: which tile, which layout.

#include "kernels/gemm/gemm_epilogue_args.cuh"
#include "kernels/gemm/gemm_fma.cuh"
#include "kernels/gemm/gemm_mma.cuh"

namespace trireme::cuda {

// By epilogue, each family in a file of its own.
void multiply_and_store(const GemmGpuArgs& args);
void multiply_and_gelu(const GemmGpuArgs& args);
void multiply_and_gelu_backward(const GemmGpuArgs& args);
void multiply_and_swiglu(const GemmGpuArgs& args);
void multiply_and_swiglu_backward(const GemmGpuArgs& args);

template <class T>
Product<T> product_of(const GemmGpuArgs& args) {
  const auto wide = [](const void* operand, std::int64_t row) {
    return reinterpret_cast<std::uintptr_t>(operand) % 16 == 0 && row * sizeof(T) % 16 == 0;
  };
  return {static_cast<const T*>(args.a),
          static_cast<const T*>(args.b),
          args.m,
          args.n,
          args.k,
          wide(args.a, args.transpose_a ? args.m : args.k),
          wide(args.b, args.transpose_b ? args.k : args.n)};
}

inline std::int64_t tiles_of(const GemmGpuArgs& args, int tile_m, int tile_n) {
  return blocks_for(args.m, tile_m) * blocks_for(args.n, tile_n);
}

/// Large tiles read less a sum; small ones where the large would leave multiprocessors idle.
inline bool wants_large_tiles(const GemmGpuArgs& args) {
  return tiles_of(args, 128, 128) >= args.multiprocessors;
}

template <class Tile, class T, class E>
void launch_tiles(void (*kernel)(Product<T>, E, DirectSink<typename E::Out>),
                  const GemmGpuArgs& args, const E& epilogue) {
  launch(kernel,
         {.grid = static_cast<unsigned>(tiles_of(args, Tile::kM, Tile::kN)),
          .block = Tile::kThreads,
          .smem_bytes = sizeof(typename Tile::Smem),
          .stream = stream_of(args.exec),
          .name = "gemm"},
         product_of<T>(args), epilogue, direct_sink(args, epilogue));
}

template <bool kTransposeA, bool kTransposeB, class E>
void launch_product(const GemmGpuArgs& args, const E& epilogue, bf16) {
  if (wants_large_tiles(args)) {
    launch_tiles<LargeMmaTile>(gemm_mma_kernel<LargeMmaTile, kTransposeA, kTransposeB, E>, args,
                               epilogue);
  } else {
    launch_tiles<SmallMmaTile>(gemm_mma_kernel<SmallMmaTile, kTransposeA, kTransposeB, E>, args,
                               epilogue);
  }
}
template <bool kTransposeA, bool kTransposeB, class E>
void launch_product(const GemmGpuArgs& args, const E& epilogue, float) {
  if (wants_large_tiles(args)) {
    launch_tiles<LargeFmaTile>(gemm_fma_kernel<LargeFmaTile, kTransposeA, kTransposeB, E>, args,
                               epilogue);
  } else {
    launch_tiles<SmallFmaTile>(gemm_fma_kernel<SmallFmaTile, kTransposeA, kTransposeB, E>, args,
                               epilogue);
  }
}

/// For all four layouts.
template <class T, class E>
void launch_any_layout(const GemmGpuArgs& args, const E& epilogue) {
  if (args.transpose_a) {
    if (args.transpose_b) return launch_product<true, true>(args, epilogue, T());
    return launch_product<true, false>(args, epilogue, T());
  }
  if (args.transpose_b) return launch_product<false, true>(args, epilogue, T());
  launch_product<false, false>(args, epilogue, T());
}

}  // namespace trireme::cuda
