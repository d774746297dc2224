#include "optim/matrix_share.h"

#include <algorithm>

#include "optim/orthogonalize.h"

namespace trireme {

MatrixShare::MatrixShare(const std::vector<ParamMeta>& params,
                         const ParamDistribution& distribution, MeshView view)
    : params_(params), tensor_(distribution.of(view).tensor), shard_(distribution.of(view).shard) {
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    const ParamMeta& param = params[static_cast<std::size_t>(i)];
    if (param.matrix && param.trainable && param.view == view) matrices_.push_back(i);
  }
  choose_workers();
}

void MatrixShare::choose_workers() {
  const auto operations = [&](ParamIndex i) {
    return orthogonalize_operations(params_[static_cast<std::size_t>(i)].shape);
  };
  std::vector<ParamIndex> order = matrices_;
  std::stable_sort(order.begin(), order.end(),
                   [&](ParamIndex a, ParamIndex b) { return operations(a) > operations(b); });
  struct Worker {
    double operations = 0;
    std::size_t tasks = 0;
  };
  std::vector<Worker> workers(static_cast<std::size_t>(ranks()));
  for (const ParamIndex index : order) {
    const auto least = std::min_element(
        workers.begin(), workers.end(),
        [](const Worker& a, const Worker& b) { return a.operations < b.operations; });
    if (least->tasks == rounds_.size()) rounds_.emplace_back();
    rounds_[least->tasks].push_back({index, static_cast<int>(least - workers.begin())});
    ++least->tasks;
    least->operations += operations(index);
  }
}

MatrixShare::Part MatrixShare::part(ParamIndex index, int rank) const {
  const ParamMeta& param = params_[static_cast<std::size_t>(index)];
  const AxisRank tensor{tensor_.extent, rank % tensor_.extent},
      shard{shard_.extent, rank / tensor_.extent};
  Part part{local_shape(param.shape, param.cut, tensor), {}};
  const Slice rows = owned_rows(part.shape, shard);
  part.boxes = rows_of_parts(local_parts(param.shape, param.cut, tensor), rows);
  part.shape.set(0, rows.size);
  return part;
}

int MatrixShare::source(const Task& task, int rank) const {
  const int same = params_[static_cast<std::size_t>(task.index)].cut.replicas(tensor_.extent);
  return rank / same * same + task.worker % same;
}

MatrixShare::Sizes MatrixShare::sizes() const {
  Sizes sizes;
  const auto room_of = [&](const Task& task, int of) {
    return round_up(part(task.index, of).shape.count(), kAlignment);
  };
  for (const std::vector<Task>& round : rounds_) {
    std::int64_t parts = 0, pieces = 0;
    for (const Task& task : round) {
      parts += room_of(task, rank());
      if (task.worker != rank()) continue;
      for (int of = 0; of < ranks(); ++of)
        if (of != rank() && source(task, of) == of) pieces += room_of(task, of);
      const Shape& shape = params_[static_cast<std::size_t>(task.index)].shape;
      const std::int64_t side = std::min(shape[0], shape[1]);
      sizes.matrix = std::max(sizes.matrix, shape.count());
      sizes.gram = std::max(sizes.gram, side * side);
    }
    sizes.parts = std::max(sizes.parts, parts);
    sizes.pieces = std::max(sizes.pieces, pieces);
  }
  return sizes;
}

MatrixShare::Cost MatrixShare::cost() const {
  Cost cost;
  for (const std::vector<Task>& round : rounds_) {
    for (const Task& task : round) {
      if (task.worker == rank()) {
        cost.operations +=
            orthogonalize_operations(params_[static_cast<std::size_t>(task.index)].shape);
        for (int to = 0; to < ranks(); ++to)
          if (to != rank()) cost.elements_sent += part(task.index, to).shape.count();
      } else if (source(task, rank()) == rank()) {
        cost.elements_sent += part(task.index, rank()).shape.count();
      }
    }
    if (ranks() > 1) cost.transfers += 2;
  }
  return cost;
}

}  // namespace trireme
