#pragma once
// How tokens travel between the ranks that hold a layer's experts together (ExpertCut). Each rank
// has tokens of its own, its *home* tokens, and sends each of them
//
//   alltoall    once to every rank that holds one of its experts
//   allgather   once to every rank: more bytes, one collective
//
// A rank makes a row for each token that it has received and each of its experts that the token
// has chosen (kernels/expert_rows), by expert, source and token. Every such row comes back by
// itself, so that a token's are added at its home in one order whatever the ranks: both methods and
// all extents of the expert axis give equal bits. Where an expert's columns are cut each of its
// ranks sends a part of the row, and the parts are added too.
// Lepikhin et al. 2020 (GShard); the folding of the axis is Megatron-LM's.

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "device/context.h"
#include "parallel/expert_place.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// Which rows travel for one layer and micro-batch: found before F's dispatch, used once more in B.
struct ExpertRoute {
  std::vector<std::int64_t> sent, received;  ///< [ranks + 1]: where a rank's tokens begin
  /// [ranks x experts here + 1]: where a source's rows of an expert begin, by expert.
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> home_rows;  ///< [experts + 1] in order of places: those that come back

  [[nodiscard]] std::int64_t received_tokens() const { return received.back(); }
};

/// What of a route lies in the memory of the device.
struct ExpertRouteTables {
  TensorView sent_token;     ///< i32 [ranks x home tokens]: the token of each row that is sent
  TensorView home_slot_row;  ///< i32 [home tokens, k x cut.tensor.extent]: the row of a slot's part
  TensorView sources;        ///< i32 [ranks + 1]: `received`
};

class ExpertAxis {
 public:
  /// One rank holds all experts: nothing travels.
  ExpertAxis() = default;
  /// `group` has the ranks of `cut`, `channel` too and moves activations' memory; both outlive
  /// this.
  ExpertAxis(Communicator& group, Communicator& channel, const ExpertCut& cut,
             DispatchMethod method);

  /// `ranks`, which must outlive this, have more tokens of a scope of an auxiliary loss.
  void count_with(Communicator& ranks) { counted_ = &ranks; }
  /// counts += those of the other such ranks.
  void sum_counts(std::span<std::int64_t> counts) const {
    if (counted_ != nullptr) counted_->sum(counts);
  }

  [[nodiscard]] const ExpertCut& cut() const { return cut_; }
  [[nodiscard]] int ranks() const { return cut_.ranks(); }

  /// Finds the route of home tokens that have chosen these experts, [S, k] i32. Collective. Waits
  /// for what the context is computing.
  void find(Context& context, ExpertRoute& route, const ExpertRouteTables& tables,
            const ExpertPlaces& places, ConstTensorView chosen_Sk) const;
  /// received[i] = the row of the i-th received token; `sent` has room for those that leave.
  /// Of 4 or 2 bytes an element, f32, bf16 or i32.
  [[nodiscard]] Pending start_dispatch(Context& context, const ExpertRoute& route,
                                       const ExpertRouteTables& tables, TensorView received,
                                       ConstTensorView x_SC, TensorView sent) const;
  /// Rows of received tokens go home: to home[part x S k + r], r in order of places and tokens.
  [[nodiscard]] Pending start_return(const ExpertRoute& route, const ExpertPlaces& places,
                                     TensorView home, TensorView rows) const;

 private:
  void make_home_tables(Context& context, const ExpertRoute& route, const ExpertRouteTables& tables,
                        const ExpertPlaces& places, std::span<const std::int32_t> chosen,
                        std::int64_t tokens) const;

  Communicator* group_ = nullptr;
  Communicator* channel_ = nullptr;
  Communicator* counted_ = nullptr;
  ExpertCut cut_;
  DispatchMethod method_ = DispatchMethod::kAllToAll;
};

}  // namespace trireme
