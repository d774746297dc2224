#pragma once
// Who computes attention on a GPU: our own kernels, a library, or the faster of both. What each
// serves, the memory that it takes and how it is prepared. Other folders ask a backend and name
// none.

#include <cstdint>
#include <string>

namespace trireme {

class Context;
struct AttentionBackward;
struct AttentionForward;
struct AttentionShape;
enum class AttentionWrites : std::uint8_t;

/// A layer's causal attention of whole sequences: positions 0 ... tokens - 1, and how they lie.
struct AttentionLayout {
  std::int64_t sequences = 1, tokens = 1, heads = 1, kv_heads = 1;
  std::int64_t head_dim = 8, value_dim = 8;  ///< of q and k; of v and o
  /// From token to token, in elements; heads of a token stand side by side.
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, o_stride = 0, d_o_stride = 0;
  bool deterministic = true;  ///< of the backward pass: no sum in an order that may change
  /// Of dq, dk and dv where they are written; 0: they are made in scratch memory, and then added.
  std::int64_t written_stride = 0;
  auto operator<=>(const AttentionLayout&) const = default;
};

struct AttentionBackend {
  const char* name;  ///< as model_backend.attention has it
  /// What it serves beside bf16, on a GPU, of whole sequences without documents, windows or
  /// dropout.
  struct Serves {
    bool cpu, f32, documents, windows, sequence_parts, dropout;
    std::int64_t tokens_min, head_dim_step;
  } serves;

  // On a GPU, the arguments checked. Throw InternalError for what the backend does not serve.
  /// Whether it has left AttentionForward::quantized; else that is left by passes behind it.
  bool (*forward)(Context&, const AttentionShape&, const AttentionForward&);
  void (*backward)(Context&, const AttentionShape&, const AttentionBackward&);
  /// Whether `backward` takes AttentionBackward::written of this call.
  AttentionWrites (*writes)(Context&, const AttentionShape&, const AttentionBackward&);

  // Those of a library, also where it is a candidate; null for our own.
  const char* library = nullptr;  ///< where a run notes its version
  /// "" or why this program has none on this machine: "libcudnn.so.9: cannot open ...".
  std::string (*missing)() = nullptr;
  const char* remedy = nullptr;  ///< "Install cuDNN ..."
  /// As its maker counts: 91900 of 9.19.0; 0 without one.
  std::int64_t (*version)() = nullptr;
  /// The most device memory taken beside the operands; needs no GPU. `backward`: that pass too.
  std::int64_t (*bytes)(const AttentionLayout&, bool backward) = nullptr;
  /// Decides before the first step how the selected GPU computes such attention, which takes
  /// seconds; the op then finds it. Throws EnvironmentError where the library has no kernel for it.
  void (*prepare)(const AttentionLayout&, bool backward) = nullptr;
  /// What serves where a rank has no such library; null: that is an error.
  const AttentionBackend* otherwise = nullptr;
};
/// Our own kernels: all that the op's contract has.
extern const AttentionBackend own_attention;
extern const AttentionBackend cudnn_attention;
/// Each pass by the faster of both, as Context::kernel_choices has measured it (kernel_choices.h);
/// by our own where that has nothing, and what cuDNN does not serve.
extern const AttentionBackend fastest_attention;

}  // namespace trireme
