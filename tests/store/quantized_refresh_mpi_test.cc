// fp8 weights have the codes and scales of one rank on every mesh, wherever its cuts fall.

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "kernels/quantize/quantize.h"
#include "store/quantized_refresh.h"
#include "store/weight_gather.h"
#include "support/mpi_test.h"

namespace trireme {
namespace {

constexpr ParamRange kFused{1, 2};

/// A norm, two fused projections and a matrix that is cut by columns, of sizes that no blocks of
/// 128 and no shards divide.
std::vector<ParamMeta> some_params(std::int64_t block) {
  const ParamInit normal{InitKind::kNormal, 1};
  std::vector<ParamMeta> params(5);
  params[0] = {"norm", {96}, normal, false, 0, Fuse::kNo};
  params[1] = {"wide", {384, 160}, normal, true, 1, Fuse::kNo};
  params[1].cut = {0, {{384, 12}}};
  params[2] = {"beside", {192, 160}, normal, true, 1, Fuse::kWithPrevious};
  params[2].cut = {0, {{192, 12}}};
  params[3] = {"parts", {80, 576}, normal, true, 1, Fuse::kNo};
  params[3].cut = {1, {{384, 12}, {192, 12}}};
  params[4] = {"bias", {80}, normal, false, 1, Fuse::kNo};
  for (const std::size_t i : {1U, 2U, 3U}) params[i].fp8 = Fp8Copy{block};
  return params;
}

ParamDistribution distribution_of(int stage, AxisRank tensor, AxisRank shard) {
  return dense_distribution(stage, {tensor, shard, {}});
}

/// Of parameter `index`, a value for each element of the local tensor-parallel shard.
std::vector<double> values_of(const ConstQuantizedView& view) {
  std::vector<double> values;
  for (std::int64_t r = 0; r < view.codes.shape[0]; ++r) {
    for (std::int64_t c = 0; c < view.codes.shape[1]; ++c) {
      const auto code = std::to_integer<int>(view.codes.data[r * view.codes.shape[1] + c]);
      const float scale = view.scales.as<float>()[view.rows.block_of(r) * view.columns.blocks() +
                                                  view.columns.block_of(c)];
      values.push_back(code + static_cast<double>(scale));  // both at once: scales are below 1
    }
  }
  return values;
}

/// block 0 or 128, ZeRO stage, whether ranks are of the tensor axis.
class QuantizedRefreshMeshes : public testing::TestWithParam<std::tuple<std::int64_t, int, bool>> {
};

TEST_P(QuantizedRefreshMeshes, have_the_codes_of_one_rank) {
  const auto [block, stage, by_tensor] = GetParam();
  Communicator& world = test_world();
  const AxisRank all{world.size(), world.rank()}, one{};
  const AxisRank tensor = by_tensor ? all : one;
  const AxisRank shard = by_tensor || stage == 0 ? one : all;
  if (by_tensor && stage > 0) GTEST_SKIP() << "one of them at a time";
  Context context({}, 1, detect_isa());
  const auto self = make_self_communicator();

  ParamStore alone(some_params(block), DType::kBF16, {});
  alone.initialise(context, 3);
  QuantizedRefresh(context, alone, *self, *self).run();

  const std::unique_ptr<Communicator> shards =
      shard.extent > 1 ? world.channel("shards") : make_self_communicator();
  const std::unique_ptr<Communicator> axis =
      tensor.extent > 1 ? world.channel("tensor") : make_self_communicator();
  const ParamDistribution distribution = distribution_of(stage, tensor, shard);
  ParamStore store(some_params(block), DType::kBF16, {}, {}, distribution);
  store.initialise(context, 3);
  std::optional<WeightGather> gather;
  if (distribution.sharded())
    gather.emplace(context, store, std::vector<WeightGather::Channel>{{MeshView::kDense, *shards}});
  QuantizedRefresh refresh(context, store, *shards, *axis);
  const std::int64_t sent = shards->counters().bytes_sent + axis->counters().bytes_sent;
  refresh.run();
  store.refresh_copies(context);
  const auto counted = QuantizedRefresh::bytes_sent(store.params(), distribution);
  EXPECT_EQ(shards->counters().bytes_sent + axis->counters().bytes_sent - sent,
            counted.shards + counted.tensor);
  if (gather) gather->weights_changed();

  const ParamStore::Lease whole = alone.acquire(1), here = store.acquire(1);
  for (const ParamRange range : {kFused, ParamRange{3, 3}}) {
    const std::vector<double> expected = values_of(whole.quantized(range)),
                              found = values_of(here.quantized(range));
    const std::int64_t whole_columns = whole.quantized(range).codes.shape[1],
                       local_columns = here.quantized(range).codes.shape[1];
    std::int64_t global_begin = 0, local_begin = 0, compared = 0;
    for (ParamIndex i = range.first; i <= range.last; ++i) {
      const ParamMeta& param = store.params()[static_cast<std::size_t>(i)];
      for (const CutPart& part : local_parts(param.shape, param.cut, tensor)) {
        for (std::int64_t r = 0; r < part.box.shape[0]; ++r) {
          for (std::int64_t c = 0; c < part.box.shape[1]; ++c, ++compared) {
            const auto from = static_cast<std::size_t>(
                (global_begin + part.box.offset[0] + r) * whole_columns + part.box.offset[1] + c);
            const auto at = static_cast<std::size_t>(
                (local_begin + part.at[0] + r) * local_columns + part.at[1] + c);
            ASSERT_EQ(found[at], expected[from]) << param.name << " " << r << " " << c;
          }
        }
      }
      global_begin += param.shape[0];
      local_begin += store.layout().local_shape(i)[0];
    }
    EXPECT_EQ(compared, std::ssize(found));
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedRefreshMeshes,
                         testing::Combine(testing::Values<std::int64_t>(0, 128),
                                          testing::Range(0, 4), testing::Bool()));

/// What is quantised from is the fp32 value; a value that is not finite shows in all of its block.
TEST(QuantizedRefresh, what_is_not_finite_shows) {
  Context context({}, 1, detect_isa());
  const auto self = make_self_communicator();
  ParamStore store(some_params(128), DType::kBF16, {});
  store.initialise(context, 3);
  store.value(1).as<float>()[130 * 160 + 5] = INFINITY;
  QuantizedRefresh(context, store, *self, *self).run();
  const ConstQuantizedView view = store.acquire(1).quantized(kFused);
  ASSERT_EQ(view.columns.blocks(), 2);
  for (std::int64_t i = 0; i < view.scales.count(); ++i)
    EXPECT_EQ(std::isnan(view.scales.as<float>()[i]), i == 2) << i;
}

}  // namespace
}  // namespace trireme
