#include "optim/muon_rule.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "kernels/elementwise/elementwise.h"

namespace trireme {

namespace {

enum class Way : std::uint8_t { kIn, kOut };

/// Rows and columns of a matrix from a place on.
HeadsView box_of(const TensorView& matrix, const Shape& at, const Shape& size) {
  const std::int64_t columns = matrix.shape[1];
  return {matrix.data + static_cast<std::size_t>(at[0] * columns + at[1]) * size_of(matrix.dtype),
          matrix.dtype,
          size[0],
          1,
          size[1],
          columns};
}

void move_boxes(Context& context, Way way, const TensorView& matrix, const TensorView& part,
                std::span<const CutPart> boxes) {
  for (const CutPart& box : boxes) {
    const HeadsView of_whole = box_of(matrix, box.box.offset, box.box.shape),
                    of_part = box_of(part, box.at, box.box.shape);
    copy_heads(context, way == Way::kIn ? of_whole : of_part, way == Way::kIn ? of_part : of_whole);
  }
}

void exchange(Communicator* ranks, std::span<const Message> sends,
              std::span<const Message> receives) {
  if (ranks != nullptr) ranks->start_exchange(sends, receives).wait();
}

}  // namespace

MuonRule::Shares MuonRule::shares_of(const std::vector<ParamMeta>& params,
                                     const ParamDistribution& distribution) {
  return {MatrixShare(params, distribution, MeshView::kDense),
          MatrixShare(params, distribution, MeshView::kExpert)};
}

MatrixShare::Sizes MuonRule::sizes_of(const Shares& shares) {
  MatrixShare::Sizes most;
  for (const MatrixShare& share : shares) {
    const MatrixShare::Sizes sizes = share.sizes();
    most.parts = std::max(most.parts, sizes.parts);
    most.pieces = std::max(most.pieces, sizes.pieces);
    most.matrix = std::max(most.matrix, sizes.matrix);
    most.gram = std::max(most.gram, sizes.gram);
  }
  return most;
}

std::int64_t MuonRule::buffer_bytes(const std::vector<ParamMeta>& params,
                                    const ParamDistribution& distribution, DType compute) {
  const MatrixShare::Sizes sizes = sizes_of(shares_of(params, distribution));
  const auto rounded = static_cast<std::int64_t>(size_of(compute)),
             single = static_cast<std::int64_t>(sizeof(float));
  return rounded * (sizes.parts + sizes.pieces + sizes.matrix + sizes.gram) +
         single * (sizes.matrix + sizes.gram);
}

MuonRule::MuonRule(const RunConfig::Optimizer& config, const ParamStore& store,
                   std::span<const UpdatedParam> params, const ViewChannels& channels)
    : lr_ratio_(config.lr == 0 ? 1 : config.matrix_lr.value_or(config.lr) / config.lr),
      type_(store.compute()) {
  const Shares shares = shares_of(store.params(), store.layout().distribution());
  const MatrixShare::Sizes sizes = sizes_of(shares);
  const auto make = [&](std::int64_t count, DType dtype) {
    return count == 0 ? Buffer() : Buffer(dtype, {count}, store.device());
  };
  parts_ = make(sizes.parts, type_);
  pieces_ = make(sizes.pieces, type_);
  matrix_ = make(sizes.matrix, type_);
  sum_ = make(sizes.matrix, DType::kF32);
  gram_ = make(sizes.gram, type_);
  square_ = make(sizes.gram, DType::kF32);
  for (const MeshView view : kMeshViews) {
    const MatrixShare& share = shares[static_cast<std::size_t>(view)];
    Communicator* ranks =
        share.ranks() == 1 ? nullptr : channels[static_cast<std::size_t>(view)].parts;
    if (share.rounds().empty()) continue;
    if (share.ranks() > 1) {
      expect(ranks != nullptr && ranks->size() == share.ranks() && ranks->rank() == share.rank(),
             "matrices in parts of {} ranks without a channel to them", share.ranks());
    }
    add_rounds(store, params, share, ranks);
  }
}

void MuonRule::add_rounds(const ParamStore& store, std::span<const UpdatedParam> params,
                          const MatrixShare& share, Communicator* ranks) {
  const int mine = share.rank();
  for (const std::vector<MatrixShare::Task>& tasks : share.rounds()) {
    Round& round = rounds_.emplace_back();
    round.ranks = ranks;
    std::int64_t begin = 0;
    for (const MatrixShare::Task& task : tasks) {
      const auto of = std::find_if(params.begin(), params.end(), [&](const UpdatedParam& param) {
        return param.index == task.index;
      });
      expect(of != params.end(), "a matrix that the rule was not given");
      const Shape& whole = store.params()[static_cast<std::size_t>(task.index)].shape;
      const Shape shape = share.part(task.index, mine).shape;
      const TensorView part = parts_.view().rows(begin, shape.count()).reshape(shape);
      begin += round_up(shape.count(), MatrixShare::kAlignment);
      const bool brings = share.source(task, mine) == mine;
      if (task.worker == mine) take_work(store, share, task, part, round);
      if (shape.count() == 0) continue;
      const double side = static_cast<double>(std::max(whole[0], whole[1]));
      round.indices.push_back(task.index);
      round.momenta.push_back({store.optimizer_state(kState, task.index),
                               store.gradients().owned(task.index), brings ? part : TensorView()});
      round.updates.push_back({store.value(task.index), store.copy(task.index), part,
                               of->lr_scale * kScale * std::sqrt(side),
                               of->lr_scale * of->weight_decay});
      if (task.worker == mine) continue;
      if (brings) round.part_sends.push_back(message_of(task.worker, part));
      round.part_receives.push_back(message_of(task.worker, part));
    }
  }
}

void MuonRule::take_work(const ParamStore& store, const MatrixShare& share,
                         const MatrixShare::Task& task, const TensorView& own_part,
                         Round& round) const {
  const Shape& shape = store.params()[static_cast<std::size_t>(task.index)].shape;
  const std::int64_t count = shape.count(), side = std::min(shape[0], shape[1]);
  round.work = {matrix_.view().rows(0, count).reshape(shape),
                sum_.view().rows(0, count).reshape(shape),
                gram_.view().rows(0, side * side).reshape({side, side}),
                square_.view().rows(0, side * side).reshape({side, side})};
  std::vector<TensorView> pieces(static_cast<std::size_t>(share.ranks()));
  std::int64_t begin = 0;
  for (int rank = 0; rank < share.ranks(); ++rank) {
    if (share.source(task, rank) != rank) continue;
    MatrixShare::Part part = share.part(task.index, rank);
    TensorView& piece = pieces[static_cast<std::size_t>(rank)];
    piece = own_part;
    if (rank != share.rank()) {
      piece = pieces_.view().rows(begin, part.shape.count()).reshape(part.shape);
      begin += round_up(part.shape.count(), MatrixShare::kAlignment);
      if (piece.count() > 0) round.piece_receives.push_back(message_of(rank, piece));
    }
    round.pieces.push_back({piece, std::move(part.boxes)});
  }
  for (int rank = 0; rank < share.ranks(); ++rank) {
    const TensorView& piece = pieces[static_cast<std::size_t>(share.source(task, rank))];
    if (rank != share.rank() && piece.count() > 0)
      round.piece_sends.push_back(message_of(rank, piece));
  }
}

void MuonRule::orthogonalize_round(Context& context, const UpdateStep& step, const Round& round) {
  muon_momentum(context, round.momenta, kMomentum, step.gradient_scale);
  exchange(round.ranks, round.part_sends, round.piece_receives);
  if (round.work.matrix.given()) {
    for (const Piece& piece : round.pieces)
      move_boxes(context, Way::kIn, round.work.matrix, piece.part, piece.boxes);
    orthogonalize(context, round.work);
    for (const Piece& piece : round.pieces)
      move_boxes(context, Way::kOut, round.work.matrix, piece.part, piece.boxes);
  }
  exchange(round.ranks, round.piece_sends, round.part_receives);
}

void MuonRule::step(Context& context, const UpdateStep& step) {
  for (const Round& round : rounds_) {
    orthogonalize_round(context, step, round);
    muon_update(context, round.updates, rate(step));
  }
}

void MuonRule::step(Context& context, const UpdateStep& step, BlockMeter& meter) {
  for (const Round& round : rounds_) {
    orthogonalize_round(context, step, round);
    for (std::size_t i = 0; i < round.updates.size(); ++i) {
      MuonUpdateTensor update = round.updates[i];
      UpdateTensor rows;
      rows.parameter = update.parameter;
      rows.copy = update.copy;
      rows.gradient = update.update;
      meter.measure(context, round.indices[i], rows, [&](const UpdateTensor& some) {
        update.parameter = some.parameter;
        update.copy = some.copy;
        update.update = some.gradient;
        muon_update(context, {&update, 1}, rate(step));
      });
    }
  }
}

std::vector<TensorView> MuonRule::changed() const {
  std::vector<TensorView> views;
  for (const Round& round : rounds_) {
    for (const MuonUpdateTensor& update : round.updates) views.push_back(update.parameter);
    for (const MuonMomentumTensor& momentum : round.momenta) views.push_back(momentum.momentum);
  }
  return views;
}

}  // namespace trireme
