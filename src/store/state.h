#pragma once
// What a checkpoint knows of anybody: named tensors in shards, and scalars.

#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"
#include "base/shape.h"

namespace trireme {

/// The tensor of a parameter's averaged weights (optimizer.ema).
inline std::string average_name(const std::string& parameter) { return "ema/" + parameter; }

/// A shard of a global tensor that this rank holds.
struct StateTensor {
  std::string name;  ///< "parameters/NAME", "optimizer/NAME/exp_avg", "ema/NAME"
  DType dtype = DType::kF32;
  Shape global_shape;
  Box box;
  std::byte* data = nullptr;  ///< row-major
  /// This rank is copy `replica` of `replicas` that hold the same box.
  int replica = 0, replicas = 1;
  /// Elements from one row (dim 0) to the next in memory; 0: they are contiguous.
  std::int64_t row_stride = 0;

  [[nodiscard]] std::int64_t row_size() const {
    return box.shape[0] == 0 ? 0 : box.shape.count() / box.shape[0];
  }
  [[nodiscard]] bool contiguous() const {
    return row_stride == 0 || row_stride == row_size() || box.shape[0] <= 1;
  }
};

struct State {
  std::vector<StateTensor> tensors;
  Json scalars = Json::object();  ///< the same on every rank
};

}  // namespace trireme
