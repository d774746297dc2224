#pragma once

#include <functional>

#include "comm/communicator.h"
#include "store/param_store.h"

namespace trireme {

/// Makes the fp8 copies of a store's parameters anew from their fp32 values: each rank finds the
/// largest magnitudes of its rows, one MAX over the ranks that share the rows makes them those of
/// all, another over the tensor axis joins what its cuts cross, and each rank quantises its rows.
/// So codes and scales are the same whatever shards the tensor.
class QuantizedRefresh {
 public:
  /// Of the parameters of a view. `shards`: the ranks of one full copy of its tensor-parallel shard
  /// (alone: of one rank); `tensor`: its tensor axis. Channels for the store's memory, which
  /// outlive this.
  QuantizedRefresh(Context& context, ParamStore& store, Communicator& shards, Communicator& tensor,
                   MeshView view = MeshView::kDense);
  /// What that of each view takes besides the store.
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params,
                                   const ParamDistribution& distribution);
  /// What a rank sends: over the shards, over the tensor axis.
  struct Sent {
    std::int64_t shards = 0, tensor = 0;
  };
  static Sent bytes_sent(const std::vector<ParamMeta>& params,
                         const ParamDistribution& distribution, MeshView view = MeshView::kDense);

  /// Collective over both.
  void run();
  /// With values that stand elsewhere: this rank's rows, asked for twice.
  void run(const std::function<TensorView(ParamIndex)>& value_of);

 private:
  /// A parameter whose blocks several tensor-parallel ranks have parts of, and where these stand in
  /// what they join: a matrix of the blocks of the global tensor.
  struct Crossed {
    ParamIndex index;
    std::int64_t begin, rows, columns;
  };
  static std::vector<Crossed> crossed_by(const std::vector<ParamMeta>& params,
                                         const QuantizedLayout& layout,
                                         const ParamDistribution& distribution, MeshView view);
  static std::int64_t joined_count(const std::vector<Crossed>& crossed);
  /// Of a parameter's maxima those that this rank's rows have part in.
  [[nodiscard]] TensorView largest_of(ParamIndex index) const;
  [[nodiscard]] ScaleDim owned_rows(ParamIndex index) const;
  /// Those of the view.
  [[nodiscard]] TensorView largest() const;
  void join_tensor();
  /// f(the global blocks, the local blocks) of each part of a crossed parameter, as rows.
  template <class F>
  void for_each_part(const Crossed& of, TensorView joined, const F& f) const;

  Context& context_;
  ParamStore& store_;
  Communicator &shards_, &tensor_;
  MeshView view_;
  std::vector<Crossed> crossed_;
  Buffer received_;  // others' parts of the maxima that this rank joins
  Buffer joined_;    // of each tensor-parallel rank
};

}  // namespace trireme
