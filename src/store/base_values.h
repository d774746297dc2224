#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "device/host_memory.h"
#include "store/param_store.h"
#include "store/quantized_refresh.h"

namespace trireme {

/// Values of the base (ParamMeta::base) on their way into a store: fp32 in host memory, one part
/// after the other, as a base in four bits is an eighth of that. A base in fp8 is one part: its
/// scales join the rows of all ranks.
class BaseValues {
 public:
  /// `bytes_at_once`: of a part, unless one parameter has more; 0: a 64th of all, in the bounds
  /// between which reading takes little memory beside the weights and few passes over the files.
  BaseValues(Context& context, ParamStore& store, std::int64_t bytes_at_once = 0);

  /// Of this rank; others may have more or fewer.
  [[nodiscard]] int parts() const { return static_cast<int>(parts_.size()); }
  /// "parameters/NAME" of this rank's rows of a part, to be filled; each lies contiguous. Nothing
  /// behind the last part.
  [[nodiscard]] State state(int part);
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
  std::vector<std::vector<ParamIndex>> parts_;
  /// Those of the part under way, and where their rows begin in memory_.
  std::map<ParamIndex, std::int64_t> here_;
  HostBuffer memory_;
  /// Parts of wider rows, which files are not read into: room beside them, and their places.
  HostBuffer apart_;
  std::vector<std::pair<const std::byte*, StateTensor>> copies_;
  Buffer staging_;  // on a GPU: of the largest
};

}  // namespace trireme
