#pragma once
// What a checkpoint knows of anybody: named tensors in pieces, and scalars.

#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/shape.h"

namespace trireme {

/// The piece of one global tensor that this rank holds, row-major and contiguous at `data`.
struct StateTensor {
  std::string name;  ///< "parameters/NAME", "optimizer/NAME/exp_avg", "optimizer/NAME/exp_avg_sq"
  DType dtype = DType::kF32;
  Shape global_shape;
  Box box;
  std::byte* data = nullptr;
  /// This rank is copy `replica` of `replicas` that hold the same box.
  int replica = 0, replicas = 1;
};

struct State {
  std::vector<StateTensor> tensors;
  Json scalars = Json::object();  ///< the same on every rank
};

}  // namespace trireme
