#pragma once

#include <cstdint>

#include "tensor/tensor_view.h"

namespace trireme {

/// Whether a backward is its chunk's last of the step: then its blocks' gradients are final.
enum class LastMicroBatch : std::uint8_t { kNo, kYes };

/// What a chunk takes from its neighbours in the model and gives them, of one micro-batch.
enum class Boundary : std::uint8_t { kInput, kOutput, kOutputGradient, kInputGradient };

/// What a stage of the model can be asked to do in a forward, by the executor alone. A chunk is a
/// virtual stage of this rank, numbered from 0 in order of the model.
class ForwardProgram {
 public:
  virtual ~ForwardProgram() = default;
  /// Of a step or of evaluation: the stage knows which.
  virtual void forward(int chunk, int micro_batch) = 0;
  /// Where a chunk reads its input and the gradient of its output, and leaves its output and its
  /// input's gradient; not at the model's ends. The two gradients share memory: B reads the one
  /// before it leaves the other.
  [[nodiscard]] virtual TensorView boundary(int chunk, int micro_batch, Boundary which) = 0;
  /// Whose memory that is, from 0: those of one slot share it.
  [[nodiscard]] virtual int slot(int chunk, int micro_batch) const = 0;
  /// Whether two actions of a group may take turns: there is memory for both.
  [[nodiscard]] virtual bool takes_turns() const { return false; }
  /// Between two boundaries of this stage.
  virtual void copy(TensorView to, TensorView from) = 0;
};

/// A stage that trains.
class StageProgram : public ForwardProgram {
 public:
  /// Recomputes the chunk's activations that backward would recompute, until backward_input or
  /// backward of the micro-batch, which then does not. Changes no bits.
  virtual void recompute(int chunk, int micro_batch) = 0;
  virtual void backward_input(int chunk, int micro_batch) = 0;
  virtual void backward_weight(int chunk, int micro_batch, LastMicroBatch last) = 0;
  /// The same bits as backward_input, then backward_weight; needs less memory between them.
  virtual void backward(int chunk, int micro_batch, LastMicroBatch last) = 0;
};

}  // namespace trireme
