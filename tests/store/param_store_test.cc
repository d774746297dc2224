#include "store/param_store.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/hash.h"
#include "support/store_contents.h"

namespace trireme {
namespace {

std::vector<ParamMeta> some_params() {
  const ParamInit normal{InitKind::kNormal, 0.02F};
  std::vector<ParamMeta> params(5);
  params[0] = {"embed", {7, 6}, normal, true, 0, Fuse::kNo};
  params[1] = {"q", {5, 6}, normal, true, 1, Fuse::kNo};
  params[2] = {"k", {3, 6}, normal, true, 1, Fuse::kWithPrevious};
  params[3] = {"norm", {6}, {InitKind::kOnes, 0}, false, 1, Fuse::kNo};
  params[4] = {"bias", {9}, {}, false, 2, Fuse::kNo};
  return params;
}

TEST(ParamStore, a_fused_range_is_the_rows_of_its_parameters) {
  Context context({}, 1, detect_isa());
  ParamStore store(some_params(), DType::kF32, kTrainingStore);
  store.initialise(context, 1);
  const auto lease = store.acquire(1);
  const ConstTensorView fused = lease.weight(ParamRange{1, 2});
  EXPECT_EQ(fused.shape, (Shape{8, 6}));
  EXPECT_EQ(fused.as<float>()[5 * 6], store.value(2).as<float>()[0]);
  EXPECT_THROW((void)lease.weight(ParamRange{2, 3}), InternalError);
}

TEST(ParamStore, an_embedding_may_have_its_gradient_in_rows) {
  Context context({}, 1, detect_isa());
  std::vector<ParamMeta> params = some_params();
  const std::int64_t whole_bytes =
      ParamStore::bytes_of(params, DType::kF32, kTrainingStore).gradients;
  params[0].looked_up_most = 2;
  ParamStore store(params, DType::kF32, kTrainingStore);
  EXPECT_EQ(ParamStore::bytes_of(params, DType::kF32, kTrainingStore).gradients,
            whole_bytes - 4 * 48 + 4 * (3 * 6 + 7 + 2 * 2));
  const Buffer ids(DType::kI32, {2}), d(DType::kF32, {2, 6});
  ids.view().as<std::int32_t>()[0] = 5;
  ids.view().as<std::int32_t>()[1] = 5;
  for (int i = 0; i < 12; ++i) d.view().as<float>()[i] = static_cast<float>(i);
  store.gradients().begin_step(context);
  store.gradients().add_looked_up(context, 0, ids.view(), d.view(), 0, 7);
  ASSERT_EQ(store.gradients().written(0).shape, (Shape{1, 6}));
  ASSERT_EQ(store.gradients().counted(0).shape, (Shape{1, 6}));
  EXPECT_EQ(store.gradients().counted(0).as<float>()[1], 1 + 7);
  const auto* slots = store.gradients().slots(0).as<std::int32_t>();
  EXPECT_EQ(slots[5], 0);
  EXPECT_EQ(slots[4], 2) << "the row of zeros";
  EXPECT_EQ(store.gradients().owned(0).as<float>()[2 * 6], 0);
  EXPECT_FALSE(store.gradients().slots(1).given());
  EXPECT_THROW((void)store.gradients().sum(0), InternalError);
  // The others stand as they stood, and their blocks begin behind it.
  EXPECT_EQ(store.gradients().block(0).count(), 0);
  EXPECT_EQ(store.gradients().block(1).data, store.gradients().sum(1).data);
  EXPECT_EQ(store.gradients().sum(2).data, store.gradients().sum(1).data + 5 * 6 * 4);
  store.gradients().begin_step(context);
  EXPECT_EQ(store.gradients().written(0).count(), 0);
}

TEST(ParamStore, what_is_not_trained_has_neither_gradient_nor_state) {
  Context context({}, 1, detect_isa());
  std::vector<ParamMeta> params = some_params();
  const ParamStore::Bytes all = ParamStore::bytes_of(params, DType::kF32, kTrainingStore);
  params[1].trainable = params[2].trainable = false;
  const ParamStore::Bytes some = ParamStore::bytes_of(params, DType::kF32, kTrainingStore);
  EXPECT_EQ(some.parameters, all.parameters);
  EXPECT_EQ(some.gradients, all.gradients - 4 * 48);
  EXPECT_EQ(some.optimizer, all.optimizer - 2 * 4 * 48);
  ParamStore store(params, DType::kF32, kTrainingStore);
  Gradients& gradients = store.gradients();
  gradients.begin_step(context);
  EXPECT_FALSE(gradients.sum(ParamRange{1, 2}).given());
  EXPECT_FALSE(gradients.product({1, 2}).gradient.given());
  EXPECT_EQ(gradients.counted(2).count(), 0);
  EXPECT_EQ(gradients.written(2).count(), 0);
  EXPECT_EQ(gradients.block(1).data, gradients.sum(3).data) << "the block begins with the norm";
  int values = 0, states = 0;
  for (const StateTensor& tensor : store.state().tensors)
    ++(tensor.name.starts_with("parameters/") ? values : states);
  EXPECT_EQ(values, 5);
  EXPECT_EQ(states, 2 * 3);
}

TEST(ParamStore, initial_values_depend_on_seed_name_and_element_alone) {
  Context context({}, 1, detect_isa());
  ParamStore a(some_params(), DType::kF32, StoreContents{});
  ParamStore b({some_params()[2]}, DType::kF32, StoreContents{});  // elsewhere in memory, alone
  a.initialise(context, 7);
  b.initialise(context, 7);
  for (int i = 0; i < 18; ++i) EXPECT_EQ(a.value(2).as<float>()[i], b.value(0).as<float>()[i]);
  EXPECT_NE(a.value(1).as<float>()[0], a.value(2).as<float>()[0]);
  EXPECT_EQ(a.value(3).as<float>()[5], 1.0F);
  EXPECT_EQ(a.value(4).as<float>()[8], 0.0F);
}

// The bits of a normal initialisation are promised for every machine and version of this format.
TEST(ParamStore, initial_bits_are_those_of_the_first_version) {
  Context context({}, 1, detect_isa());
  ParamStore store(some_params(), DType::kF32, StoreContents{});
  store.initialise(context, 1234);
  const TensorView embed = store.value(0);
  EXPECT_EQ(xxh3_128_hex(std::span<const std::byte>(embed.data, embed.bytes())),
            "7f435e2935f73c0e0cf045cdf4c17e98");
}

TEST(ParamStore, a_normal_parameter_has_its_standard_deviation) {
  Context context({}, 1, detect_isa());
  ParamMeta meta{"w", {300, 200}, {InitKind::kNormal, 0.5F}, true, 0, Fuse::kNo};
  ParamStore store({meta}, DType::kF32, StoreContents{});
  store.initialise(context, 3);
  double sum = 0, squares = 0;
  for (int i = 0; i < 60000; ++i) {
    const double value = store.value(0).as<float>()[i];
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 60000, 0, 0.01);
  EXPECT_NEAR(std::sqrt(squares / 60000), 0.5, 0.005);
}

/// some_params() with a head that shares the embedding's value.
std::vector<ParamMeta> tied_params() {
  std::vector<ParamMeta> params = some_params();
  params.push_back({"embed (head)", {7, 6}, {}, true, 3, Fuse::kNo});
  params.back().shares = 0;
  return params;
}

TEST(ParamStore, the_gradient_of_a_tied_head_is_added_once) {
  ParamStore store(tied_params(), DType::kF32, kTrainingStore);
  Context context({}, 1, detect_isa());
  store.gradients().sum(0).as<float>()[3] = 2;
  store.gradients().sum(5).as<float>()[3] = 5;
  std::vector<int> complete;
  store.gradients().when_complete([&](int block) { complete.push_back(block); });
  store.gradients().close(context, 3, true);
  store.gradients().close(context, 0, false);
  EXPECT_EQ(complete, std::vector<int>());
  store.gradients().close(context, 0, true);
  EXPECT_EQ(complete, std::vector<int>{0});
  EXPECT_EQ(store.gradients().sum(0).as<float>()[3], 7);
  EXPECT_FALSE(store.has_value(5));
}

TEST(ParamStore, a_tied_head_has_a_gradient_and_nothing_else) {
  const auto tied = ParamStore::bytes_of(tied_params(), DType::kBF16, kTrainingStore);
  const auto alone = ParamStore::bytes_of(some_params(), DType::kBF16, kTrainingStore);
  EXPECT_EQ(tied.parameters, alone.parameters);
  EXPECT_EQ(tied.optimizer, alone.optimizer);
  EXPECT_EQ(tied.gradients, alone.gradients + 48 * 4);
  ParamStore store(tied_params(), DType::kF32, kTrainingStore);
  EXPECT_EQ(store.state().tensors.size(), 15U);
  EXPECT_EQ(store.gradients().counted(5).count(), 0);
  EXPECT_EQ(store.element_count(), 42 + 30 + 18 + 6 + 9);
}

TEST(ParamStore, clears_gradients_but_those_that_a_product_sets) {
  std::vector<ParamMeta> params = some_params();
  params[1].set_by_product = true;
  ParamStore store(params, DType::kF32, kTrainingStore);
  Context context({}, 1, detect_isa());
  store.gradients().sum(0).as<float>()[3] = 2;
  store.gradients().sum(1).as<float>()[0] = 4;
  store.gradients().sum(2).as<float>()[0] = 6;
  store.gradients().begin_step(context);
  EXPECT_EQ(store.gradients().sum(0).as<float>()[3], 0);
  EXPECT_EQ(store.gradients().sum(1).as<float>()[0], 4);
  EXPECT_EQ(store.gradients().sum(2).as<float>()[0], 0);
}

TEST(ParamStore, blocks_cover_every_gradient_once) {
  ParamStore store(some_params(), DType::kF32, kTrainingStore);
  ASSERT_EQ(store.block_count(), 3);
  for (int block = 0; block < 3; ++block) {
    const TensorView gradients = store.gradients().block(block);
    for (std::int64_t i = 0; i < gradients.count(); ++i)
      gradients.as<float>()[i] += static_cast<float>(block + 1);
  }
  for (ParamIndex i = 0; i < 5; ++i) {
    const TensorView gradient = store.gradients().sum(i);
    for (std::int64_t j = 0; j < gradient.count(); ++j) {
      EXPECT_EQ(gradient.as<float>()[j],
                static_cast<float>(store.params()[static_cast<std::size_t>(i)].block + 1));
    }
  }
}

TEST(ParamStore, copies_are_rounded_values_and_what_leases_give) {
  ParamStore store(some_params(), DType::kBF16, StoreContents{});
  Context context({}, 1, detect_isa());
  store.initialise(context, 1);
  store.refresh_copies(context);
  const auto weight = store.acquire(1).weight(1);
  ASSERT_EQ(weight.dtype, DType::kBF16);
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(weight.as<BFloat16>()[i].bits, to_bfloat16(store.value(1).as<float>()[i]).bits);
  }
}

TEST(ParamStore, bytes_are_known_without_a_store) {
  const auto bytes = ParamStore::bytes_of(some_params(), DType::kBF16, kTrainingStore);
  // Groups on 16 elements: 48 + 48 + 16 + 16.
  EXPECT_EQ(bytes.parameters, 128 * 6);
  EXPECT_EQ(bytes.gradients, 128 * 4);
  EXPECT_EQ(bytes.optimizer, 128 * 8);
  StoreContents apart = kTrainingStore;
  apart.weights_apart = true;
  EXPECT_EQ(ParamStore::bytes_of(some_params(), DType::kF32, apart).parameters, 128 * 8);
  EXPECT_EQ(ParamStore::bytes_of(some_params(), DType::kBF16, apart).parameters, 128 * 6);
}

TEST(ParamStore, weights_that_stand_apart_are_read_in_place_of_values) {
  StoreContents apart;
  apart.weights_apart = true;
  ParamStore store(some_params(), DType::kF32, apart);
  Context context({}, 1, detect_isa());
  store.initialise(context, 1);
  store.refresh_copies(context);
  const auto weight = store.acquire(1).weight(1);
  EXPECT_EQ(weight.as<float>()[29], store.value(1).as<float>()[29]);
  store.copy(1).as<float>()[29] = 7;
  EXPECT_EQ(weight.as<float>()[29], 7);
  EXPECT_NE(store.value(1).as<float>()[29], 7);
}

TEST(ParamStore, state_names_every_tensor_once) {
  ParamStore store(some_params(), DType::kF32, kTrainingStore, {},
                   dense_distribution(0, {{}, {}, {4, 1}}));
  const State state = store.state();
  ASSERT_EQ(state.tensors.size(), 15U);
  EXPECT_EQ(state.tensors[0].name, "parameters/embed");
  EXPECT_EQ(state.tensors[5].name, "optimizer/embed/exp_avg");
  EXPECT_EQ(state.tensors[6].name, "optimizer/embed/exp_avg_sq");
  EXPECT_EQ(state.tensors[6].data, store.optimizer_state(1, 0).data);
  EXPECT_EQ(state.tensors[0].replica, 1);
  EXPECT_EQ(state.tensors[0].box.shape, (Shape{7, 6}));
}

TEST(ParamStore, the_boxes_of_its_state_are_known_without_a_store) {
  const std::vector<ParamMeta> params = some_params();
  for (const int zero_stage : {0, 3}) {
    const AxisRank shard = zero_stage == 0 ? AxisRank{1, 0} : AxisRank{2, 1};
    const ParamDistribution ranks = dense_distribution(zero_stage, {{1, 0}, shard, {3, 1}});
    const ParamStore store(params, DType::kBF16, kTrainingStore, {}, ranks);
    const State with = store.state(), without = state_boxes(params, kTrainingStore.states, ranks);
    ASSERT_EQ(with.tensors.size(), without.tensors.size());
    for (std::size_t i = 0; i < with.tensors.size(); ++i) {
      const StateTensor &a = with.tensors[i], &b = without.tensors[i];
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.box, b.box);
      EXPECT_EQ(a.replica, b.replica);
      EXPECT_EQ(a.replicas, b.replicas);
      EXPECT_EQ(b.data, nullptr);
    }
  }
}

}  // namespace
}  // namespace trireme
