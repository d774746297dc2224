#pragma once
// AdamW and Lion with moments in 8 bits, as bitsandbytes keeps them (kernels/update/update_8bit.h).

#include <array>
#include <span>
#include <vector>

#include "config/run_config.h"
#include "kernels/update/update_8bit.h"
#include "optim/update_rule.h"

namespace trireme {

/// Where each rank has whole blocks of a parameter one call updates it. Else all ranks hold the
/// magnitudes of all its blocks, an update begins with those of the new moments, and ranks that
/// share the parameter join them. Either way the bits are those of one rank.
class CodedMomentsRule final : public UpdateRule {
 public:
  /// Whether a parameter's moments are in 8 bits; those of others ElementwiseRule updates.
  static bool takes(const ParamMeta& param);
  /// exp_avg in codes and exp_avg_absmax, and of AdamW exp_avg_sq likewise.
  static std::vector<OptimizerState> states(OptimizerKind kind);
  /// What it takes besides the store.
  static std::int64_t buffer_bytes(OptimizerKind kind, const std::vector<ParamMeta>& params,
                                   const ParamDistribution& distribution);
  /// Of the parameters of a view.
  static Sent bytes_sent(OptimizerKind kind, const std::vector<ParamMeta>& params,
                         const ParamDistribution& distribution, MeshView view);

  /// Of `config` it reads betas and eps. The store, which must hold those states, and the channels
  /// must outlive it.
  CodedMomentsRule(OptimizerKind kind, const RunConfig::Optimizer& config, const ParamStore& store,
                   std::span<const UpdatedParam> params, const ViewChannels& channels);

  void step(Context& context, const UpdateStep& step) override;
  void step(Context& context, const UpdateStep& step, BlockMeter& meter) override;
  [[nodiscard]] std::vector<TensorView> changed() const override;

 private:
  enum class Pass : std::uint8_t { kUpdate, kMaxima };
  /// A parameter whose blocks cuts cross, of which this rank may have no element.
  struct Crossed {
    CodedTensor tensor;
    std::vector<MomentPart> parts;
    ParamIndex index;
  };
  void add(const ParamStore& store, const UpdatedParam& param, std::int64_t& maxima);
  void run(Context& context, std::span<const CodedTensor> tensors, const UpdateStep& step,
           Pass pass) const;
  /// The magnitudes of the new moments of all blocks that cuts cross. Collective.
  void find_maxima(Context& context, const UpdateStep& step);
  /// Takes them in the place of the old ones.
  void take_maxima(Context& context) const;

  OptimizerKind kind_;
  AdamWConstants constants_;         // of Lion the betas
  std::vector<CodedTensor> whole_;   // of whole blocks
  std::vector<ParamIndex> indices_;  // of each of these
  std::vector<Crossed> crossed_;
  std::vector<CodedTensor> parts_;  // of crossed_ those with elements
  ViewChannels channels_;
  std::array<Slice, kMeshViews.size()> of_view_ = {};  // of maxima_
  Buffer maxima_, received_;
};

}  // namespace trireme
