// Attention on a GPU by our own kernels.

#include <algorithm>

#include "base/math.h"
#include "kernels/attention/attention_gpu_table.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/gpu_info.h"

namespace trireme {

using namespace attention_internal;

namespace {

const AttentionGpuKernels& gpu_kernels_of() {
  return gpu_table("attention", &GpuKernels::attention);
}

/// Without empty ranges, adjoining ones joined. `list`: room for as many, valid in the call.
AttentionRanges joined(Context& context, std::span<const PositionRange> ranges,
                       AttentionRange* list) {
  AttentionRanges out;
  std::int32_t index = 0;
  for (const PositionRange& range : ranges) {
    if (range.count == 0) continue;
    const auto first = static_cast<std::int32_t>(range.first),
               count = static_cast<std::int32_t>(range.count);
    if (out.count > 0 && list[out.count - 1].first + list[out.count - 1].count == first) {
      list[out.count - 1].count += count;
    } else {
      list[out.count++] = {first, count, index};
    }
    index += count;
  }
  out.on_host = list;
  const std::span<const AttentionRange> all(list, static_cast<std::size_t>(out.count));
  if (out.count <= AttentionRanges::kFew) {
    std::copy(all.begin(), all.end(), out.few);
  } else {
    out.table =
        reinterpret_cast<const AttentionRange*>(context.device_constant(std::as_bytes(all)));
  }
  return out;
}

struct GpuRanges {
  AttentionRanges q, kv;
};
GpuRanges joined(Context& context, const AttentionMask& mask) {
  auto* list = reinterpret_cast<AttentionRange*>(
      context.host_scratch((mask.q.size() + mask.kv.size()) * sizeof(AttentionRange)));
  return {joined(context, mask.q, list), joined(context, mask.kv, list + mask.q.size())};
}

void forward(Context& context, const AttentionShape& shape, const AttentionForward& args) {
  const GpuRanges ranges = joined(context, args.mask);
  gpu_kernels_of().forward({context.exec(), shape, ranges.q, ranges.kv, first_key_of(args.mask),
                            reach_of(args.mask.window), plain(args.o), args.lse_TH.as<float>(),
                            plain(args.q), plain(args.k), plain(args.v), args.scale,
                            context.multiprocessors()});
}

/// Null where that GPU or the operands are not for it.
const AttentionHopperBackward* hopper_backward(const Context& context,
                                               const AttentionGpuBackward& args) {
  const AttentionHopperBackward* const table = gpu_kernels().attention_backward_sm90;
  if (table == nullptr || gpu_info(context).capability != 90) return nullptr;
  return args.atomics && table->serves(args) ? table : nullptr;
}

void backward(Context& context, const AttentionShape& shape, const AttentionBackward& args) {
  attention_internal::backward_by(context, shape, args, OwnKernel::kBest);
}

}  // namespace

void attention_internal::backward_by(Context& context, const AttentionShape& shape,
                                     const AttentionBackward& args, OwnKernel kernel) {
  refuse_written(args);
  const GpuRanges ranges = joined(context, args.mask);
  const std::int32_t* first_key = first_key_of(args.mask);
  std::int32_t* tile_first_key = nullptr;
  std::int64_t tile_stride = 0;
  if (first_key != nullptr) {
    for (int i = 0; i < ranges.q.count; ++i)
      tile_stride += 2 * ceil_div(std::int64_t{ranges.q.on_host[i].count}, kAttentionGpuTileMin);
    tile_first_key = reinterpret_cast<std::int32_t*>(
        context.scratch(static_cast<std::size_t>(shape.sequences * tile_stride * 4)));
  }
  const AttentionGpuBackward call{context.exec(),
                                  shape,
                                  ranges.q,
                                  ranges.kv,
                                  first_key,
                                  reach_of(args.mask.window),
                                  plain_f32(args.dq),
                                  plain_f32(args.dk),
                                  plain_f32(args.dv),
                                  plain(args.d_o),
                                  plain(args.q),
                                  plain(args.k),
                                  plain(args.v),
                                  args.lse_TH.as<float>(),
                                  args.delta_TH.as<float>(),
                                  args.scale,
                                  tile_first_key,
                                  static_cast<std::int32_t>(tile_stride),
                                  !context.deterministic()};
  const AttentionHopperBackward* const hopper =
      kernel == OwnKernel::kAnyGpu ? nullptr : hopper_backward(context, call);
  expect(kernel != OwnKernel::kHopper || hopper != nullptr,
         "Hopper's attention_backward does not serve these operands");
  hopper != nullptr ? hopper->backward(call) : gpu_kernels_of().backward(call);
}

const AttentionBackend own_attention = {
    .name = "own", .serves = kServesAll, .forward = forward, .backward = backward};

}  // namespace trireme
