#pragma once

#include <cstdint>
#include <string>

#include "base/shape.h"
#include "parallel/cut.h"

namespace trireme {

enum class InitKind : std::uint8_t { kZeros, kOnes, kNormal };

struct ParamInit {
  InitKind kind = InitKind::kZeros;
  float std = 0;  ///< of kNormal
};

/// Whether a parameter stands directly behind the one declared before it, so that one GEMM serves
/// both.
enum class Fuse : std::uint8_t { kNo, kWithPrevious };

/// When the gradient of a parameter that the tensor axis does not cut is a part of the whole one
/// on each of its places, to be summed over them.
enum class TensorPartial : std::uint8_t {
  kNever,       ///< every place computes the whole gradient
  kWithTokens,  ///< where tokens are cut (sequence parallelism): norms of the stream
  kWithHeads,   ///< wherever heads are: norms of q and k
};

/// Everything that is known of a parameter before any memory exists. Declared once, in
/// model/param_table.cc.
struct ParamMeta {
  std::string name;  ///< Hugging Face's
  Shape shape;       ///< global
  ParamInit init;
  bool decay = false;  ///< weight decay applies: tensors of two or more dims
  int block = 0;       ///< unit of gathering and reduction: 0 embedding, 1..L layers, L+1 head
  Fuse fuse = Fuse::kNo;
  /// Used at both ends of the model: two gradient accumulators, added once, at every pipeline
  /// extent.
  bool tied = false;
  /// The gradient comes from one product for each micro-batch. The first of a step sets it, so that
  /// nobody clears it.
  bool set_by_product = false;
  TensorCut cut = {};  ///< on the tensor axis
  TensorPartial partial = TensorPartial::kNever;
};

/// Position in the list of ParamMeta.
using ParamIndex = int;
inline constexpr ParamIndex kNoParam = -1;

/// Parameters [first, last], fused where there are several; `first` is kNoParam for "none".
struct ParamRange {
  ParamIndex first = kNoParam, last = kNoParam;
  [[nodiscard]] bool given() const { return first != kNoParam; }
};

}  // namespace trireme
