#pragma once
// For ops that leave the codes of rows of experts (kernels/expert_rows), on a CPU: panels of rows,
// each of which is made, then quantised while a cache has it.

#include <algorithm>
#include <initializer_list>

#include "device/context.h"
#include "tensor/quantized_segments.h"

namespace trireme::quantize_internal {

/// Rows of a segment, of which a block across has all: at most 128.
struct SegmentPanel {
  std::int64_t block;  ///< across
  Slice rows;
};

/// f(panel) for those of all segments.
template <class F>
void for_each_panel(ConstTensorView begins, const F& f) {
  constexpr std::int64_t kBlock = QuantizedSegments::kBlock;
  const auto* begin = begins.as<std::int32_t>();
  for (std::int64_t segment = 0; segment + 1 < begins.count(); ++segment) {
    const std::int64_t first = begin[segment], end = begin[segment + 1];
    for (std::int64_t r = first; r < end; r += kBlock)
      f(SegmentPanel{QuantizedSegments::first_block(segment, first) + (r - first) / kBlock,
                     {r, std::min(kBlock, end - r)}});
  }
}

/// Codes and scales, in blocks, of a panel's rows x, with scratch memory for so many words.
std::size_t panel_words(const Context& context, const QuantizedSegments& out);
void quantize_panel(Context& context, const QuantizedSegments& out, const SegmentPanel& panel,
                    ConstTensorView x, float* words);

/// Memory for panels of so many bf16 columns, and for the words behind.
struct PanelMemory {
  std::byte* values;
  float* words;
};
PanelMemory panel_memory(Context& context, std::int64_t columns,
                         std::initializer_list<QuantizedSegments> outs);

}  // namespace trireme::quantize_internal
