#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "store/buckets.h"
#include "store/param_store.h"

namespace trireme {

/// Stage 3: where gathered blocks stand. The embedding has a slot of its own, as a tied head needs
/// it beside its own block; so has a block that is small beside the largest: a final norm between
/// the last layer and the head costs little there, and would take a layer's slot before backward
/// comes to it. The others take two slots in turns.
struct WeightSlots {
  /// `layout`: of any parameters of the model; slots are those of all.
  explicit WeightSlots(const StoreLayout& layout);
  [[nodiscard]] int of(int block) const { return of_block[static_cast<std::size_t>(block)]; }
  /// Where each slot begins for blocks of those sizes; then their sum.
  [[nodiscard]] std::vector<std::int64_t> begins(
      const std::function<std::int64_t(int block)>& size_of) const;
  std::vector<int> of_block;
  int count = 0;
};

/// Keeps weights whole where the model reads them, under ZeRO; those in fp8 travel as fp8. At
/// stages 1 and 2 each block is gathered from its owners once after an update, when the model first
/// comes to it; at stage 3 each time, into memory for a few (WeightSlots), which the next takes
/// over. A block is gathered while the one before it computes, and its gather has begun before that
/// one's is waited for. All ranks of the group acquire in the same order.
class WeightGather final : public WeightProvider {
 public:
  /// The ranks of one full copy of a view's parameters, on a channel for the store's memory.
  struct Channel {
    MeshView view;
    Communicator& shards;
  };
  /// `channels`: of each view that has parameters. The store's leases come here from now on.
  WeightGather(Context& context, ParamStore& store, const std::vector<Channel>& channels);
  /// What it takes besides the store.
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params,
                                   const ParamDistribution& distribution, DType compute,
                                   DeviceKind device);

  void acquire(int block, int next) override;
  void release(int block) override;
  /// The owned weights have changed: every block is gathered anew.
  void weights_changed();

 private:
  enum class State : std::uint8_t { kStale, kUnderWay, kWhole };
  struct Block {
    State state = State::kStale;
    std::int64_t parts_left = 0;
    int leases = 0;
  };

  struct Group {  // of the parameters of one view, in one form
    Channel channel;
    WeightForm form;
    Buckets buckets;
  };
  struct Gathered {  // stage 3: of one form
    std::vector<std::int64_t> begins;
    Buffer memory;
  };

  void take_slots();
  void start(int block);
  void start_view(Group& group, int block);
  void finish_bucket(const Group& group, Buckets::Bucket& bucket);
  /// Finishes gathers of all views, the oldest first, until `done()`.
  template <class Done>
  void finish_until(const Done& done);
  [[nodiscard]] TensorView weights_of(int block, WeightForm form) const;
  [[nodiscard]] Block& at(int block) { return blocks_[static_cast<std::size_t>(block)]; }

  Context& context_;
  ParamStore& store_;
  std::deque<Group> groups_;
  std::optional<WeightSlots> slots_;                  // stage 3
  std::array<Gathered, kWeightForms.size()> memory_;  // stage 3
  Gathered turned_;                                   // stage 3: transposes of fp8 weights
  std::vector<Block> blocks_;
  std::vector<int> holder_;  // stage 3: the block that stands in each slot
};

/// How often each block is gathered in a step that reads blocks in this order.
std::vector<std::int64_t> gathers_in_step(const StoreLayout& layout, std::span<const int> reads);

}  // namespace trireme
