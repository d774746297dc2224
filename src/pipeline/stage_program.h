#pragma once

#include <cstdint>

namespace trireme {

/// Whether a backward pass is the last of its chunk in this step: then each block's gradients are
/// final after it.
enum class Pass : std::uint8_t { kOneOfSeveral, kLast };

/// What a stage of the model can be asked to do; the executor is the only caller during a step. A
/// chunk is a virtual stage that this rank holds, numbered from 0 in order of the model.
class StageProgram {
 public:
  virtual ~StageProgram() = default;
  virtual void forward(int chunk, int micro_batch) = 0;
  virtual void backward_input(int chunk, int micro_batch) = 0;
  virtual void backward_weight(int chunk, int micro_batch, Pass pass) = 0;
  /// The same bits as backward_input, then backward_weight; needs less memory between them.
  virtual void backward(int chunk, int micro_batch, Pass pass) = 0;
};

}  // namespace trireme
