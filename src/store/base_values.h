#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "device/host_memory.h"
#include "store/param_store.h"
#include "store/quantized_refresh.h"

namespace trireme {

/// Values of the base (ParamMeta::base) on their way into a store: fp32 in host memory, for as long
/// as files are read.
class BaseValues {
 public:
  BaseValues(Context& context, ParamStore& store);

  /// "parameters/NAME" of this rank's rows, to be filled; each lies contiguous.
  [[nodiscard]] State state();
  /// Gives the store what has been filled, in the form in which products read it. `fp8`: of each
  /// view; collective where there are any.
  void give(std::deque<QuantizedRefresh>& fp8);

 private:
  void join();
  [[nodiscard]] TensorView host_rows(ParamIndex index) const;
  /// In the memory that the context computes in; until the next call.
  [[nodiscard]] TensorView rows(ParamIndex index);

  Context& context_;
  ParamStore& store_;
  std::vector<std::int64_t> begins_;  // of each parameter's rows in memory_; -1: not of the base
  HostBuffer memory_;
  /// Parts of wider rows, which files are not read into: room beside them, and their places.
  HostBuffer apart_;
  std::vector<std::pair<const std::byte*, StateTensor>> copies_;
  Buffer staging_;  // on a GPU: of the largest
};

}  // namespace trireme
