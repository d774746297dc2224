#pragma once
// What the passes over a part of the model take on a rank: a walk over their products, passes over
// memory and transfers, in the order of model/block.h, with what goes on behind what.

#include <array>
#include <cstddef>

#include "config/model_config.h"
#include "plan/op_time.h"
#include "plan/step_layout.h"

namespace trireme {

/// A number for each axis: seconds or bytes.
struct AxisNumbers {
  std::array<double, kTrafficAxes.size()> of = {};
  double& operator[](Axis axis) { return of[static_cast<std::size_t>(axis)]; }
  double operator[](Axis axis) const { return of[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] double total() const;
  AxisNumbers& operator+=(const AxisNumbers& other);
};

struct PassTime {
  double compute = 0;
  double host = 0;                        ///< beyond that, where launching takes longer
  AxisNumbers exposed = {}, hidden = {};  ///< seconds of transfers
  AxisNumbers bytes = {};                 ///< that the rank sends

  [[nodiscard]] double seconds() const { return compute + host + exposed.total(); }
  PassTime& operator+=(const PassTime& other);
  friend PassTime operator*(double times, PassTime pass);
};

/// As the actions of a schedule divide the work: B makes again what recomputation has dropped,
/// unless an R before it did. `backward` is B and W in one, whose transfers hide better.
struct PartTime {
  PassTime forward, backward_input, backward_weight, backward, recompute;
  PartTime& operator+=(const PartTime& other);
};

/// What a rank holds of a part: elements of parameters.
struct PartSize {
  double dense = 0, experts = 0;
};

/// Layers, embedding and head of a layout on a cluster; all references must outlive it. Attention
/// masked by documents is counted whole, experts as evenly chosen.
class PartTimes {
 public:
  PartTimes(const ModelConfig& model, const StepLayout& layout, const Cluster& cluster);

  /// Layer `index` of the model.
  [[nodiscard]] PartTime layer(std::int64_t index) const;
  [[nodiscard]] PartSize layer_size(std::int64_t index) const;
  /// Of that what is trained: beside adapters nothing else (ModelConfig::adapters).
  [[nodiscard]] PartSize trained_size(std::int64_t index) const;
  /// The head makes loss and gradients in F.
  [[nodiscard]] PartTime head() const;
  [[nodiscard]] PartTime embedding() const;
  /// Of the embedding, or of the head.
  [[nodiscard]] double vocabulary_size() const;
  /// Of A and B beside the head.
  [[nodiscard]] double head_adapter_size() const;

  [[nodiscard]] const OpTime& ops() const { return ops_; }
  /// What `work`, in seconds, hides of so many of transfers: all, but ranks of a CPU's node move
  /// bytes themselves, and only wait for each other behind work, once a call; where they are more
  /// than its cores, behind that of others.
  [[nodiscard]] double hidden(const LinkTime& link, double seconds, double calls,
                              double work) const;

 private:
  class Walk;
  [[nodiscard]] double head_adapter_seconds(std::int64_t rows, std::int64_t columns,
                                            double logit) const;
  const ModelConfig& model_;
  const StepLayout& layout_;
  const Cluster& cluster_;
  OpTime ops_;
  bool crowded_;
};

}  // namespace trireme
