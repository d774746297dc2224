#pragma once
// Attention as a graph of a library's operations, plain data: which calls a library is asked to
// serve, how each tensor lies in memory, and what is computed. No library is seen here; the file
// that talks to cuDNN (attention_cudnn.cc) hands such a graph over operation by operation.
//
// What cuDNN's fused kernels are found by: scaled dot-product attention in NVIDIA's documentation
// of cuDNN's graph interface and its open front end (composite form, cuDNN 9).

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention_backend.h"

namespace trireme {

enum class LibraryPass : std::uint8_t { kForward, kBackward };

/// What a call brings memory for. Those that are one number come from the host's.
enum class LibraryTensor : std::uint8_t {
  kQ,
  kK,
  kV,
  kO,
  kLse,            ///< f32 [B, H, T]
  kScale,          ///< one f32
  kMinusInfinity,  ///< one f32
  kOne,            ///< one f32
  kDO,
  kDelta,  ///< f32 [B, H, T]; written and read by the backward pass alone
  kDQ,     ///< bf16 [B, T, H, D], packed or in rows of written_stride
  kDK,     ///< bf16 [B, T, G, D], likewise
  kDV,     ///< likewise
  kDQSum,  ///< f32 [B, H, T, D]; where the backward pass is not deterministic
  kCount
};
inline constexpr std::size_t kLibraryTensorCount = static_cast<std::size_t>(LibraryTensor::kCount);

struct GraphTensor {
  enum class Type : std::uint8_t { kBF16, kF32, kI32, kBool };
  /// kVirtual: between two operations, never in memory. kByValue: one number of the host's.
  enum class Storage : std::uint8_t { kMemory, kByValue, kVirtual };
  std::int64_t id = 0;  ///< that of the LibraryTensor, or any other number
  std::array<std::int64_t, 4> dims = {1, 1, 1, 1}, strides = {1, 1, 1, 1};
  Type type = Type::kF32;
  Storage storage = Storage::kVirtual;
};

struct GraphOperation {
  enum class Kind : std::uint8_t {
    kProduct,   ///< out = x y, matrices of the last two dims
    kMultiply,  ///< elementwise, as all up to kSelect; a dim of 1 is repeated
    kSubtract,
    kAdd,
    kDivide,
    kExp,
    kLog,
    kCopy,
    kRowIndex,     ///< out = the index along dim 2 of x's elements
    kColumnIndex,  ///< along dim 3
    kNotBelow,     ///< x >= y
    kSelect,       ///< condition ? x : y
    kMaximum,      ///< over the dims in which out is smaller than x
    kSum,          ///< likewise
    kView,         ///< the same elements, seen with other dims, strides or type
  };
  Kind kind = Kind::kCopy;
  int x = -1, y = -1, condition = -1, out = -1;  ///< indices of AttentionGraph::tensors
};

struct AttentionGraph {
  std::vector<GraphTensor> tensors;
  std::vector<GraphOperation> operations;  ///< each after those whose results it reads
  /// Null where the graph has no such tensor.
  [[nodiscard]] const GraphTensor* find(LibraryTensor tensor) const;
};

///   S = scale q k^T, masked;  lse = log sum exp S;  o = exp(S - lse) v
/// Backward as attention.h has it, with delta made of o and d_o.
AttentionGraph attention_graph(const AttentionLayout& shape, LibraryPass pass);

/// What cuDNN 9.19 asks for as a workspace at most, for plans made before a GPU is there: without
/// deterministic sums over query heads, with them scores and their gradients of all pairs, bf16.
std::int64_t library_workspace_bound(const AttentionLayout& shape, LibraryPass pass);

/// Memory beside the operands of a pass, its parts aligned to 256 bytes: the tensors of kLse on
/// that the operands do not hold, then the library's workspace.
struct LibraryScratch {
  std::size_t lse = 0, delta = 0, dq = 0, dk = 0, dv = 0, dq_sum = 0, workspace = 0;  ///< offsets
  std::size_t bytes = 0;
};
LibraryScratch library_scratch(const AttentionLayout& shape, LibraryPass pass,
                               std::size_t workspace_bytes);

}  // namespace trireme
