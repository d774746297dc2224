// Parameters of two views of the mesh, each reduced and gathered over ranks of its own.

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "store/reduction.h"
#include "store/weight_gather.h"
#include "support/mpi_test.h"
#include "support/store_contents.h"

namespace trireme {
namespace {

/// An embedding, a layer with two projections and an expert, a head.
std::vector<ParamMeta> some_params(Ownership dense = Ownership::kRows) {
  const ParamInit normal{InitKind::kNormal, 1};
  std::vector<ParamMeta> params(5);
  params[0] = {"embedding", {11, 3}, normal, true, 0, Fuse::kNo};
  params[1] = {"projection", {5, 3}, normal, true, 1, Fuse::kNo};
  params[2] = {"another", {4, 3}, normal, true, 1, Fuse::kNo};
  params[3] = {"expert", {7, 2}, normal, true, 1, Fuse::kNo};
  params[3].view = MeshView::kExpert;
  params[4] = {"head", {4, 3}, normal, true, 2, Fuse::kNo};
  for (const int i : {0, 1, 2}) params[static_cast<std::size_t>(i)].ownership = dense;
  return params;
}

/// The dense parameters are sharded over all ranks, the expert's over none: each rank of the world
/// has a replica of it.
class TwoViews : public testing::TestWithParam<std::tuple<int, Ownership, DType>> {
 protected:
  TwoViews() {
    const AxisRank all{world_.size(), world_.rank()};
    ranks_.zero_stage = std::get<0>(GetParam());
    Distribution& dense = ranks_.of(MeshView::kDense);
    (ranks_.sharded() ? dense.shard : dense.replica) = all;
    ranks_.of(MeshView::kExpert).replica = all;
    store_.emplace(some_params(std::get<1>(GetParam())), DType::kF32, kTrainingStore, Device{},
                   ranks_);
    store_->initialise(context_, 3);
    Communicator& shards = ranks_.sharded() ? *channel_ : *self_;
    Communicator& replicas = ranks_.sharded() ? *self_ : *channel_;
    reduction_.emplace(context_, *store_,
                       std::vector<ReductionChannels>{{MeshView::kDense, shards, replicas},
                                                      {MeshView::kExpert, *self_, *experts_}},
                       wire_);
    if (!ranks_.sharded()) return;
    gather_.emplace(context_, *store_,
                    std::vector<WeightGather::Channel>{{MeshView::kDense, shards},
                                                       {MeshView::kExpert, *self_}});
    gather_->weights_changed();
  }
  /// What rank `rank` adds to element i of a gradient in one micro-batch.
  [[nodiscard]] float term(int rank, std::int64_t i) const {
    const auto whole = static_cast<float>((rank + 1) * (i + 1));
    return wire_ == DType::kF32 ? whole : whole * 1.01F;  // which bf16 does not hold
  }
  /// The sum over ranks of `times` terms of each, as it travels.
  [[nodiscard]] float sum_of_terms(std::int64_t i, float times) const {
    const auto rounded = [&](float value) {
      return wire_ == DType::kF32 ? value : to_float(to_bfloat16(value));
    };
    float sum = 0;
    for (int rank = 0; rank < world_.size(); ++rank) sum += rounded(times * term(rank, i));
    return rounded(sum);
  }

  const DType wire_ = std::get<2>(GetParam());
  Communicator& world_ = test_world();
  Context context_{{}, 1, detect_isa()};
  std::unique_ptr<Communicator> channel_ = world_.channel("dense"),
                                self_ = make_self_communicator(),
                                experts_ = world_.channel("experts");
  ParamDistribution ranks_;
  std::optional<ParamStore> store_;
  std::optional<GradientReduction> reduction_;
  std::optional<WeightGather> gather_;
};

TEST_P(TwoViews, gradients_are_summed_over_the_ranks_of_their_view) {
  Gradients& gradients = store_->gradients();
  for (int step = 0; step < 2; ++step) {
    reduction_->begin_step();
    gradients.when_complete([&](int block) { reduction_->start(block); });
    gradients.begin_step(context_);
    for (const bool last : {false, true}) {
      for (const int block : {2, 1, 0}) {
        gradients.open(context_, block);
        const ParamRange range = store_->layout().block_params(block);
        for (ParamIndex i = range.first; i <= range.last; ++i) {
          const TensorView sum = gradients.sum(i);
          for (std::int64_t at = 0; at < sum.count(); ++at)
            sum.as<float>()[at] += term(world_.rank(), at);
        }
        gradients.close(context_, block, last);
      }
    }
    reduction_->finish();
  }
  for (ParamIndex i = 0; i < 5; ++i) {
    const TensorView owned = gradients.owned(i);
    const std::int64_t first = store_->layout().owned(i).begin * store_->layout().local_shape(i)[1];
    if (i == 3) {
      EXPECT_EQ(owned.shape, (Shape{7, 2})) << "an expert has no shards here";
    }
    for (std::int64_t at = 0; at < owned.count(); ++at) {
      // Alone a rank sends nothing. Of stages 2 and 3 each micro-batch travels.
      const bool each = ranks_.zero_stage >= 2;
      float expected = each ? 2 * sum_of_terms(first + at, 1) : sum_of_terms(first + at, 2);
      if (world_.size() == 1) expected = 2 * term(0, first + at);
      EXPECT_EQ(owned.as<float>()[at], expected) << "parameter " << i << ", element " << at;
    }
    // The norm counts each element once.
    std::int64_t counted[] = {gradients.counted(i).count()};
    world_.sum(counted);
    EXPECT_EQ(counted[0], some_params()[static_cast<std::size_t>(i)].shape.count());
  }
}

TEST_P(TwoViews, weights_are_gathered_from_the_ranks_of_their_view) {
  ParamStore whole(some_params(), DType::kF32, {});
  whole.initialise(context_, 3);
  for (const int block : {0, 1, 2, 1}) {
    const ParamStore::Lease lease = store_->acquire(block);
    const ParamRange range = store_->layout().block_params(block);
    for (ParamIndex i = range.first; i <= range.last; ++i) {
      const ConstTensorView weight = lease.weight(i);
      ASSERT_EQ(weight.shape, whole.value(i).shape);
      for (std::int64_t at = 0; at < weight.count(); ++at)
        EXPECT_EQ(weight.as<float>()[at], whole.value(i).as<float>()[at]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zero, TwoViews,
                         testing::Combine(testing::Values(0, 1, 2, 3),
                                          testing::Values(Ownership::kRows, Ownership::kWhole),
                                          testing::Values(DType::kF32, DType::kBF16)));

}  // namespace
}  // namespace trireme
