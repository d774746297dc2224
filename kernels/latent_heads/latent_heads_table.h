#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// Dims of each head, the first at `data`; strides in elements. Of `dims` = 0 nothing is looked at.
struct LatentPart {
  const void* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0, dims = 0;
};

enum class LatentTurn : std::uint8_t { kNone, kForward, kBack };

/// Pairs stand half a part apart, or, where `interleaved`, side by side in what is turned forward
/// and in what comes of turning back.
struct LatentAngles {
  const std::int32_t* positions = nullptr;
  const float* cos_sin = nullptr;
  LatentTurn turn = LatentTurn::kNone;
  bool interleaved = false;
};

/// out[t,h] = (copied[t,h], turned[t,h] or the turned sum over `summed` heads, 0...): each op that
/// moves heads is one or two of these. Of heads and summed one is 1.
struct LatentHeadsArgs {
  Exec exec;
  void* out;
  std::int64_t token_stride, head_stride, dims;
  LatentPart copied, turned;
  LatentAngles angles;
  std::int64_t tokens, heads, summed;
  DType dtype;
  const char* name;  ///< of the op
};

/// With w_h the `rows` x `latent` numbers from w + h * w_stride on:
///   queries  out[t,h,l] = sum_n in[t,h,n] w_h[n,l]
///   values   out[t,h,n] = sum_l in[t,h,l] w_h[n,l]
struct LatentAbsorbedArgs {
  Exec exec;
  void* out;
  const void *in, *w;
  std::int64_t out_token, out_head, in_token, in_head, w_stride;
  std::int64_t tokens, heads, rows, latent;
  DType dtype;
};

/// Tokens that a reading of w serves.
inline constexpr int kLatentTokens = 8;

struct LatentHeadsKernels {
  void (*heads)(const LatentHeadsArgs&);
  void (*queries)(const LatentAbsorbedArgs&);
  void (*values)(const LatentAbsorbedArgs&);
};
TRIREME_CPU_TABLES(LatentHeadsKernels, latent_heads_cpu);
namespace cuda {
extern const LatentHeadsKernels latent_heads_cuda;
}

}  // namespace trireme
