#include "kernels/grouped_gemm/grouped_gemm_parts.h"

namespace trireme::grouped_gemm_internal {
namespace {

/// More than there are threads: experts have parts of unequal sizes.
constexpr std::int64_t kPartsPerThread = 4;
/// Tiles of all instruction sets divide these; smaller parts spend their time on packing.
constexpr std::int64_t kRowsAlignment = 24, kColumnsAlignment = 32;
constexpr std::int64_t kRowsMin = 2 * kRowsAlignment, kColumnsMin = 2 * kColumnsAlignment;

/// In `wanted` parts, or more where those were larger than `most`. The longer side is halved: what
/// a part reads is a row of one operand for each of its rows, of the other for each of its columns.
Cut cut_of(Extent result, std::int64_t wanted, Extent most) {
  std::int64_t rows = std::max<std::int64_t>(1, ceil_div(result.rows, most.rows));
  std::int64_t columns = ceil_div(result.columns, most.columns);
  while (rows * columns < wanted) {
    const std::int64_t height = result.rows / rows, width = result.columns / columns;
    const bool by_rows = height >= 2 * kRowsMin, by_columns = width >= 2 * kColumnsMin;
    if (!by_rows && !by_columns) break;
    (by_rows && (height >= width || !by_columns) ? rows : columns) *= 2;
  }
  return {0,
          result,
          {std::max(kRowsAlignment, round_up(ceil_div(result.rows, rows), kRowsAlignment)),
           round_up(ceil_div(result.columns, columns), kColumnsAlignment)}};
}

std::int64_t parts_wanted(const Context& context, std::int64_t rows, std::int64_t all) {
  return context.threads() == 1 ? 1 : ceil_div(rows * kPartsPerThread * context.threads(), all);
}

}  // namespace

Scratch scratch_of(Context& context, std::int64_t experts, std::int64_t floats_per_thread) {
  const std::size_t cuts =
      static_cast<std::size_t>(round_up(experts * static_cast<std::int64_t>(sizeof(Cut)), 64));
  const auto floats = static_cast<std::size_t>(context.threads() * floats_per_thread);
  std::byte* const memory = context.scratch(cuts + floats * sizeof(float));
  return {reinterpret_cast<Cut*>(memory), reinterpret_cast<float*>(memory + cuts)};
}

Parts row_parts(const Context& context, const Segments& segments, std::int64_t experts,
                std::int64_t n, Extent most, Cut* memory) {
  Parts parts(memory, experts);
  const std::int64_t all = segments.count(experts);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::int64_t rows = segments.rows(expert).size;
    const std::int64_t wanted = rows == 0 ? 0 : parts_wanted(context, rows, all);
    parts.append(expert, cut_of({rows, n}, wanted, most));
  }
  return parts;
}

Parts weight_parts(const Context& context, const Segments& segments, std::int64_t experts,
                   Extent gradient, bool accumulate, Cut* memory) {
  Parts parts(memory, experts);
  const std::int64_t all = segments.count(experts);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    const std::int64_t rows = segments.rows(expert).size;
    const bool stays = rows == 0 && accumulate;
    const std::int64_t wanted = rows == 0 ? 1 : parts_wanted(context, rows, all);
    parts.append(expert,
                 cut_of({stays ? 0 : gradient.rows, gradient.columns}, wanted, kWeightPartMost));
  }
  return parts;
}

}  // namespace trireme::grouped_gemm_internal
