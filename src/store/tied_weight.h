#pragma once

#include "comm/communicator.h"
#include "store/param_store.h"

namespace trireme {

/// Adds the gradients of a tied weight that two pipeline ranks hold, the owner's
/// (the embedding's) first, so that both end with the same bits and make the same update.
class TiedWeight {
 public:
  /// `pair`: the two ranks, owner first, on a channel for the memory that the store is in.
  TiedWeight(Context& context, ParamStore& store, Communicator& pair);
  /// The block of the weight on this rank.
  [[nodiscard]] int block() const;
  /// What add() takes.
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params, const StoreLayout& layout);
  /// Of the gradients as the model wrote them, before the sum over ranks; else owned.
  void add();

 private:
  Context& context_;
  ParamStore& store_;
  Communicator& pair_;
  ParamIndex index_;
  Buffer theirs_;
};

/// The parameter that another pipeline rank holds, too; kNoParam where there is none.
ParamIndex find_shared_home(const std::vector<ParamMeta>& params);

}  // namespace trireme
