#pragma once
// Muon, as torch.optim.Muon has it (momentum 0.95 of Nesterov's kind, "match_rms_adamw"), of
// matrices that ranks may hold in parts. With U the momentum's update of a matrix [R, C]:
//
//   W -= lr wd W;   W -= lr 0.2 sqrt(max(R, C)) orthogonalize(U)
//
// A matrix comes together on one rank, in the type that products read, and its parts go back
// (MatrixShare): equal gradients give equal bits however it was shared out.

#include <array>
#include <span>
#include <vector>

#include "config/run_config.h"
#include "kernels/muon/muon.h"
#include "optim/matrix_share.h"
#include "optim/orthogonalize.h"
#include "optim/update_rule.h"

namespace trireme {

class MuonRule final : public UpdateRule {
 public:
  static constexpr double kMomentum = 0.95, kScale = 0.2;
  static constexpr const char* kState = "momentum_buffer";

  /// `params` are matrices. Of `config` it reads lr and matrix_lr, whose ratio the rate is times
  /// what a step says; of `channels` the parts. The store and they must outlive it.
  MuonRule(const RunConfig::Optimizer& config, const ParamStore& store,
           std::span<const UpdatedParam> params, const ViewChannels& channels);
  /// What it takes besides the store.
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params,
                                   const ParamDistribution& distribution, DType compute);

  void step(Context& context, const UpdateStep& step) override;
  void step(Context& context, const UpdateStep& step, BlockMeter& meter) override;
  [[nodiscard]] std::vector<TensorView> changed() const override;

 private:
  using Shares = std::array<MatrixShare, kMeshViews.size()>;
  static Shares shares_of(const std::vector<ParamMeta>& params,
                          const ParamDistribution& distribution);
  /// Elements of memory, of what any view needs.
  static MatrixShare::Sizes sizes_of(const Shares& shares);
  /// A rank's part of the matrix that is worked on here, and which boxes of it these are.
  struct Piece {
    TensorView part;
    std::vector<CutPart> boxes;
  };
  struct Round {
    Communicator* ranks = nullptr;  ///< null where this one is alone
    std::vector<ParamIndex> indices;
    std::vector<MuonMomentumTensor> momenta;  ///< of each, and what takes its part in
    std::vector<MuonUpdateTensor> updates;
    std::vector<Message> part_sends, piece_receives, piece_sends, part_receives;
    OrthogonalizeBuffers work;  ///< no matrix: another's turn
    std::vector<Piece> pieces;
  };
  void add_rounds(const ParamStore& store, std::span<const UpdatedParam> params,
                  const MatrixShare& share, Communicator* ranks);
  void take_work(const ParamStore& store, const MatrixShare& share, const MatrixShare::Task& task,
                 const TensorView& own_part, Round& round) const;
  /// Up to where each part holds its update.
  static void orthogonalize_round(Context& context, const UpdateStep& step, const Round& round);
  [[nodiscard]] double rate(const UpdateStep& step) const { return step.lr * lr_ratio_; }

  double lr_ratio_;
  DType type_;
  Buffer parts_, pieces_, matrix_, sum_, gram_, square_;
  std::vector<Round> rounds_;
};

}  // namespace trireme
