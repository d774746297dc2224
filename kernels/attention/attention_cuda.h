#pragma once
// The bf16 kernels for some head sizes, one file each; others are padded in shared memory.

#include "kernels/attention/attention_gpu_table.h"

namespace trireme::cuda::attention {

/// kD columns of q and k, kV of v.
template <int kD, int kV>
void forward_bf16(const AttentionGpuForward& args);
/// Of 64, 128 and 256 columns, or 192 and 128, where AttentionHopperKernels::serves_forward.
template <int kD, int kV>
void forward_sm90(const AttentionGpuForward& args);
template <int kD, int kV>
void backward_bf16(const AttentionGpuBackward& args);
/// Of 64 and 128 columns, where AttentionHopperKernels::serves_backward.
template <int kD>
void backward_sm90(const AttentionGpuBackward& args);
/// Likewise of 192 and 256 columns, kDv of v: as many, or 128 of 192.
template <int kD, int kDv>
void wide_backward_sm90(const AttentionGpuBackward& args);

/// With dropout: of 64, 128 and 256 columns.
template <int kD>
void forward_dropping(const AttentionGpuForward& args, const AttentionDropping& dropping);
template <int kD>
void backward_dropping(const AttentionGpuBackward& args, const AttentionDropping& dropping);

/// With dropout where `dropping` is not null.
void forward_f32(const AttentionGpuForward& args, const AttentionDropping* dropping);
void backward_f32(const AttentionGpuBackward& args, const AttentionDropping* dropping);

void cached(const AttentionCachedArgs& args);

/// Fills tile_first_key for tiles of that many queries; nothing without documents.
void find_tile_first_keys(const AttentionGpuBackward& args, int tile_size);

void transpose_lse(const AttentionTransposeLse& args);
void add_heads(const AttentionAddHeads& args);
void round_heads(const AttentionRoundHeads& args);

/// Shared memory that a block may have on the calling thread's GPU.
std::size_t smem_bytes_of_block();

}  // namespace trireme::cuda::attention
