// Attention on a GPU by our own kernels.

#include <algorithm>

#include "base/math.h"
#include "kernels/attention/attention_gpu_table.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/gpu_info.h"
#include "kernels/quantize/quantize_internal.h"

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

AttentionGpuForward gpu_args(Context& context, const AttentionShape& shape,
                             const AttentionForward& args) {
  const GpuRanges ranges = joined(context, args.mask);
  return {context.exec(),
          shape,
          ranges.q,
          ranges.kv,
          first_key_of(args.mask),
          reach_of(args.mask.window),
          plain(args.o),
          args.lse_TH.as<float>(),
          plain(args.q),
          plain(args.k),
          plain(args.v),
          args.scale,
          context.multiprocessors(),
          quantize_internal::row_codes(args.quantized)};
}

/// The table for Hopper where the context's GPU is one, else null.
const AttentionHopperKernels* hopper_kernels_of(const Context& context) {
  return runs_sm90a(info_of(context)) ? gpu_kernels().attention_sm90 : nullptr;
}

/// Whose kernels: Hopper's where they serve, or for tests always the one or the other.
enum class Kernels : std::uint8_t { kBest, kMma, kWgmma };

/// Hopper's kernel leaves codes too where their blocks lie within heads.
bool forward_by(Context& context, const AttentionShape& shape, const AttentionForward& args,
                Kernels kernels) {
  AttentionGpuForward raw = gpu_args(context, shape, args);
  const AttentionDropping dropping = dropping_of(args.dropout, shape.sequences);
  const AttentionHopperKernels* const hopper =
      dropping.drops() ? nullptr : hopper_kernels_of(context);
  const bool served = hopper != nullptr && hopper->serves_forward(raw);
  expect(served || kernels != Kernels::kWgmma, "no kernel for Hopper serves this attention");
  const bool by_wgmma = served && kernels != Kernels::kMma,
             leaves = by_wgmma &&
                      (raw.quantized.codes == nullptr || shape.value_dim % RowCodes::kBlock == 0);
  if (!leaves) raw.quantized = {};
  if (dropping.drops())
    gpu_kernels_of().forward_dropping(raw, dropping);
  else
    (by_wgmma ? hopper->forward : gpu_kernels_of().forward)(raw);
  return leaves;
}

template <Kernels kKernels>
bool forward(Context& context, const AttentionShape& shape, const AttentionForward& args) {
  return forward_by(context, shape, args, kKernels);
}

AttentionGpuBackward gpu_args(Context& context, const AttentionShape& shape,
                              const AttentionBackward& args) {
  const GpuRanges ranges = joined(context, args.mask);
  return {context.exec(),
          shape,
          ranges.q,
          ranges.kv,
          first_key_of(args.mask),
          reach_of(args.mask.window),
          plain_f32(args.dq),
          plain_f32(args.dk),
          plain_f32(args.dv),
          plain(args.written.dk),
          plain(args.written.dv),
          plain(args.d_o),
          plain(args.q),
          plain(args.k),
          plain(args.v),
          args.lse_TH.as<float>(),
          args.delta_TH.as<float>(),
          args.scale,
          nullptr,
          0,
          !context.deterministic(),
          nullptr};
}

/// Whether gradients may be written: Hopper's, where a block's keys are its alone.
bool has_all_keys(const AttentionGpuBackward& raw) {
  return raw.kv_ranges.count == 1 && raw.kv_ranges.on_host[0].count == raw.shape.kv_tokens;
}
AttentionWrites writes(Context& context, const AttentionShape& shape,
                       const AttentionBackward& args) {
  const AttentionHopperKernels* const hopper = hopper_kernels_of(context);
  if (!args.written.given() || hopper == nullptr ||
      dropping_of(args.dropout, shape.sequences).drops())
    return AttentionWrites::kNo;
  const AttentionGpuBackward raw = gpu_args(context, shape, args);
  return has_all_keys(raw) && hopper->serves_backward(raw) ? AttentionWrites::kFromDelta
                                                           : AttentionWrites::kNo;
}
AttentionWrites writes_never(Context& /*context*/, const AttentionShape& /*shape*/,
                             const AttentionBackward& /*args*/) {
  return AttentionWrites::kNo;
}

/// Of a sequence, at most.
std::int64_t query_tiles(const AttentionGpuBackward& args, std::int64_t tile) {
  std::int64_t tiles = 0;
  for (int i = 0; i < args.q_ranges.count; ++i)
    tiles += ceil_div(std::int64_t{args.q_ranges.on_host[i].count}, tile);
  return tiles;
}

/// Gives the kernels what they want beside the operands.
void take_scratch(Context& context, AttentionGpuBackward& args, bool turns) {
  const std::int64_t sequences = args.shape.sequences,
                     first_keys = args.first_key == nullptr
                                      ? 0
                                      : 2 * query_tiles(args, kAttentionGpuTileMin);
  const std::int64_t count =
      turns ? 1 + sequences * args.shape.heads * query_tiles(args, kAttentionTurnTileMin) : 0;
  if (first_keys + count == 0) return;
  auto* const scratch = reinterpret_cast<std::int32_t*>(
      context.scratch(static_cast<std::size_t>(sequences * first_keys + count) * 4));
  args.tile_stride = static_cast<std::int32_t>(first_keys);
  if (first_keys > 0) args.tile_first_key = scratch;
  if (turns) args.turns = scratch + sequences * first_keys;
}

void backward_by(Context& context, const AttentionShape& shape, const AttentionBackward& args,
                 Kernels kernels) {
  AttentionGpuBackward raw = gpu_args(context, shape, args);
  const AttentionDropping dropping = dropping_of(args.dropout, shape.sequences);
  const AttentionHopperKernels* const hopper =
      dropping.drops() ? nullptr : hopper_kernels_of(context);
  const bool served = hopper != nullptr && hopper->serves_backward(raw);
  expect(served || kernels != Kernels::kWgmma, "no kernel for Hopper serves this attention");
  const bool by_wgmma = served && kernels != Kernels::kMma, written = args.written.given();
  if (!by_wgmma || !has_all_keys(raw)) refuse_written(args);
  take_scratch(context, raw, by_wgmma && !raw.atomics);
  if (dropping.drops())
    gpu_kernels_of().backward_dropping(raw, dropping);
  else
    (by_wgmma ? hopper->backward : gpu_kernels_of().backward)(raw);
  if (written)
    gpu_kernels_of().round_heads({context.exec(),
                                  args.dq.tokens,
                                  args.dq.heads,
                                  args.dq.head_dim,
                                  plain(args.written.dq),
                                  {raw.dq.data, raw.dq.stride}});
}

template <Kernels kKernels>
void backward(Context& context, const AttentionShape& shape, const AttentionBackward& args) {
  backward_by(context, shape, args, kKernels);
}

}  // namespace

const AttentionBackend own_attention = {.name = "own",
                                        .serves = kServesAll,
                                        .forward = forward<Kernels::kBest>,
                                        .backward = backward<Kernels::kBest>,
                                        .writes = writes};

const AttentionBackend attention_internal::mma_attention = {.name = "mma",
                                                            .serves = kServesAll,
                                                            .forward = forward<Kernels::kMma>,
                                                            .backward = backward<Kernels::kMma>,
                                                            .writes = writes_never};
const AttentionBackend attention_internal::wgmma_attention = {.name = "wgmma",
                                                              .serves = kServesAll,
                                                              .forward = forward<Kernels::kWgmma>,
                                                              .backward = backward<Kernels::kWgmma>,
                                                              .writes = writes};

}  // namespace trireme
