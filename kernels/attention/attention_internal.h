#pragma once
// Between the files of this op, and for its tests.

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_backend.h"
#include "kernels/attention/attention_library_table.h"
#include "kernels/attention/attention_table.h"

namespace trireme::attention_internal {

inline AttentionHeads<const void> plain(const ConstHeadsView& view) {
  return {view.data, view.token_stride};
}
inline AttentionHeads<void> plain(const HeadsView& view) { return {view.data, view.token_stride}; }
inline AttentionHeads<float> plain_f32(const HeadsView& view) {
  return {reinterpret_cast<float*>(view.data), view.token_stride};
}

inline const std::int32_t* first_key_of(const AttentionMask& mask) {
  return mask.first_key_T.given() ? mask.first_key_T.as<std::int32_t>() : nullptr;
}

/// Of an op's argument, checked.
AttentionDropping dropping_of(const AttentionDropout& dropout, std::int64_t sequences);

/// All that the op's contract has.
inline constexpr AttentionBackend::Serves kServesAll = {.cpu = true,
                                                        .f32 = true,
                                                        .documents = true,
                                                        .windows = true,
                                                        .sequence_parts = true,
                                                        .dropout = true,
                                                        .tokens_min = 1,
                                                        .head_dim_step = 1};

/// Whether a library computes this without dropout; `heads`: all operands.
bool served_by_library(const AttentionShape& shape, const AttentionMask& mask,
                       std::initializer_list<ConstHeadsView> heads);

/// By a backend, with what is left of o for a product.
void forward_by(const AttentionBackend& backend, Context& context, const AttentionShape& shape,
                const AttentionForward& args);

/// own_attention by those of its kernels that any GPU runs, or by Hopper's alone (an InternalError
/// for what those do not serve): for tests, and to compare them.
extern const AttentionBackend mma_attention, wgmma_attention;

/// What to do where the library is missing.
inline constexpr const char* kCudnnRemedy =
    "Install cuDNN 9.16 or later (with NVRTC of the CUDA toolkit, by which it compiles), name its "
    "folder in LD_LIBRARY_PATH";

inline std::int32_t reach_of(std::int64_t window) {
  return window == 0 || window > kNoWindow ? kNoWindow : static_cast<std::int32_t>(window - 1);
}

/// The library's table; throws EnvironmentError where there is none.
const AttentionLibraryKernels& attention_library();

/// By who adds gradients: an InternalError where they are to be written.
void refuse_written(const AttentionBackward& args);

/// Whether the library can write these gradients where they are wanted.
bool library_writes(const AttentionBackward::Written& written);

/// By that table, on a GPU; `shape` is checked. InternalError for what no library serves.
void forward_by_library(Context& context, const AttentionShape& shape, const AttentionForward& args,
                        const AttentionLibraryKernels& library);
void backward_by_library(Context& context, const AttentionShape& shape,
                         const AttentionBackward& args, const AttentionLibraryKernels& library);

}  // namespace trireme::attention_internal
