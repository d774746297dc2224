#include "store/weight_gather.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/store_contents.h"

namespace trireme {
namespace {

/// A group of one rank that notes how many elements it is asked to gather, and how many it had been
/// asked for when each of them was waited for.
class Noting final : public Communicator {
 public:
  std::vector<std::int64_t> gathers, before_wait;

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void barrier() override {}
  void broadcast(std::span<std::byte>, int) override {}
  void all_gather(std::span<const std::byte>, std::span<std::byte>) override {}
  std::vector<std::string> all_gather_text(std::string_view mine) override {
    return {std::string(mine)};
  }
  Pending start_all_reduce(TensorView) override { return {}; }
  Pending start_reduce_scatter(TensorView) override { return {}; }
  Pending start_all_gather(TensorView shards) override {
    gathers.push_back(shards.count());
    return Pending([this] { before_wait.push_back(static_cast<std::int64_t>(gathers.size())); });
  }
  Pending start_exchange(std::span<const Message>, std::span<const Message>) override { return {}; }
  std::unique_ptr<Communicator> split(int) override { return make_self_communicator(); }
  std::unique_ptr<Communicator> channel(std::string_view) override {
    return make_self_communicator();
  }
  [[nodiscard]] TrafficCounters counters() const override { return {}; }
};

/// Block b is a vector of 16 (b + 1) elements, so that a gather's size names it.
std::vector<ParamMeta> model_of(int layers) {
  std::vector<ParamMeta> params;
  for (int block = 0; block < layers + 2; ++block) {
    ParamMeta& param = params.emplace_back();
    param.name = std::to_string(block);
    param.shape = {16 * (block + 1)};
    param.init = {InitKind::kNormal, 1};
    param.block = block;
  }
  return params;
}

struct Sharded {
  Context context{{}, 1, detect_isa()};
  ParamStore store;
  Noting group;
  WeightGather gather;

  Sharded(int layers, int stage, DType compute = DType::kF32)
      : store(model_of(layers), compute, kTrainingStore, {}, distribution(stage)),
        gather(context, store, {{MeshView::kDense, group}}) {
    store.initialise(context, 5);
    store.refresh_copies(context);
    gather.weights_changed();
  }
  static ParamDistribution distribution(int stage) { return dense_distribution(stage, {}); }
  /// How often each block was gathered since the last call.
  std::vector<std::int64_t> counted() {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(store.block_count()));
    for (const std::int64_t size : group.gathers)
      ++counts.at(static_cast<std::size_t>(size / 16 - 1));
    group.gathers.clear();
    return counts;
  }
  /// The leases of a step: forward through all blocks, a tied head, and back to the first layer,
  /// each naming the one that comes next.
  /// Returns the blocks in the order in which they are read.
  std::vector<int> step(bool tied, int micro_batches) {
    const int layers = store.block_count() - 2;
    std::vector<int> reads;
    const auto acquire = [&](int block, int next = -1) {
      reads.push_back(block);
      return store.acquire(block, next);
    };
    for (int i = 0; i < micro_batches; ++i) {
      { const auto embedding = acquire(0, 1); }
      for (int layer = 1; layer <= layers; ++layer) {
        const auto lease = acquire(layer, layer + 1);
      }
      {
        const auto norm = acquire(layers + 1, tied ? 0 : layers);
        const auto head = acquire(tied ? 0 : layers + 1);
      }
      { const auto norm = acquire(layers + 1, layers); }
      for (int layer = layers; layer >= 1; --layer) {
        const auto lease = acquire(layer, layer > 1 ? layer - 1 : -1);
      }
    }
    return reads;
  }
};

TEST(WeightGather, blocks_take_turns_where_little_of_them_is_trained) {
  std::vector<ParamMeta> params = model_of(4);
  for (ParamMeta& param : params) {
    param.base = param.block != 2;
    param.trainable = param.in_values = !param.base;
  }
  const WeightSlots slots{StoreLayout(params, Sharded::distribution(3))};
  EXPECT_EQ(slots.of_block, (std::vector<int>{0, 1, 2, 1, 2, 1}));
}

TEST(WeightGather, gathers_what_a_plan_counts) {
  for (const int stage : {1, 2, 3}) {
    for (const int layers : {1, 2, 3, 4, 7}) {
      for (const bool tied : {false, true}) {
        for (const int micro_batches : {1, 2, 3}) {
          Sharded model(layers, stage);
          // Every step alike, the first included.
          for (int step = 0; step < 2; ++step) {
            const std::vector<int> reads = model.step(tied, micro_batches);
            EXPECT_EQ(model.counted(), gathers_in_step(model.store.layout(), reads))
                << "stage " << stage << ", " << layers << " layers, tied " << tied << ", "
                << micro_batches << " micro-batches, step " << step;
            model.gather.weights_changed();
          }
        }
      }
    }
  }
}

TEST(WeightGather, below_stage_3_a_block_is_gathered_once_after_an_update) {
  Sharded model(3, 1);
  model.step(false, 2);
  model.step(false, 2);
  EXPECT_EQ(model.counted(), std::vector<std::int64_t>(5, 1));
}

TEST(WeightGather, a_gather_begins_before_the_one_ahead_of_it_is_waited_for) {
  Sharded model(3, 3);
  for (int block = 0; block < 3; ++block) {
    const auto lease = model.store.acquire(block, block + 1);
  }
  EXPECT_EQ(model.group.before_wait, (std::vector<std::int64_t>{2, 3, 4}));
}

TEST(WeightGather, a_stage_3_step_holds_the_last_layers_until_backward) {
  // 5 blocks: the head and the layer before stay for the way back, the others come twice.
  Sharded model(3, 3);
  model.step(false, 1);
  EXPECT_EQ(model.counted(), (std::vector<std::int64_t>{1, 2, 2, 1, 1}));
}

TEST(WeightGather, a_small_block_takes_no_layers_place) {
  // Embedding, three layers, a final norm and a head.
  std::vector<ParamMeta> params = model_of(4);
  for (int block = 0; block < 6; ++block)
    params[static_cast<std::size_t>(block)].shape = {block == 4 ? 16 : 16 * (30 + block)};
  const StoreLayout layout(params, Sharded::distribution(3));
  const std::vector<int> reads = {0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0, 1};
  // Layer 2 gives its place to the head and layer 1 its to layer 3, which then stays.
  EXPECT_EQ(gathers_in_step(layout, reads), (std::vector<std::int64_t>{1, 2, 2, 1, 1, 1}));
  const WeightSlots ranks(layout);
  EXPECT_EQ(ranks.of_block, (std::vector<int>{0, 1, 2, 1, 3, 2}));
  EXPECT_EQ(ranks.begins([&](int block) { return layout.local_block(block).size; }),
            (std::vector<std::int64_t>{0, 480, 480 + 528, 480 + 528 + 560, 480 + 528 + 560 + 16}));
}

TEST(WeightGather, padding_stays_zero_where_a_larger_block_stood) {
  std::vector<ParamMeta> params(5);
  for (int block = 0; block < 5; ++block) {
    ParamMeta& param = params[static_cast<std::size_t>(block)];
    param.name = std::to_string(block);
    param.shape = {block == 3 ? 5 : 16, 4};
    param.init = {InitKind::kNormal, 1};
    param.block = block;
    param.row_alignment = 8;
  }
  Context context({}, 1, detect_isa());
  ParamStore store(params, DType::kF32, kTrainingStore, {}, Sharded::distribution(3));
  Noting group;
  WeightGather gather(context, store, {{MeshView::kDense, group}});
  store.initialise(context, 5);
  gather.weights_changed();
  for (int block = 0; block < 5; ++block) {
    const ParamStore::Lease lease = store.acquire(block);
    const ConstTensorView padded = lease.padded_weight(block);
    ASSERT_EQ(padded.shape[0], block == 3 ? 8 : 16);
    const std::int64_t rows = lease.weight(block).count();
    for (std::int64_t i = 0; i < padded.count(); ++i)
      EXPECT_EQ(padded.as<float>()[i] == 0, i >= rows) << "block " << block << ", element " << i;
  }
}

TEST(WeightGather, a_lease_reads_the_values_that_the_owner_has_now) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const int stage : {1, 2, 3}) {
      Sharded model(2, stage, compute);
      for (int round = 0; round < 2; ++round) {
        for (int block = 0; block < 4; ++block) {
          const auto lease = model.store.acquire(block, block < 3 ? block + 1 : -1);
          const ConstTensorView weight = lease.weight(block);
          ASSERT_EQ(weight.dtype, compute);
          for (std::int64_t i = 0; i < weight.count(); ++i) {
            const float owned = model.store.value(block).as<float>()[i];
            if (compute == DType::kF32) {
              ASSERT_EQ(weight.as<float>()[i], owned);
            } else {
              ASSERT_EQ(weight.as<BFloat16>()[i].bits, to_bfloat16(owned).bits);
            }
          }
        }
        for (int block = 0; block < 4; ++block) {
          const TensorView value = model.store.value(block);
          for (std::int64_t i = 0; i < value.count(); ++i) value.as<float>()[i] += 1;
        }
        model.store.refresh_copies(model.context);
        model.gather.weights_changed();
      }
    }
  }
}

TEST(WeightGather, a_block_in_use_gives_its_place_to_nobody) {
  Sharded model(4, 3);
  const auto lease = model.store.acquire(1);
  EXPECT_THROW((void)model.store.acquire(3), InternalError);  // odd blocks share a rank
}

}  // namespace
}  // namespace trireme
