#pragma once
// From a table's arguments to a launch of the fp8 main loop.

#include "kernels/gemm/gemm_fp8_sm90.cuh"

namespace trireme::cuda {

// In files of their own.
void fp8_to_f32(const GemmQuantizedGpuArgs& args);
void fp8_and_activation(const GemmQuantizedGpuArgs& args);

inline Fp8Sums sums_of(const GemmQuantizedGpuArgs& args) {
  if (args.b.row_block == 1) return Fp8Sums::kByColumn;
  const bool one_scale = args.a.column_block == 0 && args.b.column_block == 0 && args.k_parts == 1;
  return one_scale && !args.precise_sums ? Fp8Sums::kAtEnd : Fp8Sums::kByTile;
}

/// An activation's kernel, where forward sums stay in the tensor cores: with one scale a tensor
/// what follows has one too.
inline bool fp8_leaves_maxima(const GemmQuantizedGpuArgs& args) {
  switch (args.product.epilogue) {
    case GemmEpilogue::kGelu:
    case GemmEpilogue::kSwiglu:
      return sums_of(args) == Fp8Sums::kAtEnd;
    case GemmEpilogue::kGeluBackward:
    case GemmEpilogue::kSwigluBackward:
      return true;
    case GemmEpilogue::kNone:
    case GemmEpilogue::kAddResidual:
    case GemmEpilogue::kGeglu:
    case GemmEpilogue::kGegluBackward:
      return false;
  }
  return false;
}

inline TensorMap codes_map(const void* codes, std::int64_t rows, std::int64_t k, int box_rows) {
  return tensor_map<2, Fp8Code>(
      {.base = static_cast<const Fp8Code*>(codes),
       .dims = {static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(rows)},
       .strides = {static_cast<std::uint64_t>(k)},
       .box = {128, static_cast<std::uint32_t>(box_rows)}});
}

/// Of two products, by eight columns of each.
inline TensorMap dual_codes_map(const void* codes, std::int64_t rows, std::int64_t k,
                                int box_rows) {
  const auto length = static_cast<std::uint64_t>(k), half = static_cast<std::uint64_t>(rows / 2);
  return tensor_map<4, Fp8Code>({.base = static_cast<const Fp8Code*>(codes),
                                 .dims = {length, 8, 2, half / 8},
                                 .strides = {length, length * half, length * 8},
                                 .box = {128, 8, 2, static_cast<std::uint32_t>(box_rows / 16)}});
}

inline Fp8Scales scales_of(const GemmQuantizedGpuArgs& args, const ScalesGpu& of) {
  Fp8Scales scales{of.scales, static_cast<int>(of.columns), {}};
  scales.columns.each_block = of.column_block != 0;
  scales.columns.parts = args.k_parts;
  for (int part = 0; part < args.k_parts; ++part)
    scales.columns.ends[part] = static_cast<int>(args.k_ends[part]);
  return scales;
}

/// Tiles of the result, each as high as all blocks of a cluster.
template <class T, bool kDual>
std::int64_t tiles_of(const GemmQuantizedGpuArgs& args) {
  return blocks_for(args.product.m, T::kM * T::kCluster) * ColumnTiles(args.b, kDual).count();
}

inline SplitTiles split_of(const GemmQuantizedGpuArgs& args) {
  using T = SplitFp8Tile<Fp8Sums::kByTile>;  // as large as those of other sums
  return {tiles_of<T, false>(args), args.product.k / T::kK, max(args.product.multiprocessors, 1)};
}

/// Counts of turns begin at 0.
inline void begin_split(Fp8Product& p, const GemmQuantizedGpuArgs& args) {
  p.split = split_of(args);
  p.turns = static_cast<int*>(args.product.workspace);
  check_call("gemm_fp8", cudaMemsetAsync(p.turns, 0, gpu_scratch::kSplitTurnsBytes,
                                         stream_of(args.product.exec)));
}

template <class T, Fp8 kA, Fp8 kB, class E>
void launch_fp8_tile(const GemmQuantizedGpuArgs& args, E epilogue) {
  const GemmGpuArgs& product = args.product;
  Fp8Product p;
  p.m = static_cast<int>(product.m);
  p.n = static_cast<int>(result_columns(product));
  p.steps = static_cast<int>(product.k / T::kK);
  p.a = codes_map(product.a, product.m, product.k, T::kM);
  p.b = E::kDual ? dual_codes_map(product.b, product.n, product.k, T::kN / T::kCluster)
                 : codes_map(product.b, product.n, product.k, T::kN / T::kCluster);
  p.scales_a = scales_of(args, args.a);
  p.scales_b = scales_of(args, args.b);
  p.rows = ScaleBlocks(args.a);
  p.columns = ColumnTiles(args.b, E::kDual);
  epilogue.bias.pairs = epilogue.bias.pairs && p.columns.even();
  const DirectSink<typename E::Out> direct = direct_sink(product, epilogue);
  p.by_tma = leaves_by_tma(product, epilogue, p.n);
  for (int i = 0; i < 3; ++i) {
    p.out[i] = p.by_tma && direct.outputs.at[i] != nullptr
                   ? out_map<E>(direct.outputs, i, product.m, p.n)
                   : p.a;
  }
  std::int64_t clusters =
      min(tiles_of<T, E::kDual>(args), std::int64_t{max(product.multiprocessors / T::kCluster, 1)});
  if constexpr (T::kSplits) {
    begin_split(p, args);
    clusters = p.split.blocks;
  }
  launch(gemm_fp8_sm90_kernel<T, kA, kB, E>,
         {.grid = static_cast<unsigned>(clusters) * T::kCluster,
          .block = T::kThreads,
          .smem_bytes = sizeof(typename T::Smem),
          .stream = stream_of(product.exec),
          .name = "gemm_fp8",
          .cluster = T::kCluster},
         p, epilogue, direct);
}

/// Cycles that a multiprocessor takes for 128 of k, by count (kernels/README.md, "fp8 by wgmma").
struct Fp8StepCycles {
  int large, narrow;
};
template <Fp8Sums kSums>
inline constexpr Fp8StepCycles kFp8StepCycles =
    kSums == Fp8Sums::kByTile     ? Fp8StepCycles{1600, 900}
    : kSums == Fp8Sums::kByColumn ? Fp8StepCycles{2030, 1230}
                                  : Fp8StepCycles{1150, 770};

/// How often a multiprocessor takes a tile.
template <class T, class E>
std::int64_t turns_of(const GemmQuantizedGpuArgs& args) {
  return blocks_for(tiles_of<T, E::kDual>(args),
                    max(args.product.multiprocessors / T::kCluster, 1));
}

template <Fp8Sums kSums, Fp8 kA, Fp8 kB, class E>
void launch_fp8(const GemmQuantizedGpuArgs& args, const E& epilogue) {
  using Large = LargeFp8Tile<2, kSums>;
  using Narrow = NarrowFp8Tile<kSums>;
  constexpr Fp8StepCycles kCycles = kFp8StepCycles<kSums>;
  if (turns_of<Large, E>(args) * kCycles.large <= turns_of<Narrow, E>(args) * kCycles.narrow)
    return launch_fp8_tile<Large, kA, kB>(args, epilogue);
  launch_fp8_tile<Narrow, kA, kB>(args, epilogue);
}

/// Where a may be the gradients of a result.
template <Fp8Sums kSums, class E>
void launch_gradient(const GemmQuantizedGpuArgs& args, const E& epilogue) {
  if (args.format_a == DType::kF8E5M2)
    return launch_fp8<kSums, Fp8::kE5M2, Fp8::kE4M3>(args, epilogue);
  launch_fp8<kSums, Fp8::kE4M3, Fp8::kE4M3>(args, epilogue);
}

}  // namespace trireme::cuda
